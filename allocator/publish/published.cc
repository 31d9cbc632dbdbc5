// SPDX-License-Identifier: Apache-2.0
// Published: reads as if nobody wrote, and looks afterwards whether somebody did (a seqlock; Boehm,
// "Can Seqlocks Get Along With Programming Language Memory Models?", 2012). Until then nothing that
// was read is trusted: places are held to the image's bounds, and searches end.
#include "allocator/publish/published.h"

#include <algorithm>

#include "allocator/table/row_addresses.h"
#include "runtime/base/text_buffer.h"

namespace tidepool {
namespace {

// A call is given up when so many tries were overtaken by two generations each.
constexpr size_t kMostTries = 100;
// Look-ups whose rows are found together.
constexpr size_t kPieceLookups = 1024;

struct Scratch {
  std::vector<RecordPlace> places;
  std::vector<const std::byte*> rows;
  std::vector<size_t> absent;
  std::vector<std::byte> initial;  // rows that absent ids would begin with
  std::vector<uint32_t> offsets;
};

Scratch& scratch() {
  static thread_local Scratch buffers;
  return buffers;
}

}  // namespace

Published::Published(Image image) : image_(std::move(image)) {
  for (const ImageTable& table : tables()) {
    first_values_.emplace_back(table.format(), table.initializer());
  }
}

Result<std::unique_ptr<Published>> Published::open(const std::string& path) {
  auto image = Image::open(path);
  if (!image) return tl::unexpected(image.error());
  return std::unique_ptr<Published>(new Published(std::move(*image)));
}

Result<size_t> Published::find(const std::string& name) const {
  ShortText<160> known;
  for (size_t i = 0; i < tables().size(); ++i) {
    if (tables()[i].name() == name) return i;
    known.append(i == 0 ? "" : ", ");
    known.append(tables()[i].name());
  }
  return fail(ErrorCode::kNotFound, "no table called %s is published there; there are %s",
              name.c_str(), known.c_str());
}

/// Calls act(half) until nobody wrote to that half meanwhile. What act() has failed with counts
/// only then.
template <typename Act>
Result<uint64_t> Published::whole(Act act) const {
  const Image::State& state = image_.state();
  for (size_t tried = 0; tried < kMostTries; ++tried) {
    // Acquire: pairs with the release in Publisher::complete().
    const uint64_t generation = state.published.load(std::memory_order_acquire);
    const Status done = act(halfOf(generation));
    // Pairs with the fence in Publisher::publish().
    std::atomic_thread_fence(std::memory_order_acquire);
    if (state.writing.load(std::memory_order_relaxed) <= generation + 1) {
      if (!done) return tl::unexpected(done.error());
      return generation;
    }
    repeated_.fetch_add(1, std::memory_order_relaxed);
  }
  return fail(ErrorCode::kTimedOut,
              "a look-up was overtaken %zu times by two generations that were published while it "
              "ran: look fewer rows up at a time, or publish less often",
              kMostTries);
}

Result<Nanoseconds> Published::publishedAt() const {
  Nanoseconds when;
  const auto seen = whole([&](unsigned half) {
    when = Nanoseconds(image_.state().when[half].load(std::memory_order_relaxed));
    return Status();
  });
  if (!seen) return tl::unexpected(seen.error());
  return when;
}

/// To scratch().rows; null for ids without a row, which are noted in scratch().absent.
void Published::findRows(size_t index, unsigned half, std::span<const int64_t> ids) const {
  const ImageTable& table = tables()[index];
  Scratch& buffers = scratch();
  buffers.rows.resize(ids.size());
  buffers.absent.clear();
  buffers.places.resize(ids.size());
  table.findMany(half, ids, buffers.places.data());
  const bool dense = table.ids() == IdKind::kDense;
  for (size_t i = 0; i < ids.size(); ++i) {
    buffers.rows[i] = table.weights(buffers.places[i]);
    if (buffers.places[i] == 0 && !dense) buffers.absent.push_back(i);
  }
  prefetchRows(buffers.rows.data(), buffers.rows.size(), table.format().weightBytes());
}

void Published::bagsOf(const BagCall& call, unsigned half) const {
  const ImageTable& table = tables()[call.table];
  const Batch& batch = call.batch;
  const size_t stride = table.format().stride();
  Scratch& buffers = scratch();
  for (size_t from = 0; from < batch.bags();) {
    const int64_t start = batch.offsets[from];
    size_t to = from + 1;
    while (to < batch.bags() &&
           batch.offsets[to + 1] - start <= static_cast<int64_t>(kPieceLookups)) {
      ++to;
    }
    const auto first = static_cast<size_t>(start);
    const auto ids = batch.ids.subspan(first, static_cast<size_t>(batch.offsets[to]) - first);
    findRows(call.table, half, ids);
    buffers.initial.resize(buffers.absent.size() * stride);
    for (size_t k = 0; k < buffers.absent.size(); ++k) {
      const size_t i = buffers.absent[k];
      std::byte* const row = &buffers.initial[k * stride];
      first_values_[call.table].encode(static_cast<uint64_t>(ids[i]), row);
      buffers.rows[i] = row;
    }
    buffers.offsets.resize(to - from + 1);
    for (size_t bag = from; bag <= to; ++bag) {
      buffers.offsets[bag - from] = static_cast<uint32_t>(batch.offsets[bag] - start);
    }
    BagBatch bags;
    bags.rows = buffers.rows.data();
    bags.offsets = buffers.offsets.data();
    bags.bags = to - from;
    bags.weights = batch.weights == nullptr ? nullptr : batch.weights + start;
    bags.pooling = batch.pooling;
    bags.out = call.out + from * call.out_stride;
    bags.out_stride = call.out_stride;
    kernels().bag(table.format(), bags);
    from = to;
  }
}

Result<uint64_t> Published::bags(std::span<const BagCall> calls) const {
  for (const BagCall& call : calls) {
    const ImageTable& table = tables()[call.table];
    TP_TRY(checkOffsets(call.batch, table.name().c_str()));
    if (table.ids() == IdKind::kHashed) continue;
    TP_TRY(checkDenseIds(call.batch.ids, table.rows(), table.name().c_str()));
  }
  return whole([&](unsigned half) {
    for (const BagCall& call : calls) bagsOf(call, half);
    return Status();
  });
}

Result<uint64_t> Published::readRows(size_t index, std::span<const int64_t> ids, float* out) const {
  const ImageTable& table = tables()[index];
  if (table.ids() == IdKind::kDense) {
    TP_TRY(checkDenseIds(ids, table.rows(), table.name().c_str()));
  }
  return whole([&](unsigned half) -> Status {
    for (size_t from = 0; from < ids.size(); from += kPieceLookups) {
      const auto piece = ids.subspan(from, std::min(kPieceLookups, ids.size() - from));
      findRows(index, half, piece);
      const Scratch& buffers = scratch();
      if (!buffers.absent.empty()) {
        const size_t at = from + buffers.absent.front();
        return fail(ErrorCode::kNotFound, "table %s: ids[%zu] is %lld, which has no row",
                    table.name().c_str(), at, static_cast<long long>(ids[at]));
      }
      for (size_t i = 0; i < piece.size(); ++i) {
        kernels().decode(table.format(), buffers.rows[i], out + (from + i) * table.format().dim);
      }
    }
    return {};
  });
}

}  // namespace tidepool
