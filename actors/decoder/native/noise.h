// The shared noise (see actors/noise.py): Philox-4x32-10 and Gumbel variates, and draws under them.
#pragma once

#include <cmath>

#include "vectors.h"

namespace {

constexpr int64_t kBlock = 64;  // counters at a time: everything between stays in the first cache

struct NoiseKey {
  uint64_t seed;
  uint32_t position, stream;
};

// One block of counters (ids[i], position, stream, 0), encrypted; bits[lane][i] is the result.
inline void philox(const uint32_t* ids, NoiseKey key, uint32_t (&bits)[4][kBlock]) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  uint32_t key0 = (uint32_t)key.seed, key1 = (uint32_t)(key.seed >> 32);
  for (int64_t i = 0; i < kBlock; ++i) {
    bits[0][i] = ids[i];
    bits[1][i] = key.position;
    bits[2][i] = key.stream;
    bits[3][i] = 0;
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t i = 0; i < kBlock; ++i) {
      const uint64_t even = kMultiplier0 * bits[0][i], odd = kMultiplier1 * bits[2][i];
      bits[0][i] = (uint32_t)(odd >> 32) ^ bits[1][i] ^ key0;
      bits[2][i] = (uint32_t)(even >> 32) ^ bits[3][i] ^ key1;
      bits[1][i] = (uint32_t)odd;
      bits[3][i] = (uint32_t)even;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// log x for positive normal x: 2 artanh((m - 1) / (m + 1)) + e log 2 with m in [1/sqrt 2, sqrt 2],
// to within a few units of the last place of a double.
inline double logarithm(double x) {
  uint64_t word;
  std::memcpy(&word, &x, sizeof word);
  // Adding what lies between 1/sqrt 2 and 1 makes the exponent that of the nearest power of two.
  const uint64_t shifted = word + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu);
  const double exponent = (double)(int32_t)((int64_t)(shifted >> 52) - 1023);
  word -= (shifted & 0xFFF0000000000000u) - 0x3FF0000000000000u;
  double m;
  std::memcpy(&m, &word, sizeof m);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double series = 2.0 / 19;
  for (int k = 17; k >= 3; k -= 2) series = series * z + 2.0 / k;
  return exponent * 0.693147180559945309417232121458 + (s * z * series + 2.0 * s);
}

// The four variates of each of `count` counters, in order.
inline void gumbel(const uint32_t* ids, int64_t count, NoiseKey key, float* out) {
  constexpr double kUnit = 1.0 / 4294967296.0;
  uint32_t block_ids[kBlock], bits[4][kBlock];
  float variates[4][kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t size = std::min(kBlock, count - first);
    std::fill(block_ids, block_ids + kBlock, 0u);
    std::copy(ids + first, ids + first + size, block_ids);
    philox(block_ids, key, bits);
    for (int lane = 0; lane < 4; ++lane) {
#pragma omp simd
      for (int64_t i = 0; i < kBlock; ++i) {
        // 1 - v is exact, and so is what the logarithm takes from 1: E = -log(1 - v).
        const double rest = 1.0 - ((double)bits[lane][i] + 0.5) * kUnit;
        variates[lane][i] = (float)-logarithm(-logarithm(rest));
      }
    }
    for (int64_t i = 0; i < size; ++i)
      for (int lane = 0; lane < 4; ++lane) out[4 * (first + i) + lane] = variates[lane][i];
  }
}

// The place of the largest x(i) for i < width, the first among equals; `at(i)` gives 16 of them.
template <typename At>
inline int64_t first_largest(At at, int64_t width) {
  Floats best = splat(-INFINITY);
  Ints places = {}, place;
  for (int32_t lane = 0; lane < kLanes; ++lane) place[lane] = lane;
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats x = at(i);
    const Ints better = x > best;
    best = better ? x : best;
    places = better ? place : places;
    place += (int32_t)kLanes;
  }
  int64_t lane = 0;
  for (int64_t other = 1; other < kLanes; ++other)
    if (best[other] > best[lane] || (best[other] == best[lane] && places[other] < places[lane]))
      lane = other;
  return places[lane];
}

inline Floats load_some(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  Floats x = splat(-INFINITY);
  for (int64_t lane = 0; lane < count; ++lane) x[lane] = from[lane];
  return x;
}

// Gumbel-max: the place of the largest l + T * G of a row; without noise, of its largest l.
inline int64_t draw(const float* logits, const float* noise, float temperature, int64_t width) {
  auto plain = [=](int64_t i) { return load_some(logits + i, width - i); };
  auto perturbed = [=](int64_t i) {
    const Floats variates = width - i >= kLanes ? load(noise + i) : load_some(noise + i, width - i);
    return plain(i) + temperature * variates;
  };
  return noise ? first_largest(perturbed, width) : first_largest(plain, width);
}

}  // namespace
