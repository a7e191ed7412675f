// Attention of rows over a paged cache.
#pragma once

#include <omp.h>

#include <cmath>
#include <vector>

#include "rows.h"
#include "tiles.h"

namespace {

constexpr int64_t kRowBlock = 12;    // rows of a sequence in one task, at most
constexpr int64_t kSmallBlock = 4;   // fewer are not worth a task of their own
constexpr int64_t kMaxDepth = 1024;  // of a tree that branches

// The nodes of one sequence, those from `first_node` on being its rows. Node i sees the `start`
// committed places and its ancestors; in a chain these are simply the places before it.
struct Sequence {
  int64_t first_row, num_nodes, start;
  bool is_chain;
  int64_t first_node;
  const int64_t* places;   // slots of the committed places, then of the nodes
  const int64_t* parents;  // the node before each node; -1 for those that hang off the context
  const int64_t* depths;
};

template <class T>
struct Layer {
  const T* qkv;     // [rows, queries + 2 * keys, dim], rotated
  const T* keys;    // of the cache: [keys, slots, dim]
  const T* values;  // likewise
  T* out;           // [rows, queries, dim]
  int64_t num_slots;
  Heads heads;
  float scale;
  int64_t window;
};

// Rows that will be read soon: they lie apart, in blocks that no prefetcher of the CPU's follows.
template <int kDim, class T>
void prefetch_rows(const T* from, const int64_t* places, int64_t count) {
  for (int64_t k = 0; k < count; ++k)
    for (size_t byte = 0; byte < kDim * sizeof(T); byte += 64)
      __builtin_prefetch((const char*)(from + places[k] * kDim) + byte);
}

// Turn scores[begin, end) into weights; the lanes up to `padded` become 0. Returns their sum, added
// up from `begin` on: it depends on what is seen, not on how far the buffer reaches.
float weigh(float* scores, int64_t begin, int64_t end, int64_t padded) {
  std::fill(scores + end, scores + padded + kLanes, -INFINITY);
  Floats best = splat(-INFINITY), total = {};
  for (int64_t i = begin; i < end; i += kLanes) {
    const Floats x = load(scores + i);
    best = x > best ? x : best;
  }
  const float top = maximum(best);
  for (int64_t i = begin; i < end; i += kLanes) {
    Floats x = load(scores + i) - top;
    x = x < -87.0f ? Floats{} : exponential(x);
    store(scores + i, x);
    total += x;
  }
  std::fill(scores + end, scores + padded, 0.0f);
  return sum(total);
}

// Nodes [begin, end) of a sequence, for the query heads that share key head `head`.
template <int kDim, class T>
void attend_nodes(const Layer<T>& layer, const Sequence& sequence, int64_t head, int64_t begin,
                  int64_t end) {
  using Way = WayOf<T>;
  using Number = typename Way::Number;
  static thread_local std::vector<Number> queries;
  static thread_local std::vector<float> scores, node_scores, sums, totals;
  const Heads& heads = layer.heads;
  const int64_t shared = heads.queries / heads.keys, count = (end - begin) * shared;
  const T* keys = layer.keys + head * layer.num_slots * kDim;
  const T* values = layer.values + head * layer.num_slots * kDim;
  // Places that lie in order of position: all that a chain sees, the committed ones of a tree.
  const int64_t linear = sequence.start + (sequence.is_chain ? end : 0);
  // Values are added up in pairs of places: what a tree's paths share ends at an even one.
  const int64_t shared_end = sequence.is_chain ? linear : sequence.start / 2 * 2;
  const int64_t stride = sequence.start + sequence.num_nodes + 2 * kTile;
  constexpr int64_t kNumbers = sizeof(float) / sizeof(Number);
  const int64_t node_stride = sequence.num_nodes + kTile;
  queries.resize(count * kDim);
  scores.resize(count * stride);
  sums.assign(count * kDim, 0.0f);
  totals.resize(count);
  const auto node_of = [&](int64_t q) { return begin + q / shared; };
  const auto row_of = [&](int64_t node) {
    return sequence.first_row + node - sequence.first_node;
  };
  const auto length_of = [&](int64_t node) { return sequence.start + sequence.depths[node] + 1; };
  const auto seen_from = [&](int64_t node) {
    return std::max<int64_t>(0, length_of(node) - layer.window);
  };
  int64_t first = linear;
  for (int64_t node = begin; node < end; ++node) first = std::min(first, seen_from(node));
  first = first / kTile * kTile;
  for (int64_t q = 0; q < count; ++q) {
    const int64_t row = row_of(node_of(q));
    const T* from = layer.qkv + (row * heads.total() + head * shared + q % shared) * kDim;
    Way::take_query(from, layer.scale, kDim, &queries[q * kDim]);
  }
  for (int64_t k = first; k < linear; k += kTile) {
    prefetch_rows<kDim>(keys, sequence.places + k + kTile, std::min(kTile, linear - k - kTile));
    score_tile<kDim>(keys, sequence.places + k, std::min(kTile, linear - k), queries.data(), count,
                     layer.scale, &scores[k], stride);
  }
  prefetch_rows<kDim>(values, sequence.places + first, std::min(kTile, shared_end - first));
  if (!sequence.is_chain) {
    node_scores.resize(count * node_stride);
    for (int64_t k = 0; k < end; k += kTile)
      score_tile<kDim>(keys, sequence.places + sequence.start + k, std::min(kTile, end - k),
                       queries.data(), count, layer.scale, &node_scores[k], node_stride);
  }
  const int64_t padded = sequence.start + sequence.num_nodes + kTile;
  for (int64_t q = 0; q < count; ++q) {
    const int64_t node = node_of(q);
    float* own = &scores[q * stride];
    if (!sequence.is_chain)
      for (int64_t on = node; on >= 0; on = sequence.parents[on])
        own[sequence.start + sequence.depths[on]] = node_scores[q * node_stride + on];
    const int64_t seen = seen_from(node);
    totals[q] = weigh(own, seen, length_of(node), padded);
    std::fill(own + first, own + seen, 0.0f);
    Way::take_weights(own, first, padded);
  }
  const Number* weights = (const Number*)scores.data();
  for (int64_t k = first; k < shared_end; k += kTile) {
    const int64_t left = shared_end - k;
    prefetch_rows<kDim>(values, sequence.places + k + kTile, std::min(kTile, left - kTile));
    add_value_tile<kDim>(values, sequence.places + k, std::min(kTile, left), weights + k,
                         stride * kNumbers, count, sums.data());
  }
  for (int64_t q = 0; q < count; ++q) {
    const int64_t node = node_of(q);
    if (!sequence.is_chain) {
      int64_t path[kMaxDepth + 1];  // from `shared_end` on
      path[0] = sequence.places[shared_end];
      for (int64_t on = node; on >= 0; on = sequence.parents[on])
        path[sequence.start + sequence.depths[on] - shared_end] =
            sequence.places[sequence.start + on];
      const int64_t num_places = length_of(node) - shared_end;
      const int64_t skip = std::max<int64_t>(0, seen_from(node) - shared_end) / 2 * 2;
      for (int64_t k = skip; k < num_places; k += kTile)
        add_value_tile<kDim>(values, path + k, std::min(kTile, num_places - k),
                             weights + q * stride * kNumbers + shared_end + k, stride, 1,
                             &sums[q * kDim]);
    }
    T* to = layer.out + (row_of(node) * heads.queries + head * shared + q % shared) * kDim;
    for (int i = 0; i < kDim; i += kLanes) store(to + i, load(&sums[q * kDim + i]) / totals[q]);
  }
}

struct Task {
  const Sequence* sequence;
  int64_t head, begin, end;
};

// Tasks of nearly equal size, and as many as keep all threads busy.
inline std::vector<Task> tasks_of(const std::vector<Sequence>& sequences, int64_t heads) {
  const int64_t threads = omp_get_max_threads();
  std::vector<Task> tasks;
  for (const Sequence& sequence : sequences) {
    const int64_t rows = sequence.num_nodes - sequence.first_node;
    int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
    while (blocks * heads % threads && rows / (blocks + 1) >= kSmallBlock) ++blocks;
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t head = 0; head < heads; ++head)
        tasks.push_back({&sequence, head, sequence.first_node + b * rows / blocks,
                         sequence.first_node + (b + 1) * rows / blocks});
  }
  return tasks;
}

template <class T>
using Attend = void (*)(const Layer<T>&, const std::vector<Task>&);

// Shared among the threads of the region it is called in, which have all finished when it returns.
template <int kDim, class T>
void attend_all(const Layer<T>& layer, const std::vector<Task>& tasks) {
#pragma omp for schedule(dynamic)
  for (int64_t t = 0; t < int64_t(tasks.size()); ++t) {
    const Task& task = tasks[t];
    attend_nodes<kDim>(layer, *task.sequence, task.head, task.begin, task.end);
  }
}

// Null for a head size that it was not built for.
template <class T>
Attend<T> attend_for(int64_t dim) {
  switch (dim) {
    case 32: return attend_all<32, T>;
    case 64: return attend_all<64, T>;
    case 96: return attend_all<96, T>;
    case 128: return attend_all<128, T>;
    default: return nullptr;
  }
}

}  // namespace
