// What is done to each row by itself: norms, rotation, activation.
#pragma once

#include <cmath>

#include "vectors.h"

namespace {

constexpr int64_t kManyRows = 24;  // from here on, rows are shared among threads

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
void add_rms_norm(T* residual, const T* delta, const T* weight, T* out, int64_t rows, int64_t width,
                  float eps) {
#pragma omp parallel for if (rows >= kManyRows)
  for (int64_t r = 0; r < rows; ++r) {
    T* row = residual + r * width;
    if (delta)
      for (int64_t i = 0; i < width; i += kLanes)
        store(row + i, load(row + i) + load(delta + r * width + i));
    rms_norm_row(row, weight, out + r * width, width, eps);
  }
}

template <class T>
void silu_mul(const T* gate_up, T* out, int64_t rows, int64_t width) {
#pragma omp parallel for if (rows >= kManyRows)
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = gate_up + r * 2 * width;
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats g = load(gate + i);
      const Floats negative = g < -80.0f ? splat(80.0f) : -g;
      store(out + r * width + i, g / (1.0f + exponential(negative)) * load(gate + width + i));
    }
  }
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
#pragma omp parallel for if (rows >= kManyRows)
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
