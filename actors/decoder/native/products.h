// Products of a few rows with large matrices, which is what a decoding step consists of.
//
// A matrix is packed in panels of 32 columns (outputs), so that a panel is read once, from front to
// back, for up to `kTileRows` rows: at the speed of memory. An output adds up along its row in one
// lane, from front to back, so it does not depend on how many rows there are.
#pragma once

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "vectors.h"

namespace {

constexpr int64_t kPanel = 2 * kLanes;

// Vectors as long as the registers are, and as many rows at a time as their sums fill registers.
#if defined(__AVX512F__)
constexpr int64_t kWidth = 16;
constexpr int kTileRows = 14;
#else
constexpr int64_t kWidth = 8;
constexpr int kTileRows = 3;
#endif
constexpr int kVectors = kPanel / kWidth;

typedef float Sums __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Pairs __attribute__((vector_size(4 * kWidth)));

// `packed` is [panels, in / group, 32, group], where `group` elements of a row are multiplied at
// once: two of bfloat16, one of float32. Columns beyond `out` are zero.
struct Matrix {
  const void* packed;
  const float* bias;  // [out], or null
  int64_t in, out;
};

inline constexpr int64_t group_of(const float*) { return 1; }
inline constexpr int64_t group_of(const bf16*) { return 2; }

inline Sums add_products(Sums sums, const float* weights, const float* x) {
  Sums row;
  std::memcpy(&row, weights, sizeof row);
  return sums + row * *x;
}

inline Sums add_products(Sums sums, const bf16* weights, const bf16* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
#if defined(__AVX512BF16__)
  return (Sums)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_loadu_si512(weights),
                                  (__m512bh)_mm512_set1_epi32(pair));
#else
  Pairs both;
  std::memcpy(&both, weights, sizeof both);
  float low, high;
  const uint32_t low_bits = uint32_t(pair) << 16, high_bits = uint32_t(pair) & 0xFFFF0000u;
  std::memcpy(&low, &low_bits, sizeof low);
  std::memcpy(&high, &high_bits, sizeof high);
  return sums + (Sums)(both << 16) * low + (Sums)(both & 0xFFFF0000u) * high;
#endif
}

// Two cache lines, from 4 KiB ahead: arithmetic on many rows leaves the processor too few loads in
// flight by itself (12 rows take half the time with it).
inline void prefetch(const void* from) {
  __builtin_prefetch((const char*)from + 4096);
  __builtin_prefetch((const char*)from + 4096 + 64);
}

// sums [kRows, 32] of `kRows` rows of [kRows, in] with one panel.
template <int kRows, class T>
void multiply_tile(const T* x, int64_t in, const T* panel, float* sums) {
  constexpr int64_t kGroup = group_of((const T*)nullptr);
  Sums acc[kRows][kVectors] = {};
  for (int64_t k = 0; k < in; k += kGroup) {
    const T* weights = panel + k * kPanel;
    if (kRows > 2) prefetch(weights);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = add_products(acc[r][v], weights + v * kWidth * kGroup, x + r * in + k);
    }
  }
  std::memcpy(sums, acc, sizeof acc);
}

template <int kRows, class T>
void multiply_rows(int64_t rows, const T* x, int64_t in, const T* panel, float* sums) {
  if (rows == kRows) return multiply_tile<kRows>(x, in, panel, sums);
  if constexpr (kRows > 1) multiply_rows<kRows - 1>(rows, x, in, panel, sums);
}

// Call `sink(row, column, sums)` with the two vectors of outputs from `column` on, for all rows and
// panels of [rows, in] times the matrix. Shared among the threads of the region it is called in,
// which have all finished when it returns.
template <class T, class Sink>
void multiply(const T* x, int64_t rows, const Matrix& matrix, Sink sink) {
  const int64_t panels = (matrix.out + kPanel - 1) / kPanel;
  const int64_t blocks = (rows + kTileRows - 1) / kTileRows;
#pragma omp for schedule(static)
  for (int64_t p = 0; p < panels; ++p) {
    const T* panel = (const T*)matrix.packed + p * kPanel * matrix.in;
    const int64_t column = p * kPanel;
    float bias[kPanel] = {};
    if (matrix.bias)
      std::copy_n(matrix.bias + column, std::min(kPanel, matrix.out - column), bias);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = b * rows / blocks, end = (b + 1) * rows / blocks;
      float sums[kTileRows * kPanel];
      multiply_rows<kTileRows>(end - first, x + first * matrix.in, matrix.in, panel, sums);
      for (int64_t r = first; r < end; ++r) {
        const float* own = sums + (r - first) * kPanel;
        sink(r, column, load(own) + load(bias), load(own + kLanes) + load(bias + kLanes));
      }
    }
  }
}

// [rows, out]; `out` need not be a multiple of anything.
template <class T>
void product(const T* x, int64_t rows, const Matrix& matrix, float* out) {
#pragma omp parallel
  multiply(x, rows, matrix, [&](int64_t row, int64_t column, Floats low, Floats high) {
    float panel[kPanel];
    store(panel, low);
    store(panel + kLanes, high);
    std::copy_n(panel, std::min(kPanel, matrix.out - column), out + row * matrix.out + column);
  });
}

}  // namespace
