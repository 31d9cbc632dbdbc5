// SPDX-License-Identifier: Apache-2.0
// Pools bags of rows: what lookups spend their time in. Sums are held in registers; rows are
// prefetched some way ahead, whatever bag they belong to. For the files of one instruction set
// alone; V is the block's operations.
#pragma once

#include "allocator/kernels/elements.h"
#include "allocator/kernels/kernels.h"

namespace tidepool {
namespace {

enum class Weighing { kNone, kGiven };

constexpr uint32_t kCacheLine = 64;
/// How far ahead rows are prefetched, in bytes of rows and in rows: measured (see README.md).
constexpr uint32_t kPrefetchBytes = 4096;
constexpr uint32_t kPrefetchRows = 32;
/// Of a row longer than this the processor itself fetches the rest.
constexpr uint32_t kPrefetchedOfRow = 1024;

/// Asks for the cache lines that `bytes` bytes at `row` lie in.
TP_KERNEL void prefetch(const std::byte* row, uint32_t bytes) {
  const uint32_t wanted = bytes < kPrefetchedOfRow ? bytes : kPrefetchedOfRow;
  for (uint32_t at = 0; at < wanted; at += kCacheLine) __builtin_prefetch(row + at);
  __builtin_prefetch(row + wanted - 1);  // a row need not begin with a line
}

/// Which rows are asked for while others are added.
struct Ahead {
  size_t distance;  // rows
  size_t last;      // the last row of the batch
  uint32_t bytes;   // a row; 0: they have been asked for
};

/// Columns [column, column + Blocks * kBlock) of one bag; the last block is `extent` of it.
template <class V, ElementType T, Weighing W, uint32_t Blocks, class Extent>
TP_KERNEL void poolColumns(const BagBatch& batch, size_t bag, uint32_t dim, uint32_t column,
                           const Ahead& ahead, Extent extent) {
  using Floats = typename V::Floats;
  const size_t begin = batch.offsets[bag];
  const size_t end = batch.offsets[bag + 1];
  Floats sums[Blocks];
  for (uint32_t b = 0; b < Blocks; ++b) sums[b] = V::zero();
  for (size_t i = begin; i < end; ++i) {
    if (ahead.bytes != 0) {
      const size_t next = i + ahead.distance;
      prefetch(batch.rows[next < ahead.last ? next : ahead.last], ahead.bytes);
    }
    const std::byte* const row = batch.rows[i];
    const float scale = scaleOf<T>(row, dim);
    const float weight = W == Weighing::kGiven ? batch.weights[i] : 1;
#pragma GCC unroll 16
    for (uint32_t b = 0; b < Blocks; ++b) {
      const uint32_t at = column + b * kBlock;
      const Floats x = b + 1 < Blocks ? loadElements<V, T>(row, at, scale, Whole{})
                                      : loadElements<V, T>(row, at, scale, extent);
      sums[b] = W == Weighing::kGiven ? V::fma(V::set(weight), x, sums[b]) : V::add(sums[b], x);
    }
  }
  float* const out = batch.out + bag * batch.out_stride + column;
  const bool divides = batch.pooling == Pooling::kMean && end > begin;
  const Floats count = V::set(static_cast<float>(end - begin));
#pragma GCC unroll 16
  for (uint32_t b = 0; b < Blocks; ++b) {
    const Floats result = V::clean(divides ? V::div(sums[b], count) : sums[b]);
    if (b + 1 < Blocks) {
      V::store(out + b * kBlock, result, Whole{});
    } else {
      V::store(out + b * kBlock, result, extent);
    }
  }
}

TP_KERNEL Ahead lookAhead(const BagBatch& batch, uint32_t bytes) {
  const size_t rows = batch.offsets[batch.bags];
  const size_t fitting = kPrefetchBytes / bytes + 1;
  const Ahead ahead{fitting < kPrefetchRows ? fitting : kPrefetchRows, rows - 1, bytes};
  const size_t first = batch.offsets[0];
  for (size_t i = first; i < rows && i < first + ahead.distance; ++i) {
    prefetch(batch.rows[i], bytes);
  }
  return ahead;
}

/// Of a dim that is known when this is compiled.
template <class V, ElementType T, Weighing W, uint32_t Dim>
void poolOf(const BagBatch& batch) {
  constexpr uint32_t kBlocks =
      Dim / kBlock < V::kAccumulators ? Dim / kBlock : uint32_t{V::kAccumulators};
  constexpr uint32_t kBytes = weightBytes<T>(Dim);
  Ahead ahead = lookAhead(batch, kBytes);
  for (size_t bag = 0; bag < batch.bags; ++bag) {
    ahead.bytes = kBytes;
    poolColumns<V, T, W, kBlocks>(batch, bag, Dim, 0, ahead, Whole{});
    ahead.bytes = 0;
    for (uint32_t column = kBlocks * kBlock; column < Dim; column += kBlocks * kBlock) {
      poolColumns<V, T, W, kBlocks>(batch, bag, Dim, column, ahead, Whole{});
    }
  }
}

/// As many columns of a bag from `column` on as go by groups of `Blocks` blocks.
template <class V, ElementType T, Weighing W, uint32_t Blocks>
TP_KERNEL void poolGroups(const BagBatch& batch, size_t bag, uint32_t dim, uint32_t& column,
                          Ahead& ahead) {
  if constexpr (Blocks <= V::kAccumulators) {
    for (; dim - column >= Blocks * kBlock; column += Blocks * kBlock) {
      poolColumns<V, T, W, Blocks>(batch, bag, dim, column, ahead, Whole{});
      ahead.bytes = 0;
    }
  }
}

template <class V, ElementType T, Weighing W>
void poolAny(const BagBatch& batch, uint32_t dim) {
  const uint32_t bytes = weightBytes<T>(dim);
  Ahead ahead = lookAhead(batch, bytes);
  for (size_t bag = 0; bag < batch.bags; ++bag) {
    ahead.bytes = bytes;
    uint32_t column = 0;
    poolGroups<V, T, W, 16>(batch, bag, dim, column, ahead);
    poolGroups<V, T, W, 8>(batch, bag, dim, column, ahead);
    poolGroups<V, T, W, 4>(batch, bag, dim, column, ahead);
    poolGroups<V, T, W, 2>(batch, bag, dim, column, ahead);
    poolGroups<V, T, W, 1>(batch, bag, dim, column, ahead);
    if (column < dim) {
      poolColumns<V, T, W, 1>(batch, bag, dim, column, ahead, Part{dim - column});
    }
  }
}

template <class V, ElementType T, Weighing W>
TP_KERNEL void poolWeighed(const BagBatch& batch, uint32_t dim) {
  // Without registers enough there is nothing to gain.
  if constexpr (V::kAccumulators < 4) return poolAny<V, T, W>(batch, dim);
  switch (dim) {
    case 16:
      return poolOf<V, T, W, 16>(batch);
    case 32:
      return poolOf<V, T, W, 32>(batch);
    case 64:
      return poolOf<V, T, W, 64>(batch);
    case 128:
      return poolOf<V, T, W, 128>(batch);
    case 256:
      return poolOf<V, T, W, 256>(batch);
    default:
      return poolAny<V, T, W>(batch, dim);
  }
}

template <class V, ElementType T>
TP_KERNEL void poolAs(const BagBatch& batch, uint32_t dim) {
  if (batch.weights == nullptr) return poolWeighed<V, T, Weighing::kNone>(batch, dim);
  return poolWeighed<V, T, Weighing::kGiven>(batch, dim);
}

}  // namespace
}  // namespace tidepool
