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
/// How far ahead rows are prefetched, in bytes of rows and in rows, and into which cache: measured
/// (see README.md).
constexpr uint32_t kPrefetchBytes = 8192;
constexpr uint32_t kPrefetchRows = 64;
constexpr int kSecondLevel = 2;
/// Of a longer row the processor itself fetches the rest.
constexpr uint32_t kPrefetchedOfRow = 1024;

/// Which rows are asked for while others are added.
struct Ahead {
  size_t distance;  // rows
  size_t last;      // the last row of the batch
  uint32_t bytes;   // what is asked for of each
};

/// How a pass over a bag's rows asks for others.
struct AskNot {
  TP_KERNEL void ask(const std::byte*, uint32_t) {}
};
/// Lines number 0 to kLines - 1, and that of the last byte: a row need not begin with a line.
template <uint32_t kLines>
struct AskLines {
  TP_KERNEL void ask(const std::byte* row, uint32_t bytes) {
#pragma GCC unroll 16
    for (uint32_t line = 0; line < kLines; ++line) {
      __builtin_prefetch(row + line * kCacheLine, 0, kSecondLevel);
    }
    __builtin_prefetch(row + bytes - 1, 0, kSecondLevel);
  }
};
struct AskAll {
  TP_KERNEL void ask(const std::byte* row, uint32_t bytes) {
    for (uint32_t at = 0; at < bytes; at += kCacheLine) {
      __builtin_prefetch(row + at, 0, kSecondLevel);
    }
    __builtin_prefetch(row + bytes - 1, 0, kSecondLevel);
  }
};

/// One bag's columns from `column` on: `Blocks` blocks, the last of which begins at `last_column`
/// and is `extent`. Blocks may overlap: what is computed twice comes out the same.
template <class V, ElementType T, Weighing W, uint32_t Blocks, class Asking, class Extent>
TP_KERNEL void poolColumns(const BagBatch& batch, size_t bag, uint32_t dim, uint32_t column,
                           uint32_t last_column, const Ahead& ahead, Extent extent) {
  using Floats = typename V::Floats;
  const size_t begin = batch.offsets[bag];
  const size_t end = batch.offsets[bag + 1];
  const std::byte* const* const rows = batch.rows;
  Floats sums[Blocks];
  for (uint32_t b = 0; b < Blocks; ++b) sums[b] = V::zero();
  for (size_t i = begin; i < end; ++i) {
    const size_t next = i + ahead.distance;
    Asking::ask(rows[next < ahead.last ? next : ahead.last], ahead.bytes);
    const std::byte* const row = rows[i];
    const float scale = scaleOf<T>(row, dim);
    const float weight = W == Weighing::kGiven ? batch.weights[i] : 1;
#pragma GCC unroll 16
    for (uint32_t b = 0; b < Blocks; ++b) {
      const Floats x = b + 1 < Blocks ? loadElements<V, T>(row, column + b * kBlock, scale, Whole{})
                                      : loadElements<V, T>(row, last_column, scale, extent);
      sums[b] = W == Weighing::kGiven ? V::fma(V::set(weight), x, sums[b]) : V::add(sums[b], x);
    }
  }
  float* const out = batch.out + bag * batch.out_stride;
  const bool divides = batch.pooling == Pooling::kMean && end > begin;
  const Floats count = V::set(static_cast<float>(end - begin));
#pragma GCC unroll 16
  for (uint32_t b = 0; b < Blocks; ++b) {
    const Floats result = V::clean(divides ? V::div(sums[b], count) : sums[b]);
    if (b + 1 < Blocks) {
      V::store(out + column + b * kBlock, result, Whole{});
    } else {
      V::store(out + last_column, result, extent);
    }
  }
}

/// Asks for the batch's first rows, and says how to go on.
TP_KERNEL Ahead lookAhead(const BagBatch& batch, uint32_t row_bytes) {
  const size_t first = batch.offsets[0];
  const size_t end = batch.offsets[batch.bags];
  const uint32_t bytes = row_bytes < kPrefetchedOfRow ? row_bytes : kPrefetchedOfRow;
  const size_t fitting = kPrefetchBytes / bytes + 1;
  const Ahead ahead{fitting < kPrefetchRows ? fitting : kPrefetchRows, end - 1, bytes};
  for (size_t i = first; i < end && i < first + ahead.distance; ++i) {
    AskAll::ask(batch.rows[i], bytes);
  }
  return ahead;
}

/// Of a dim of 16 and more whose elements fit in the registers at once, in `Blocks` blocks.
template <class V, ElementType T, Weighing W, uint32_t Blocks>
void poolNarrow(const BagBatch& batch, uint32_t dim) {
  // All but the last block are whole: so many lines are certain.
  using Asking = AskLines<(Blocks - 1) * kBlock * elementBytes(T) / kCacheLine + 1>;
  const Ahead ahead = lookAhead(batch, weightBytes<T>(dim));
  for (size_t bag = 0; bag < batch.bags; ++bag) {
    poolColumns<V, T, W, Blocks, Asking>(batch, bag, dim, 0, dim - kBlock, ahead, Whole{});
  }
}

/// Of more elements than that: in passes over the bag's rows, the first of which brings them in.
template <class V, ElementType T, Weighing W>
void poolWide(const BagBatch& batch, uint32_t dim) {
  constexpr uint32_t kAtOnce = V::kAccumulators * kBlock;
  const Ahead ahead = lookAhead(batch, weightBytes<T>(dim));
  for (size_t bag = 0; bag < batch.bags; ++bag) {
    poolColumns<V, T, W, V::kAccumulators, AskAll>(batch, bag, dim, 0, kAtOnce - kBlock, ahead,
                                                   Whole{});
    uint32_t column = kAtOnce;
    for (; dim - column >= kAtOnce; column += kAtOnce) {
      poolColumns<V, T, W, V::kAccumulators, AskNot>(batch, bag, dim, column,
                                                     column + kAtOnce - kBlock, ahead, Whole{});
    }
    // The last pass goes back over columns that are done, rather than be of another width.
    if (column < dim) {
      poolColumns<V, T, W, V::kAccumulators, AskNot>(batch, bag, dim, dim - kAtOnce, dim - kBlock,
                                                     ahead, Whole{});
    }
  }
}

template <class V, ElementType T, Weighing W>
void poolLessThanABlock(const BagBatch& batch, uint32_t dim) {
  const Ahead ahead = lookAhead(batch, weightBytes<T>(dim));
  for (size_t bag = 0; bag < batch.bags; ++bag) {
    poolColumns<V, T, W, 1, AskLines<1>>(batch, bag, dim, 0, 0, ahead, Part{dim});
  }
}

/// Tries `Blocks` blocks and fewer.
template <class V, ElementType T, Weighing W, uint32_t Blocks>
TP_KERNEL void poolBlocks(const BagBatch& batch, uint32_t dim, uint32_t blocks) {
  if (blocks == Blocks) return poolNarrow<V, T, W, Blocks>(batch, dim);
  if constexpr (Blocks > 1) return poolBlocks<V, T, W, Blocks - 1>(batch, dim, blocks);
}

template <class V, ElementType T, Weighing W>
TP_KERNEL void poolWeighed(const BagBatch& batch, uint32_t dim) {
  const uint32_t blocks = (dim + kBlock - 1) / kBlock;
  if (dim < kBlock) return poolLessThanABlock<V, T, W>(batch, dim);
  if (blocks > V::kAccumulators) return poolWide<V, T, W>(batch, dim);
  return poolBlocks<V, T, W, V::kAccumulators>(batch, dim, blocks);
}

template <class V, ElementType T>
TP_KERNEL void poolAs(const BagBatch& batch, uint32_t dim) {
  if (batch.weights == nullptr) return poolWeighed<V, T, Weighing::kNone>(batch, dim);
  return poolWeighed<V, T, Weighing::kGiven>(batch, dim);
}

}  // namespace
}  // namespace tidepool
