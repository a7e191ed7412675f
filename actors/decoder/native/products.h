// Products of a few rows with large matrices, which is what a decoding step consists of.
//
// A matrix is packed in panels of 32 columns (outputs), so that a panel is read once, from front to
// back, for up to `kTileRows` rows: at the speed of memory. An output adds up along its row in one
// lane, from front to back, so it does not depend on how many rows there are.
#pragma once

#include "weights.h"

namespace {

// As many rows at a time as their sums fill registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 14;
#else
constexpr int kTileRows = 3;
#endif

inline Sums add_products(Sums sums, Sums weights, const float* x) { return sums + weights * *x; }

inline Sums add_products(Sums sums, Pairs weights, const bf16* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
#if defined(__AVX512BF16__)
  return (Sums)_mm512_dpbf16_ps((__m512)sums, (__m512bh)weights,
                                (__m512bh)_mm512_set1_epi32(pair));
#else
  float low, high;
  const uint32_t low_bits = uint32_t(pair) << 16, high_bits = uint32_t(pair) & 0xFFFF0000u;
  std::memcpy(&low, &low_bits, sizeof low);
  std::memcpy(&high, &high_bits, sizeof high);
  return sums + (Sums)(weights << 16) * low + (Sums)(weights & 0xFFFF0000u) * high;
#endif
}

// Two cache lines, from 4 KiB ahead: arithmetic on many rows leaves the processor too few loads in
// flight by itself (12 rows take half the time with it).
inline void prefetch(const void* from) {
  __builtin_prefetch((const char*)from + 4096);
  __builtin_prefetch((const char*)from + 4096 + 64);
}

// sums [kRows, 32] of `kRows` rows of [kRows, in] with one panel, whose elements are T or int8.
template <int kRows, class T, class W>
void multiply_tile(const T* x, int64_t in, const W* panel, float* sums) {
  constexpr int64_t kGroup = group_of((const T*)nullptr);
  Sums acc[kRows][kVectors] = {};
  for (int64_t k = 0; k < in; k += kGroup) {
    const W* from = panel + k * kPanel;
    if (kRows > 2) prefetch(from);
    VectorOf<T> weights[kVectors];
    load_weights(from, weights);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = add_products(acc[r][v], weights[v], x + r * in + k);
    }
  }
  std::memcpy(sums, acc, sizeof acc);
}

template <int kRows, class T, class W>
void multiply_rows(int64_t rows, const T* x, int64_t in, const W* panel, float* sums) {
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
    const int64_t place = p * kPanel * matrix.in, column = p * kPanel;
    const int64_t width = std::min(kPanel, matrix.out - column);
    float bias[kPanel] = {}, scales[kPanel];
    std::fill_n(scales, kPanel, 1.0f);
    if (matrix.bias) std::copy_n(matrix.bias + column, width, bias);
    if (matrix.scales) std::copy_n(matrix.scales + column, width, scales);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = b * rows / blocks, end = (b + 1) * rows / blocks;
      const T* from = x + first * matrix.in;
      float sums[kTileRows * kPanel];
      if (matrix.scales)
        multiply_rows<kTileRows>(end - first, from, matrix.in,
                                 (const int8_t*)matrix.packed + place, sums);
      else
        multiply_rows<kTileRows>(end - first, from, matrix.in, (const T*)matrix.packed + place,
                                 sums);
      for (int64_t r = first; r < end; ++r) {
        const float* own = sums + (r - first) * kPanel;
        sink(r, column, load(own) * load(scales) + load(bias),
             load(own + kLanes) * load(scales + kLanes) + load(bias + kLanes));
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
