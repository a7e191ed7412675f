// Attention of rows over a paged cache.
#pragma once

#include <cmath>
#include <vector>

#include "rows.h"

namespace {

constexpr int64_t kTile = 64;        // keys converted to float32 at a time
constexpr int64_t kRowBlock = 8;     // rows of a sequence in one task
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

// Scores of `count` queries [count, kDim] against `width` <= kTile keys. A lane is a key, and a
// score adds up along kDim, so it does not depend on its neighbours.
template <int kDim, int kQueries>
void score(const float* queries, const float* tile, float* scores, int64_t stride) {
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

template <int kDim, class T>
void score_tile(const T* keys, const int64_t* places, int64_t width, const float* queries,
                int64_t count, float* scores, int64_t stride) {
  alignas(64) float tile[kDim * kTile];  // [kDim, kTile]
  for (int64_t k = 0; k < kTile; k += kLanes)
    for (int i = 0; i < kDim; i += kLanes) {
      Floats block[kLanes] = {};
      for (int64_t j = 0; j < kLanes && k + j < width; ++j)
        block[j] = load(keys + places[k + j] * kDim + i);
      transpose(block);
      for (int j = 0; j < kLanes; ++j) store(tile + (i + j) * kTile + k, block[j]);
    }
  int64_t q = 0;
  for (; q + 4 <= count; q += 4)
    score<kDim, 4>(queries + q * kDim, tile, scores + q * stride, stride);
  for (; q < count; ++q) score<kDim, 1>(queries + q * kDim, tile, scores + q * stride, stride);
}

// sums [kQueries, kDim] += weights [kQueries, width] x values [width, kDim], key after key.
template <int kDim, int kQueries>
void add_values(const float* weights, int64_t stride, const float* tile, int64_t width,
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

template <int kDim, class T>
void add_value_tile(const T* values, const int64_t* places, int64_t width, const float* weights,
                    int64_t stride, int64_t count, float* sums) {
  alignas(64) float tile[kTile * kDim];
  for (int64_t k = 0; k < width; ++k)
    for (int i = 0; i < kDim; i += kLanes)
      store(tile + k * kDim + i, load(values + places[k] * kDim + i));
  constexpr int kQueries = kDim <= 64 ? 4 : 2;  // as many as there are registers for their sums
  int64_t q = 0;
  for (; q + kQueries <= count; q += kQueries)
    add_values<kDim, kQueries>(weights + q * stride, stride, tile, width, sums + q * kDim);
  for (; q < count; ++q)
    add_values<kDim, 1>(weights + q * stride, stride, tile, width, sums + q * kDim);
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
  static thread_local std::vector<float> queries, scores, node_scores, sums, totals;
  const Heads& heads = layer.heads;
  const int64_t shared = heads.queries / heads.keys, count = (end - begin) * shared;
  const T* keys = layer.keys + head * layer.num_slots * kDim;
  const T* values = layer.values + head * layer.num_slots * kDim;
  // Places that lie in order of position: all that a chain sees, the committed ones of a tree.
  const int64_t linear = sequence.start + (sequence.is_chain ? end : 0);
  const int64_t stride = sequence.start + sequence.num_nodes + 2 * kTile;
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
    for (int i = 0; i < kDim; i += kLanes)
      store(&queries[q * kDim + i], load(from + i) * layer.scale);
  }
  for (int64_t k = first; k < linear; k += kTile)
    score_tile<kDim>(keys, sequence.places + k, std::min(kTile, linear - k), queries.data(), count,
                     &scores[k], stride);
  if (!sequence.is_chain) {
    node_scores.resize(count * node_stride);
    for (int64_t k = 0; k < end; k += kTile)
      score_tile<kDim>(keys, sequence.places + sequence.start + k, std::min(kTile, end - k),
                       queries.data(), count, &node_scores[k], node_stride);
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
  }
  for (int64_t k = first; k < linear; k += kTile)
    add_value_tile<kDim>(values, sequence.places + k, std::min(kTile, linear - k), &scores[k],
                         stride, count, sums.data());
  for (int64_t q = 0; q < count; ++q) {
    const int64_t node = node_of(q);
    if (!sequence.is_chain) {
      int64_t path[kMaxDepth];
      for (int64_t on = node; on >= 0; on = sequence.parents[on])
        path[sequence.depths[on]] = sequence.places[sequence.start + on];
      const int64_t skip = std::max<int64_t>(0, seen_from(node) - sequence.start);
      for (int64_t k = skip; k <= sequence.depths[node]; k += kTile)
        add_value_tile<kDim>(values, path + k, std::min(kTile, sequence.depths[node] + 1 - k),
                             &scores[q * stride + sequence.start + k], stride, 1, &sums[q * kDim]);
    }
    T* to = layer.out + (row_of(node) * heads.queries + head * shared + q % shared) * kDim;
    for (int i = 0; i < kDim; i += kLanes) store(to + i, load(&sums[q * kDim + i]) / totals[q]);
  }
}

struct Task {
  const Sequence* sequence;
  int64_t head, begin;
};

inline std::vector<Task> tasks_of(const std::vector<Sequence>& sequences, int64_t heads) {
  std::vector<Task> tasks;
  for (const Sequence& sequence : sequences)
    for (int64_t begin = sequence.first_node; begin < sequence.num_nodes; begin += kRowBlock)
      for (int64_t head = 0; head < heads; ++head) tasks.push_back({&sequence, head, begin});
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
    const int64_t end = std::min(task.begin + kRowBlock, task.sequence->num_nodes);
    attend_nodes<kDim>(layer, *task.sequence, task.head, task.begin, end);
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
