// SPDX-License-Identifier: Apache-2.0
// Who carries the pieces of a queue to and from a tier: threads that copy, for a direct tier; one
// thread with many requests under way, for a fetch tier. Started when made, gone with the object,
// which waits for what is under way.
#pragma once

#include <memory>

#include "allocator/tensors/transfer_queue.h"
#include "runtime/base/result.h"
#include "runtime/tier/tier.h"

namespace tidepool {

/// Checksums cost a pass over memory that was just copied.
enum class TensorChecksums : uint8_t { kNone = 0, kEveryPiece = 1 };

class TensorMover {
 public:
  virtual ~TensorMover() = default;

  /// `threads` copy. Errors: kNoMemory.
  static Result<std::unique_ptr<TensorMover>> forDirect(DirectTier& tier, TransferQueue& queue,
                                                        size_t threads, TensorChecksums checksums);
  /// Connects when there is something to do. Errors: kNoMemory.
  static Result<std::unique_ptr<TensorMover>> forFetch(FetchTier& tier, TransferQueue& queue,
                                                       TensorChecksums checksums);
};

/// Before a piece is written: notes its checksum, and puts a last page that is not whole together.
/// Returns the memory to write from.
std::byte* beforeWrite(const TransferQueue::Claim& claim, TensorChecksums checksums);
/// The memory to read into.
std::byte* readInto(const TransferQueue::Claim& claim);
/// After a piece was read: takes a last page apart, and checks the checksum. Errors: kCorrupt.
Status afterRead(const TransferQueue::Claim& claim, TensorChecksums checksums);

}  // namespace tidepool
