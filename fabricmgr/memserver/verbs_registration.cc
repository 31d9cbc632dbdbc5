// SPDX-License-Identifier: Apache-2.0
// Registration: the region counts as pinned from before it is made until after it has ended, so
// that no memory is given back to the kernel while a device writes to it.
#include "fabricmgr/memserver/verbs_registration.h"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tidepool::memserver {

Registration::~Registration() {
  end();
  if (completions != nullptr) (void)library.destroy_cq(completions);
  if (domain != nullptr) (void)library.dealloc_pd(domain);
}

void Registration::end() {
  if (memory == nullptr) return;
  const int error = library.dereg_mr(memory);
  if (error != 0 && error != EIO &&
      error != ENODEV) {  // those: the device has gone, and all with it
    // Nobody may go on believing that the memory is fenced off.
    spdlog::critical("cannot take a region's memory from the RDMA device: {}", strerror(error));
    std::abort();
  }
  memory = nullptr;
  region->unpin();
}

Status Registration::make(const std::shared_ptr<Region>& of, Epoch of_epoch, ibv_context* on) {
  region = of;
  epoch = of_epoch;
  device = on;
  length = region->capacity().value();
  domain = library.alloc_pd(device);
  // Clients send nothing that would complete here, but a queue pair must have a queue.
  completions = domain == nullptr ? nullptr : library.create_cq(device, 1, nullptr, nullptr, 0);
  if (completions == nullptr) {
    return failErrno(ErrorCode::kNoMemory, "the RDMA device has no room for a region");
  }
  region->pin();
  memory =
      library.reg_mr(domain, region->data(), length,
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  if (memory == nullptr) {
    const int error = errno;
    region->unpin();
    errno = error;
    return failErrno(ErrorCode::kNoMemory,
                     "cannot pin %llu bytes for the RDMA device (raise the limit: ulimit -l)",
                     static_cast<unsigned long long>(length));
  }
  return {};
}

}  // namespace tidepool::memserver
