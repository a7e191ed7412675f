// What a step of the fused forward does between its matrix products, on CPUs.
//
// Rows are worked on one by one, every sum in an order that depends on the row's own position only:
// results are bit for bit the same whatever else is in the step. Arithmetic is float32; elements
// are bfloat16 or float32. Plain C interface, no dependency but OpenMP; vectors are the compiler's
// own, so the same source serves every CPU.
//
// Assumes that head_dim, hidden and intermediate sizes are multiples of 16, and that rows of all
// matrices are contiguous.

#include "attention.h"
#include "best.h"
#include "rows.h"

#define TREESERVE_KERNELS(T, NAME)                                                                \
  extern "C" void add_rms_norm_##NAME(T* residual, const T* delta, const T* weight, T* out,       \
                                      int64_t rows, int64_t width, float eps) {                   \
    add_rms_norm(residual, delta, weight, out, rows, width, eps);                                 \
  }                                                                                               \
  extern "C" void silu_mul_##NAME(const T* gate_up, T* out, int64_t rows, int64_t width) {        \
    silu_mul(gate_up, out, rows, width);                                                          \
  }                                                                                               \
  extern "C" void rotate_and_store_##NAME(                                                        \
      T* qkv, const float* cosine, const float* sine, const T* query_norm, const T* key_norm,     \
      float eps, T* layer, int64_t num_slots, const int64_t* slots, int64_t rows,                 \
      int64_t queries, int64_t keys, int64_t dim) {                                               \
    rotate_and_store(qkv, cosine, sine, query_norm, key_norm, eps, layer, num_slots, slots, rows, \
                     {queries, keys, dim});                                                       \
  }                                                                                               \
  extern "C" int attend_##NAME(const T* qkv, const T* layer, T* out, int64_t num_slots,           \
                               int64_t queries, int64_t keys, int64_t dim, float scale,           \
                               int64_t window, int64_t num_sequences, const int64_t* spans,       \
                               const int64_t* places, const int64_t* parents,                     \
                               const int64_t* depths) {                                           \
    const T* values = layer + keys * num_slots * dim;                                             \
    return attend(                                                                                \
        Layer<T>{qkv, layer, values, out, num_slots, {queries, keys, dim}, scale, window},        \
        num_sequences, spans, places, parents, depths);                                           \
  }

TREESERVE_KERNELS(bf16, bfloat16)
TREESERVE_KERNELS(float, float32)

extern "C" void best_of_rows(const float* logits, int64_t rows, int64_t width, int64_t count,
                             int64_t* places, float* probabilities) {
  best_of_rows(logits, rows, {width, count}, places, probabilities);
}
