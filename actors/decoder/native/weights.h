// The weights of a matrix as products read them: of the rows' own type, or int8.
//
// int8 stands for what it is times a scale that all weights of an output have. A bfloat16 or a
// float holds every int8 exactly, so int8 is expanded in registers, multiplied like any weight, and
// the finished sum is scaled: half the memory, or a quarter, is read, and nothing else is rounded.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "vectors.h"

namespace {

constexpr int64_t kPanel = 2 * kLanes;

// Vectors as long as the registers are.
#if defined(__AVX512F__)
constexpr int64_t kWidth = 16;
#else
constexpr int64_t kWidth = 8;
#endif
constexpr int kVectors = kPanel / kWidth;

typedef float Sums __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Pairs __attribute__((vector_size(4 * kWidth)));

// `packed` is [panels, in / group, 32, group], where `group` elements of a row are multiplied at
// once: two of bfloat16, one of float32. Columns beyond `out` are zero. Where there are scales,
// elements are int8 from -127 to 127, and 64 of them that meet a pair of bfloat16 are in another
// order: eight of the first half, eight of the second, and so on.
struct Matrix {
  const void* packed;
  const float *bias, *scales;  // [out], or null
  int64_t in, out;
};

inline constexpr int64_t group_of(const float*) { return 1; }
inline constexpr int64_t group_of(const bf16*) { return 2; }

template <class T>
using VectorOf = std::conditional_t<std::is_same_v<T, float>, Sums, Pairs>;

// The weights of a panel that meet one group of a row's elements, a vector for each of its sums.
template <class T>
inline void load_weights(const T* from, VectorOf<T> (&to)[kVectors]) {
  for (int v = 0; v < kVectors; ++v)
    std::memcpy(&to[v], from + v * kWidth * group_of(from), sizeof to[v]);
}

inline Floats expand(const int8_t* from) {
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats);
}

inline void load_weights(const int8_t* from, Sums (&to)[kVectors]) {
  const Floats numbers[] = {expand(from), expand(from + kLanes)};
  std::memcpy(to, numbers, sizeof to);
}

#if defined(__AVX512VBMI__)
// The two bytes of the bfloat16 numbers from 0 to 127.
struct ByteTables {
  alignas(64) uint8_t low[128], high[128];

  constexpr ByteTables() : low(), high() {
    for (int n = 1, exponent = 0; n < 128; ++n) {
      if (n >> (exponent + 1)) ++exponent;
      const int bits = (127 + exponent) << 7 | (n << (7 - exponent) & 0x7F);
      low[n] = uint8_t(bits);
      high[n] = uint8_t(bits >> 8);
    }
  }
};

inline constexpr ByteTables kNumbers;

// Absolute values are looked up; signs are added.
inline void load_weights(const int8_t* from, Pairs (&to)[kVectors]) {
  const __m512i bytes = _mm512_loadu_si512(from), sizes = _mm512_abs_epi8(bytes);
  const auto* lows = (const __m512i*)kNumbers.low;
  const auto* highs = (const __m512i*)kNumbers.high;
  const __m512i low = _mm512_permutex2var_epi8(lows[0], sizes, lows[1]);
  const __m512i high = _mm512_permutex2var_epi8(highs[0], sizes, highs[1]);
  const __m512i signs = _mm512_and_si512(bytes, _mm512_set1_epi8(-128));
  to[0] = (Pairs)_mm512_unpacklo_epi8(low, _mm512_or_si512(high, signs));
  to[1] = (Pairs)_mm512_unpackhi_epi8(low, _mm512_or_si512(high, signs));
}
#else
inline void load_weights(const int8_t* from, Pairs (&to)[kVectors]) {
  bf16 numbers[2 * kPanel];
  for (int64_t i = 0; i < 2 * kPanel; i += kLanes) {
    bf16 both[kLanes];
    store(both, expand(from + i));
    std::copy_n(both, kLanes / 2, numbers + i / 2);
    std::copy_n(both + kLanes / 2, kLanes / 2, numbers + kPanel + i / 2);
  }
  std::memcpy(to, numbers, sizeof to);
}
#endif

}  // namespace
