// Sixteen floats at a time, in the compiler's own vector types: loads and stores of both element
// types, sums in a fixed order, a transpose, and an exponential.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef int8_t Bytes __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(32)));

struct bf16 {
  uint16_t bits;
};

inline Floats splat(float x) { return x - Floats{}; }

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Floats load(const bf16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline void store(bf16* to, Floats x) {  // round to nearest, ties to even
  Words words = (Words)x;
  words += 0x7FFFu + ((words >> 16) & 1u);
  Halves halves = __builtin_convertvector(words >> 16, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

inline float sum(Floats x) {
  for (int64_t width = kLanes / 2; width; width /= 2)
    for (int64_t i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
}

inline float maximum(Floats x) {
  for (int64_t width = kLanes / 2; width; width /= 2)
    for (int64_t i = 0; i < width; ++i) x[i] = std::max(x[i], x[i + width]);
  return x[0];
}

// Transposes a 16 x 16 block: exchanges off-diagonal halves, then quarters, and so on.
inline void transpose(Floats (&block)[kLanes]) {
  for (int half = 1; half < kLanes; half *= 2) {
    Ints low, high;
    for (int lane = 0; lane < kLanes; ++lane) {
      low[lane] = lane & half ? kLanes + lane - half : lane;
      high[lane] = lane & half ? kLanes + lane : lane + half;
    }
    for (int i = 0; i < kLanes; ++i) {
      if (i & half) continue;
      const Floats a = block[i], b = block[i + half];
      block[i] = __builtin_shuffle(a, b, low);
      block[i + half] = __builtin_shuffle(a, b, high);
    }
  }
}

// e^x for x <= 88; relative error about 1e-7. Cephes' polynomial; underflows to 0.
inline Floats exponential(Floats x) {
  x = x < -87.0f ? splat(-87.0f) : x;
  const Floats rounded = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the integer in the low bits
  const Floats n = rounded - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints exponent = (Ints)rounded - 0x4B400000;
  return (Floats)((Ints)p + (exponent << 23));
}

}  // namespace
