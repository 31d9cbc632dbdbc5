// SPDX-License-Identifier: Apache-2.0
// Tables that another process publishes, for reading: each call sees one generation, the newest
// when it began, whole. Rows are read in place, in memory that all readers of the host share; a
// reader has nothing of its own but buffers of a call, holds no lock, and writes nothing that
// others see. Thread-safe, also in children of fork().
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/publish/image.h"
#include "allocator/table/batch.h"
#include "allocator/table/first_values.h"

namespace tidepool {

class Published {
 public:
  /// Errors: as Image::open().
  static Result<std::unique_ptr<Published>> open(const std::string& path);

  std::span<const ImageTable> tables() const { return image_.tables(); }
  /// By name, its place in tables(). Errors: kNotFound, naming those that there are.
  Result<size_t> find(const std::string& name) const;
  /// The newest, from 1 on.
  uint64_t generation() const { return image_.state().published.load(std::memory_order_acquire); }
  /// When that was published: since 1970. Errors: kTimedOut, as bags().
  Result<Nanoseconds> publishedAt() const;
  /// Calls that had to begin again, because two generations were published meanwhile.
  uint64_t repeated() const { return repeated_.load(std::memory_order_relaxed); }

  /// One table's part of a look-up. Ids of hashed tables without a row give what it would begin
  /// with; none comes into being.
  struct BagCall {
    size_t table;  // its place in tables()
    Batch batch;
    float* out;         // bags x dim
    size_t out_stride;  // floats from one bag's result to the next
  };
  /// Pools the rows of every bag. Returns the generation that all of them are of. Errors, with
  /// outputs undefined: kInvalidArgument; kTimedOut if each of many tries took longer than two
  /// generations.
  Result<uint64_t> bags(std::span<const BagCall> calls) const;
  /// The rows of the ids as float32, dim numbers each. Errors: as bags(), and kNotFound for a
  /// hashed id without a row.
  Result<uint64_t> readRows(size_t table, std::span<const int64_t> ids, float* out) const;

 private:
  explicit Published(Image image);
  template <typename Act>
  Result<uint64_t> whole(Act act) const;
  void bagsOf(const BagCall& call, unsigned half) const;
  void findRows(size_t table, unsigned half, std::span<const int64_t> ids) const;

  const Image image_;
  std::vector<FirstValues> first_values_;  // by table
  mutable std::atomic<uint64_t> repeated_{0};
};

}  // namespace tidepool
