// SPDX-License-Identifier: Apache-2.0
// The bytes of one tensor in frames of a tier: written once, then never changed; the frames are
// given back when nobody refers to it any more. That is what makes reading safe while the name
// gets another value or is deleted.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "allocator/tensors/frame_pool.h"
#include "runtime/base/result.h"

namespace tidepool {

class TensorValue {
 public:
  /// What goes in one request or copy: whole pages, or the last page, of which `bytes` belong to
  /// the tensor.
  struct Piece {
    FrameRun frames;
    uint64_t offset = 0;  // within the tensor
    Bytes bytes;
    uint64_t checksum = 0;  // XXH3 of the bytes

    bool whole() const { return bytes == toBytes(frames.count); }
  };
  /// Long enough that memcpy() goes past the caches, short enough that several small tensors do
  /// not wait for a large one.
  static constexpr uint64_t kPieceBytes = kMiB;

  /// Takes frames; nothing is in them yet. Errors: kNoSpace.
  static Result<std::shared_ptr<TensorValue>> create(std::shared_ptr<FramePool> pool,
                                                     std::string name, std::string description,
                                                     Bytes size);
  ~TensorValue() { pool_->giveBack(frames_); }
  TensorValue(const TensorValue&) = delete;
  TensorValue& operator=(const TensorValue&) = delete;

  const std::string& name() const { return name_; }
  /// What its owner says of shape and type.
  const std::string& description() const { return description_; }
  Bytes size() const { return size_; }
  size_t pieces() const { return pieces_.size(); }
  const Piece& piece(size_t i) const { return pieces_[i]; }
  /// By who writes the piece, before anybody reads.
  void setChecksum(size_t i, uint64_t checksum) { pieces_[i].checksum = checksum; }

 private:
  TensorValue(std::shared_ptr<FramePool> pool, std::string name, std::string description,
              Bytes size, std::vector<FrameRun> frames);

  const std::shared_ptr<FramePool> pool_;
  const std::string name_, description_;
  const Bytes size_;
  const std::vector<FrameRun> frames_;
  std::vector<Piece> pieces_;
};

}  // namespace tidepool
