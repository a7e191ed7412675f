// The forward pass of Llama-like decoders on CPUs.
//
// Rows are worked on one by one, every sum in an order that depends on the row's own position only:
// results are bit for bit the same whatever else is in the step. Arithmetic is float32; elements
// are bfloat16 or float32. Plain C interface, no dependency but OpenMP; vectors are the compiler's
// own, so the same source serves every CPU.
//
// Assumes that head, hidden and intermediate sizes are multiples of 16, that the head size is one
// that attention was built for, and that rows of all matrices are contiguous.

#include "best.h"
#include "layers.h"
#include "noise.h"
#include "products.h"

#define TREESERVE_KERNELS(T, NAME)                                                               \
  extern "C" void run_layers_##NAME(const DecoderShape* shape, const LayerWeights* layers,       \
                                    int64_t num_layers, const Step* step) {                      \
    run_layers<T>(*shape, layers, num_layers, *step);                                            \
  }                                                                                              \
  extern "C" void product_##NAME(const T* x, int64_t rows, const Matrix* matrix, float* out) {   \
    product(x, rows, *matrix, out);                                                              \
  }

TREESERVE_KERNELS(bf16, bfloat16)
TREESERVE_KERNELS(float, float32)

extern "C" void best_of_rows(int64_t rows, int64_t width, int64_t count, float* logits,
                             const float* const* noise, const float* temperatures,
                             int64_t* places, float* probabilities) {
  best_of_rows(logits, rows, {width, count}, noise, temperatures, places, probabilities);
}

extern "C" void draw_rows(int64_t rows, int64_t width, const float* const* logits,
                          const float* const* noise, const float* temperatures, int64_t* places) {
  for (int64_t r = 0; r < rows; ++r)
    places[r] = draw(logits[r], noise[r], temperatures[r], width);
}

extern "C" void gumbel(const uint32_t* ids, int64_t count, uint64_t seed, uint32_t position,
                       uint32_t stream, float* out) {
  gumbel(ids, count, {seed, position, stream}, out);
}
