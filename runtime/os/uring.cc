// SPDX-License-Identifier: Apache-2.0
// See uring.h. The kernel's structures are written out: the headers of Debian 12 do not have the
// field for rings in memory of the caller's (Linux 6.5).
#include "runtime/os/uring.h"

#include <sys/uio.h>

#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/probe.h"

namespace tidepool::os {
namespace {

struct SqOffsets {
  uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, unused;
  uint64_t memory;
};
struct CqOffsets {
  uint32_t head, tail, ring_mask, ring_entries, overflow, cqes, flags, unused;
  uint64_t memory;
};
struct Params {
  uint32_t sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, workqueue,
      unused[3];
  SqOffsets sq;
  CqOffsets cq;
};
static_assert(sizeof(Params) == 120);

constexpr uint32_t kSubmitAll = 1u << 7;    // IORING_SETUP_SUBMIT_ALL
constexpr uint32_t kOwnMemory = 1u << 14;   // IORING_SETUP_NO_MMAP
constexpr uint8_t kRead = 22, kWrite = 23;  // IORING_OP_READ, IORING_OP_WRITE
constexpr uint32_t kNoWait = RWF_NOWAIT;

tl::unexpected<Error> whyNot(int os_error) {
  const auto turned_off = readSysNumber("/proc/sys/kernel/io_uring_disabled");
  if (os_error == EPERM && turned_off && *turned_off != 0) {
    return fail(ErrorCode::kPermission,
                "io_uring is turned off here: `sysctl kernel.io_uring_disabled=0` allows it");
  }
  if (os_error == EPERM || os_error == EACCES || os_error == ENOSYS) {
    return fail(ErrorCode::kPermission,
                "a filter forbids io_uring: let the container's seccomp profile pass "
                "io_uring_setup and io_uring_enter");
  }
  if (os_error == EINVAL) return fail(ErrorCode::kUnsupported, "io_uring as needed is Linux 6.5's");
  return tl::unexpected(Error::fromErrno(ErrorCode::kNoMemory, os_error, "no io_uring"));
}

}  // namespace

struct Uring::Sqe {
  uint8_t opcode, flags;
  uint16_t priority;
  int32_t fd;
  uint64_t offset;
  uint64_t memory;
  uint32_t size;
  uint32_t rw_flags;
  uint64_t tag;
  uint64_t unused[3];
};
struct Uring::Cqe {
  uint64_t tag;
  int32_t result;
  uint32_t flags;
};

Result<std::unique_ptr<Uring>> Uring::create() {
  static_assert(sizeof(Sqe) == 64 && sizeof(Sqe) * kDepth == kPageSize && sizeof(Cqe) == 16);
  auto memory = Mapping::anonymous(Bytes(2 * kPageSize));
  if (!memory) return tl::unexpected(memory.error());
  Params params{};
  params.flags = kSubmitAll | kOwnMemory;
  params.sq.memory = reinterpret_cast<uintptr_t>(memory->data());
  params.cq.memory = params.sq.memory + kPageSize;
  UniqueFd fd(static_cast<int>(raw::call(SYS_io_uring_setup, kDepth, &params)));
  if (!fd.valid()) return whyNot(errno);
  fd.keep();
  std::unique_ptr<Uring> ring(new Uring(std::move(fd), std::move(*memory)));
  ring->sq_head_ = params.sq.head;
  ring->sq_tail_ = params.sq.tail;
  ring->cq_head_ = params.cq.head;
  ring->cq_tail_ = params.cq.tail;
  ring->cqes_ = params.cq.cqes;
  ring->cq_mask_ = params.cq_entries - 1;
  auto* const array = reinterpret_cast<uint32_t*>(ring->rings() + params.sq.array);
  for (uint32_t i = 0; i < kDepth; ++i) array[i] = i;
  return ring;
}

void Uring::queue(const Piece& piece) {
  TP_CHECK(room());
  // The tail is ours alone. Release pairs with the kernel's acquire.
  const uint32_t tail = word(sq_tail_).load(std::memory_order_relaxed);
  sqes()[tail % kDepth] = {.opcode = piece.writes ? kWrite : kRead,
                           .flags = 0,
                           .priority = 0,
                           .fd = piece.fd,
                           .offset = piece.offset,
                           .memory = reinterpret_cast<uintptr_t>(piece.memory),
                           .size = piece.size,
                           .rw_flags = kNoWait,
                           .tag = piece.tag,
                           .unused = {}};
  word(sq_tail_).store(tail + 1, std::memory_order_release);
  ++under_way_;
}

bool Uring::allStarted() const {
  // Acquire pairs with the kernel's release of what it has taken.
  return word(sq_head_).load(std::memory_order_acquire) ==
         word(sq_tail_).load(std::memory_order_relaxed);
}

bool Uring::submit() {
  while (!allStarted()) {
    const uint32_t queued = word(sq_tail_).load(std::memory_order_relaxed) -
                            word(sq_head_).load(std::memory_order_acquire);
    const long taken = raw::call(SYS_io_uring_enter, fd_.get(), queued, 0u, 0u, nullptr, size_t{0});
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) return errno == EAGAIN || errno == EBUSY;  // for want of memory: later
    if (taken == 0) break;
  }
  return true;
}

bool Uring::takeBack(uint64_t& tag) {
  if (allStarted()) return false;
  const uint32_t tail = word(sq_tail_).load(std::memory_order_relaxed) - 1;
  tag = sqes()[tail % kDepth].tag;
  word(sq_tail_).store(tail, std::memory_order_release);
  --under_way_;
  return true;
}

bool Uring::next(Ended& ended) {
  const uint32_t head = word(cq_head_).load(std::memory_order_relaxed);
  // Acquire pairs with the kernel's release of what it has filled in; ours with its acquire.
  if (head == word(cq_tail_).load(std::memory_order_acquire)) return false;
  const Cqe& entry = reinterpret_cast<const Cqe*>(rings() + cqes_)[head & cq_mask_];
  ended = {entry.tag, entry.result};
  word(cq_head_).store(head + 1, std::memory_order_release);
  --under_way_;
  return true;
}

}  // namespace tidepool::os
