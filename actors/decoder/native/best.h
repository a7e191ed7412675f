// The best few of each row, perturbed or not, with their probabilities.
#pragma once

#include <cmath>

#include "vectors.h"

namespace {

struct Pick {
  int64_t width, count;
};

// Insert `x` into the descending list of `count`; among equals the one that came first is ahead.
inline void insert(float x, int64_t place, float* best, int64_t* places, int64_t count) {
  int64_t at = count - 1;
  for (; at > 0 && best[at - 1] < x; --at) {
    best[at] = best[at - 1];
    places[at] = places[at - 1];
  }
  best[at] = x;
  places[at] = place;
}

inline bool any(Ints flags) {
  int32_t found = 0;
  for (int64_t i = 0; i < kLanes; ++i) found |= flags[i];
  return found != 0;
}

// The best `count` <= width of one row in falling order, softmax over the whole row in `best`.
inline void best_of_row(const float* logits, Pick pick, int64_t* places, float* best) {
  const int64_t whole = pick.width / kLanes * kLanes;
  std::fill(best, best + pick.count, -INFINITY);
  std::fill(places, places + pick.count, 0);
  float& least = best[pick.count - 1];
  for (int64_t i = 0; i < whole; i += kLanes)
    if (any(load(logits + i) > least))
      for (int64_t j = i; j < i + kLanes; ++j)
        if (logits[j] > least) insert(logits[j], j, best, places, pick.count);
  for (int64_t j = whole; j < pick.width; ++j)
    if (logits[j] > least) insert(logits[j], j, best, places, pick.count);
  const float top = best[0];
  if (top == -INFINITY) return std::fill(best, best + pick.count, 0.0f);
  Floats sums = {};
  for (int64_t i = 0; i < whole; i += kLanes) sums += exponential(load(logits + i) - top);
  float total = sum(sums);
  for (int64_t j = whole; j < pick.width; ++j) total += std::exp(logits[j] - top);
  for (int64_t k = 0; k < pick.count; ++k) best[k] = std::exp(best[k] - top) / total;
}

// l + T * G in place.
inline void perturb(float* logits, const float* noise, float temperature, int64_t width) {
  for (int64_t i = 0; i < width; ++i) logits[i] += temperature * noise[i];
}

// Rows without noise (null) are taken as they are; the others are perturbed in place.
inline void best_of_rows(float* logits, int64_t rows, Pick pick, const float* const* noise,
                         const float* temperatures, int64_t* places, float* probabilities) {
#pragma omp parallel for if (rows >= 8)
  for (int64_t r = 0; r < rows; ++r) {
    float* row = logits + r * pick.width;
    if (noise[r]) perturb(row, noise[r], temperatures[r], pick.width);
    best_of_row(row, pick, places + r * pick.count, probabilities + r * pick.count);
  }
}

}  // namespace
