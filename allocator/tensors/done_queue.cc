// SPDX-License-Identifier: Apache-2.0
// DoneQueue over an eventfd, which is written once for any number of tokens.
#include "allocator/tensors/done_queue.h"

#include <sys/eventfd.h>

namespace tidepool {

Result<std::shared_ptr<DoneQueue>> DoneQueue::create() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return failErrno(ErrorCode::kNoMemory, "no descriptor to wait with");
  return std::shared_ptr<DoneQueue>(new DoneQueue(std::move(fd)));
}

void DoneQueue::push(uint64_t token) {
  MutexLock lock(mutex_);
  tokens_.push_back(token);
  if (tokens_.size() == 1) eventfd_write(fd_.get(), 1);
}

std::vector<uint64_t> DoneQueue::take() {
  MutexLock lock(mutex_);
  eventfd_t count;
  if (!tokens_.empty()) eventfd_read(fd_.get(), &count);
  return std::exchange(tokens_, {});
}

}  // namespace tidepool
