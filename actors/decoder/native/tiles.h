// Tiles of keys and values, and what queries make of them. There are two ways: `Wide` converts to
// float32; `Paired` multiplies pairs of bfloat16 and adds up in float32, where the CPU can, which
// also halves the work of turning a tile round.
#pragma once

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "vectors.h"

namespace {

constexpr int64_t kTile = 64;  // keys at a time

// Call `work(first, count as a constant)` for all of `total` in groups of up to kMost.
template <int kMost, class Work>
void rest(int64_t first, int64_t count, Work& work) {
  if (count == kMost) work(first, std::integral_constant<int, kMost>());
  if constexpr (kMost > 1)
    if (count < kMost) rest<kMost - 1>(first, count, work);
}

template <int kMost, class Work>
void in_groups(int64_t total, Work work) {
  int64_t first = 0;
  for (; first + kMost <= total; first += kMost)
    work(first, std::integral_constant<int, kMost>());
  if (first < total) rest<kMost>(first, total - first, work);
}

template <class T>
struct Wide {
  using Number = float;
  static constexpr int kMostQueries = 4;

  static void take_query(const T* from, float scale, int64_t dim, float* to) {
    for (int64_t i = 0; i < dim; i += kLanes) store(to + i, load(from + i) * scale);
  }

  // [kDim, kTile]
  template <int kDim>
  static void take_keys(const T* keys, const int64_t* places, int64_t width, float* tile) {
    for (int64_t k = 0; k < kTile; k += kLanes)
      for (int i = 0; i < kDim; i += kLanes) {
        Floats block[kLanes] = {};
        for (int64_t j = 0; j < kLanes && k + j < width; ++j)
          block[j] = load(keys + places[k + j] * kDim + i);
        transpose(block);
        for (int j = 0; j < kLanes; ++j) store(tile + (i + j) * kTile + k, block[j]);
      }
  }

  // A lane is a key, and a score adds up along kDim, so it does not depend on its neighbours.
  template <int kDim, int kQueries>
  static void score(const float* queries, const float* tile, float, float* scores,
                    int64_t stride) {
    constexpr int kVectors = kTile / kLanes;
    Floats acc[kQueries][kVectors] = {};
    for (int i = 0; i < kDim; ++i)
      for (int v = 0; v < kVectors; ++v) {
        const Floats key = load(tile + i * kTile + v * kLanes);
        for (int q = 0; q < kQueries; ++q) acc[q][v] += queries[q * kDim + i] * key;
      }
    for (int q = 0; q < kQueries; ++q)
      for (int v = 0; v < kVectors; ++v) store(scores + q * stride + v * kLanes, acc[q][v]);
  }

  // Weights are taken as they are.
  static void take_weights(float*, int64_t, int64_t) {}

  // [width, kDim]
  template <int kDim>
  static void take_values(const T* values, const int64_t* places, int64_t width, float* tile) {
    for (int64_t k = 0; k < width; ++k)
      for (int i = 0; i < kDim; i += kLanes)
        store(tile + k * kDim + i, load(values + places[k] * kDim + i));
  }

  // sums [kQueries, kDim] += weights [kQueries, width] x values, key after key.
  template <int kDim, int kQueries>
  static void add_values(const float* weights, int64_t stride, const float* tile, int64_t width,
                         float* sums) {
    constexpr int kVectors = kDim / kLanes;
    Floats acc[kQueries][kVectors];
    for (int q = 0; q < kQueries; ++q)
      for (int v = 0; v < kVectors; ++v) acc[q][v] = load(sums + q * kDim + v * kLanes);
    for (int64_t k = 0; k < width; ++k)
      for (int v = 0; v < kVectors; ++v) {
        const Floats value = load(tile + k * kDim + v * kLanes);
        for (int q = 0; q < kQueries; ++q) acc[q][v] += weights[q * stride + k] * value;
      }
    for (int q = 0; q < kQueries; ++q)
      for (int v = 0; v < kVectors; ++v) store(sums + q * kDim + v * kLanes, acc[q][v]);
  }
};

#if defined(__AVX512BF16__)

// Pairs are of dimensions that stand side by side for keys, and of places 2j and 2j + 1 for values:
// a weight's partner depends on its position alone. Weights are rounded to bfloat16.
struct Paired {
  using Number = bf16;
  static constexpr int kMostQueries = 6;

  static __m512i pair_of(const bf16* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return _mm512_set1_epi32(pair);
  }

  static Floats add_product(Floats sums, __m512i a, __m512i b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
  }

  static void take_query(const bf16* from, float, int64_t dim, bf16* to) {
    std::copy_n(from, dim, to);
  }

  // [kDim / 2, kTile] pairs
  template <int kDim>
  static void take_keys(const bf16* keys, const int64_t* places, int64_t width, bf16* tile) {
    for (int64_t k = 0; k < kTile; k += kLanes)
      for (int i = 0; i < kDim; i += 2 * kLanes) {
        Floats block[kLanes] = {};
        for (int64_t j = 0; j < kLanes && k + j < width; ++j)
          std::memcpy(&block[j], keys + places[k + j] * kDim + i, sizeof block[j]);
        transpose(block);
        for (int j = 0; j < kLanes; ++j)
          std::memcpy(tile + ((i / 2 + j) * kTile + k) * 2, &block[j], sizeof block[j]);
      }
  }

  template <int kDim, int kQueries>
  static void score(const bf16* queries, const bf16* tile, float scale, float* scores,
                    int64_t stride) {
    constexpr int kVectors = kTile / kLanes;
    Floats acc[kQueries][kVectors] = {};
    for (int i = 0; i < kDim / 2; ++i) {
      __m512i key[kVectors];
      for (int v = 0; v < kVectors; ++v)
        key[v] = _mm512_loadu_si512(tile + (i * kTile + v * kLanes) * 2);
      for (int q = 0; q < kQueries; ++q) {
        const __m512i query = pair_of(queries + q * kDim + 2 * i);
        for (int v = 0; v < kVectors; ++v) acc[q][v] = add_product(acc[q][v], key[v], query);
      }
    }
    for (int q = 0; q < kQueries; ++q)
      for (int v = 0; v < kVectors; ++v)
        store(scores + q * stride + v * kLanes, acc[q][v] * scale);
  }

  // Rounds weights [first, end) in place: the row of float32 becomes one of bfloat16.
  static void take_weights(float* row, int64_t first, int64_t end) {
    char* bytes = (char*)row;
    for (int64_t k = first; k < end; k += kLanes) {
      const __m256bh rounded = _mm512_cvtneps_pbh((__m512)load(row + k));
      std::memcpy(bytes + 2 * k, &rounded, sizeof rounded);
    }
  }

  // [width / 2, kDim] pairs; one that has no partner has a zero.
  template <int kDim>
  static void take_values(const bf16* values, const int64_t* places, int64_t width, bf16* tile) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int64_t k = 0; k < width; k += 2)
      for (int i = 0; i < kDim; i += 2 * kLanes) {
        const __m512i a = _mm512_loadu_si512(values + places[k] * kDim + i);
        const __m512i b = k + 1 < width ? _mm512_loadu_si512(values + places[k + 1] * kDim + i)
                                        : _mm512_setzero_si512();
        _mm512_storeu_si512(tile + k * kDim + 2 * i, _mm512_permutex2var_epi16(a, low, b));
        _mm512_storeu_si512(tile + k * kDim + 2 * i + 2 * kLanes,
                            _mm512_permutex2var_epi16(a, high, b));
      }
  }

  template <int kDim, int kQueries>
  static void add_values(const bf16* weights, int64_t stride, const bf16* tile, int64_t width,
                         float* sums) {
    constexpr int kVectors = kDim / kLanes;
    Floats acc[kQueries][kVectors];
    for (int q = 0; q < kQueries; ++q)
      for (int v = 0; v < kVectors; ++v) acc[q][v] = load(sums + q * kDim + v * kLanes);
    for (int64_t k = 0; k < width; k += 2) {
      __m512i value[kVectors];
      for (int v = 0; v < kVectors; ++v)
        value[v] = _mm512_loadu_si512(tile + k * kDim + 2 * v * kLanes);
      for (int q = 0; q < kQueries; ++q) {
        const __m512i weight = pair_of(weights + q * stride + k);
        for (int v = 0; v < kVectors; ++v) acc[q][v] = add_product(acc[q][v], value[v], weight);
      }
    }
    for (int q = 0; q < kQueries; ++q)
      for (int v = 0; v < kVectors; ++v) store(sums + q * kDim + v * kLanes, acc[q][v]);
  }
};

template <class T>
using WayOf = std::conditional_t<std::is_same_v<T, bf16>, Paired, Wide<T>>;

#else

template <class T>
using WayOf = Wide<T>;

#endif

template <int kDim, class T>
void score_tile(const T* keys, const int64_t* places, int64_t width,
                const typename WayOf<T>::Number* queries, int64_t count, float scale,
                float* scores, int64_t stride) {
  using Way = WayOf<T>;
  alignas(64) typename Way::Number tile[kDim * kTile];
  Way::template take_keys<kDim>(keys, places, width, tile);
  in_groups<Way::kMostQueries>(count, [&](int64_t q, auto number) {
    Way::template score<kDim, number()>(queries + q * kDim, tile, scale, scores + q * stride,
                                        stride);
  });
}

// `stride` and `weights` in numbers.
template <int kDim, class T>
void add_value_tile(const T* values, const int64_t* places, int64_t width,
                    const typename WayOf<T>::Number* weights, int64_t stride, int64_t count,
                    float* sums) {
  using Way = WayOf<T>;
  alignas(64) typename Way::Number tile[kDim * kTile];
  Way::template take_values<kDim>(values, places, width, tile);
  // As many as there are registers for their sums.
  constexpr int kQueries = kDim <= 64 ? Way::kMostQueries : Way::kMostQueries / 2;
  in_groups<kQueries>(count, [&](int64_t q, auto number) {
    Way::template add_values<kDim, number()>(weights + q * stride, stride, tile, width,
                                             sums + q * kDim);
  });
}

}  // namespace
