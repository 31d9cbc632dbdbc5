// SPDX-License-Identifier: Apache-2.0
// Tensors by name in one far tier: put and got whole, by somebody else's threads while the caller
// goes on. A name has one value at any time: a get has the value that the name had when it was
// begun, a put takes effect at its end, as a whole, and one that fails changes nothing. Of several
// calls on one name the later one stays. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/tensors/mover.h"
#include "allocator/tensors/transfer.h"
#include "allocator/tensors/transfer_queue.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool {

struct TensorStoreOptions {
  /// Bytes of the tier at most.
  Bytes limit = Bytes(~uint64_t{0});
  /// That copy, of a direct tier.
  size_t threads = 1;
  TensorChecksums checksums = TensorChecksums::kNone;
};

/// Since the store was made, but for what there is now.
struct TensorStoreCounts {
  uint64_t tensors = 0;  // now
  Bytes stored;          // now, in tensors that have a name
  Bytes used;            // now, frames of tensors, those under way and being replaced counted
  Bytes held;            // now, frames that no other user of the tier can have
  uint64_t under_way = 0;
  uint64_t puts = 0, gets = 0, failures = 0;
  Bytes put, got;
};

class TensorStore {
 public:
  /// The tier outlives it. Errors: kInvalidArgument (a tier of local memory), kNoMemory.
  static Result<std::unique_ptr<TensorStore>> create(Tier& tier, const TensorStoreOptions& options);
  /// Waits for what is under way. Nobody refers to values any more.
  ~TensorStore();
  TensorStore(const TensorStore&) = delete;
  TensorStore& operator=(const TensorStore&) = delete;

  /// Begins to copy `bytes` to far memory; they are borrowed until the transfer is over. From then
  /// on the name has this value. `description` comes back with it. Errors at once: kNoSpace,
  /// kInvalidArgument (the name is empty or longer than 4096 bytes); in the end: what writing to
  /// the tier can end in.
  Result<std::shared_ptr<TensorTransfer>> put(const std::string& name, std::string description,
                                              std::span<const std::byte> bytes) TP_EXCLUDES(mutex_);
  /// The value that the name has now. Errors: kNotFound.
  Result<std::shared_ptr<TensorValue>> find(const std::string& name) TP_EXCLUDES(mutex_);
  /// Begins to copy a value of find() to `to`, which has its size and is borrowed until the
  /// transfer is over; what is in it after a failure is not to be used. Errors at once:
  /// kInvalidArgument (another size); in the end: those of the tier, kCorrupt (a checksum).
  Result<std::shared_ptr<TensorTransfer>> get(std::shared_ptr<TensorValue> value,
                                              std::span<std::byte> to) TP_EXCLUDES(mutex_);
  /// The name has no value any more; puts of it that were begun come to nothing. Gets that were
  /// begun go on. Errors: kNotFound.
  Status remove(const std::string& name) TP_EXCLUDES(mutex_);

  std::vector<std::string> names() TP_EXCLUDES(mutex_);
  TensorStoreCounts counts() TP_EXCLUDES(mutex_);
  /// Gives frames that are free back to the tier, for its other users.
  void trim() { pool_->trim(); }
  /// Returns when nothing is under way.
  void drain() TP_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::shared_ptr<TensorValue> value;
    uint64_t settled = 0;    // the order of the put or removal that the entry shows
    uint64_t newest = 0;     // the latest put that was begun
    uint64_t under_way = 0;  // puts
  };
  TensorStore(Tier& tier, const TensorStoreOptions& options);
  void ended(TensorTransfer& transfer, const Status& status) TP_EXCLUDES(mutex_);
  void settle(TensorTransfer& transfer, const Status& status,
              std::shared_ptr<TensorValue>& replaced) TP_REQUIRES(mutex_);

  const std::shared_ptr<FramePool> pool_;
  Mutex mutex_;
  CondVar idle_;
  std::map<std::string, Entry> entries_ TP_GUARDED_BY(mutex_);
  uint64_t last_ TP_GUARDED_BY(mutex_) = 0;
  TensorStoreCounts counts_ TP_GUARDED_BY(mutex_);
  TransferQueue queue_;
  std::unique_ptr<TensorMover> mover_;  // goes first
};

}  // namespace tidepool
