// SPDX-License-Identifier: Apache-2.0
// An io_uring for reads and writes of one file each, without its library: rings in memory of the
// caller's process, which a child of fork() has a plain copy of. Used by one thread at a time;
// allocates in create() alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::os {

class Uring {
 public:
  /// Pieces that may be under way: as many as let either ring fit a page.
  static constexpr uint32_t kDepth = 64;
  struct Piece {
    bool writes;
    int fd;
    std::byte* memory;
    uint32_t size;    // bytes
    uint64_t offset;  // in the file, bytes
    uint64_t tag;
  };
  struct Ended {
    uint64_t tag;
    int32_t result;  // bytes, or -errno
  };

  /// Errors: kPermission (a setting or a filter forbids io_uring: the text says which, and how it
  /// is allowed), kUnsupported (before Linux 6.5), kNoMemory.
  static Result<std::unique_ptr<Uring>> create();

  /// Queues a piece; there must be room(). Its memory is borrowed until it has ended. What cannot
  /// be done without waiting for anything but the device ends with -EAGAIN or -EOPNOTSUPP: the
  /// kernel would have a thread do it else, which the program would see among its own.
  void queue(const Piece& piece);
  bool room() const { return under_way_ < kDepth; }
  /// Starts what is queued, as far as the kernel takes it now. False: it never will again; what was
  /// started ends all the same.
  bool submit();
  /// After that: the tag of a piece that was queued and not started. False: there is none.
  bool takeBack(uint64_t& tag);
  /// One that has ended. False: there is none now.
  bool next(Ended& ended);
  /// Pieces queued and not ended.
  uint32_t underWay() const { return under_way_; }
  bool allStarted() const;
  /// Readable for poll(2) while something has ended.
  int fd() const { return fd_.get(); }

 private:
  struct Sqe;
  struct Cqe;
  Uring(UniqueFd fd, Mapping memory) : fd_(std::move(fd)), memory_(std::move(memory)) {}
  std::atomic<uint32_t>& word(uint32_t offset) const {
    return *reinterpret_cast<std::atomic<uint32_t>*>(rings() + offset);
  }
  std::byte* rings() const { return memory_.data() + kPageSize; }
  Sqe* sqes() const { return reinterpret_cast<Sqe*>(memory_.data()); }

  UniqueFd fd_;
  Mapping memory_;  // a page of pieces queued, and one of the two rings
  // Where things lie in the second page.
  uint32_t sq_head_ = 0, sq_tail_ = 0, cq_head_ = 0, cq_tail_ = 0, cqes_ = 0, cq_mask_ = 0;
  uint32_t under_way_ = 0;
};

}  // namespace tidepool::os
