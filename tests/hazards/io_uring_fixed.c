// SPDX-License-Identifier: Apache-2.0
// io_uring: reads and writes with registered buffers and without, in far memory. A page that a ring
// has pinned must not move while it is being written to.
#include <liburing.h>

#include "tests/hazards/hazard.h"

enum { kBuffers = 16 };
static const size_t kBuffer = 256 * 1024;

static void submitAll(struct io_uring* ring) {
  EXPECT(io_uring_submit(ring) == kBuffers);
  for (int i = 0; i < kBuffers; ++i) {
    struct io_uring_cqe* done_one;
    EXPECT(io_uring_wait_cqe(ring, &done_one) == 0 && done_one->res == (int)kBuffer);
    io_uring_cqe_seen(ring, done_one);
  }
}

int main(void) {
  struct io_uring ring;
  EXPECT(io_uring_queue_init(kBuffers * 2, &ring, 0) == 0);
  const int file = fileOf(kBuffers * kBuffer, 3);
  char* data = farData(kBuffers * kBuffer, 1);
  struct iovec parts[kBuffers];
  for (size_t i = 0; i < kBuffers; ++i) parts[i] = (struct iovec){data + i * kBuffer, kBuffer};
  EXPECT(io_uring_register_buffers(&ring, parts, kBuffers) == 0);
  for (int round = 0; round < 4; ++round) {
    crowd();
    for (unsigned i = 0; i < kBuffers; ++i) {
      io_uring_prep_read_fixed(io_uring_get_sqe(&ring), file, parts[i].iov_base, (unsigned)kBuffer,
                               i * kBuffer, (int)i);
    }
    submitAll(&ring);
    EXPECT(wrongWords(data, kBuffers * kBuffer, 3 + (uint64_t)round) == 0);
    fill(data, kBuffers * kBuffer, 4 + (uint64_t)round);
    crowd();
    for (unsigned i = 0; i < kBuffers; ++i) {
      io_uring_prep_write_fixed(io_uring_get_sqe(&ring), file, parts[i].iov_base, (unsigned)kBuffer,
                                i * kBuffer, (int)i);
    }
    submitAll(&ring);
    memset(data, 0, kBuffers * kBuffer);
  }
  EXPECT(io_uring_unregister_buffers(&ring) == 0);
  crowd();
  for (unsigned i = 0; i < kBuffers; ++i) {
    io_uring_prep_read(io_uring_get_sqe(&ring), file, parts[i].iov_base, (unsigned)kBuffer,
                       i * kBuffer);
  }
  submitAll(&ring);
  io_uring_queue_exit(&ring);
  crowd();
  EXPECT(wrongWords(data, kBuffers * kBuffer, 7) == 0);
  tell("data", data, kBuffers * kBuffer);
  return done("io_uring_fixed");
}
