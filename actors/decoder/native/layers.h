// All layers of a Llama-like decoder in one go: threads are woken once a step, not for each
// operation, and meet where one operation needs all of the one before.
#pragma once

#include <vector>

#include "attention.h"
#include "products.h"
#include "rows.h"

namespace {

struct DecoderShape {
  int64_t queries, keys, dim, hidden, intermediate;
  float eps, scale;
};

// Norms are of the model's type, [hidden] or [dim]. Columns of `gate_up` alternate in vectors: 16 of
// the gate, 16 of the other.
struct LayerWeights {
  const void* input_norm;
  Matrix qkv;
  const void *query_norm, *key_norm;  // or null
  int64_t window;
  Matrix out;
  const void* post_norm;
  Matrix gate_up, down;
};

// One step. `spans` has for each sequence first_row, num_nodes, start, is_chain, first_node, and
// where its places and its nodes begin; `parents` and `depths` have one entry a node.
struct Step {
  int64_t rows, num_sequences, num_slots;
  void* residual;                    // [rows, hidden] before the first layer; changed
  const float *cosines, *sines;      // [rows, dim]
  const int64_t* slots;              // [rows]
  const int64_t *spans, *places, *parents, *depths;
  void* kv;                          // [layers, 2, keys, slots, dim]
  const void* final_norm;            // null for none: the result is the residual then
  void* result;                      // [rows, hidden]
};

inline std::vector<Sequence> sequences_of(const Step& step) {
  std::vector<Sequence> sequences;
  for (const int64_t* s = step.spans; s != step.spans + 7 * step.num_sequences; s += 7)
    sequences.push_back({s[0], s[1], s[2], bool(s[3]), s[4], step.places + s[5],
                         step.parents + s[6], step.depths + s[6]});
  return sequences;
}

template <class T>
void add_product(const T* x, int64_t rows, const Matrix& matrix, T* residual) {
  multiply(x, rows, matrix, [&](int64_t row, int64_t column, Floats low, Floats high) {
    T* to = residual + row * matrix.out + column;
    store(to, load(to) + low);
    if (column + kLanes < matrix.out) store(to + kLanes, load(to + kLanes) + high);
  });
}

template <class T>
void store_product(const T* x, int64_t rows, const Matrix& matrix, T* out) {
  multiply(x, rows, matrix, [&](int64_t row, int64_t column, Floats low, Floats high) {
    T* to = out + row * matrix.out + column;
    store(to, low);
    if (column + kLanes < matrix.out) store(to + kLanes, high);
  });
}

// silu(gate) * up.
template <class T>
void store_gated(const T* x, int64_t rows, const Matrix& matrix, T* out) {
  multiply(x, rows, matrix, [&](int64_t row, int64_t column, Floats gate, Floats up) {
    store(out + row * (matrix.out / 2) + column / 2, silu(gate) * up);
  });
}

template <class T>
void run_layers(const DecoderShape& shape, const LayerWeights* layers, int64_t num_layers,
                const Step& step) {
  const Heads heads{shape.queries, shape.keys, shape.dim};
  const int64_t rows = step.rows, layer_size = 2 * shape.keys * step.num_slots * shape.dim;
  T* residual = (T*)step.residual;
  std::vector<T> normed(rows * shape.hidden), qkv(rows * heads.total() * shape.dim),
      attended(rows * shape.queries * shape.dim), gated(rows * shape.intermediate);
  const std::vector<Sequence> sequences = sequences_of(step);
  const std::vector<Task> tasks = tasks_of(sequences, shape.keys);
  const Attend<T> attend = attend_for<T>(shape.dim);
#pragma omp parallel
  for (int64_t l = 0; l < num_layers; ++l) {
    const LayerWeights& layer = layers[l];
    T* kv = (T*)step.kv + l * layer_size;
    rms_norm(residual, (const T*)layer.input_norm, normed.data(), rows, shape.hidden, shape.eps);
    store_product(normed.data(), rows, layer.qkv, qkv.data());
    rotate_and_store(qkv.data(), step.cosines, step.sines, (const T*)layer.query_norm,
                     (const T*)layer.key_norm, shape.eps, kv, step.num_slots, step.slots, rows,
                     heads);
    attend({qkv.data(), kv, kv + layer_size / 2, attended.data(), step.num_slots, heads,
            shape.scale, layer.window},
           tasks);
    add_product(attended.data(), rows, layer.out, residual);
    rms_norm(residual, (const T*)layer.post_norm, normed.data(), rows, shape.hidden, shape.eps);
    store_gated(normed.data(), rows, layer.gate_up, gated.data());
    add_product(gated.data(), rows, layer.down, residual);
  }
  if (!step.final_norm) return;
#pragma omp parallel
  rms_norm(residual, (const T*)step.final_norm, (T*)step.result, rows, shape.hidden, shape.eps);
}

}  // namespace
