// What is done to each row by itself: norms, rotation, activation. Rows are shared among the threads
// of the region that a function is called in, which have all finished when it returns.
#pragma once

#include <cmath>

#include "vectors.h"

namespace {

template <class T>
void rms_norm_row(const T* row, const T* weight, T* out, int64_t width, float eps) {
  Floats squares = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats x = load(row + i);
    squares += x * x;
  }
  const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
  for (int64_t i = 0; i < width; i += kLanes)
    store(out + i, load(row + i) * scale * load(weight + i));
}

template <class T>
void rms_norm(const T* rows, const T* weight, T* out, int64_t count, int64_t width, float eps) {
#pragma omp for schedule(static)
  for (int64_t r = 0; r < count; ++r)
    rms_norm_row(rows + r * width, weight, out + r * width, width, eps);
}

inline Floats silu(Floats x) {
  const Floats negative = x < -80.0f ? splat(80.0f) : -x;
  return x / (1.0f + exponential(negative));
}

struct Heads {
  int64_t queries, keys, dim;
  int64_t total() const { return queries + 2 * keys; }
};

// Rotate (after an optional norm of each head) the queries and keys of [rows, total, dim] in place,
// and write keys and values to their slots of the cache layer [2, keys, slots, dim].
template <class T>
void rotate_and_store(T* qkv, const float* cosine, const float* sine, const T* query_norm,
                      const T* key_norm, float eps, T* layer, int64_t num_slots,
                      const int64_t* slots, int64_t rows, Heads heads) {
  const int64_t dim = heads.dim, half = dim / 2;
#pragma omp for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const float *c = cosine + r * dim, *s = sine + r * dim;
    for (int64_t h = 0; h < heads.queries + heads.keys; ++h) {
      T* head = qkv + (r * heads.total() + h) * dim;
      const T* norm = h < heads.queries ? query_norm : key_norm;
      if (norm) rms_norm_row(head, norm, head, dim, eps);
      for (int64_t i = 0; i < half; i += kLanes) {
        const Floats low = load(head + i), high = load(head + half + i);
        store(head + i, low * load(c + i) - high * load(s + i));
        store(head + half + i, high * load(c + half + i) + low * load(s + half + i));
      }
    }
    const T* from = qkv + (r * heads.total() + heads.queries) * dim;
    for (int64_t h = 0; h < 2 * heads.keys; ++h)
      std::memcpy(layer + (h * num_slots + slots[r]) * dim, from + h * dim, dim * sizeof(T));
  }
}

}  // namespace
