// SPDX-License-Identifier: Apache-2.0
// An empty armed mapping is moved over the other in one step (mremap), then filled (UFFDIO_COPY),
// then disarmed.
#include "runtime/os/mapping_swap.h"

#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/memory.h"
#include "runtime/os/userfaultfd.h"

namespace tidepool::os {
Result<std::unique_ptr<MappingSwap>> MappingSwap::open(Holds holds) {
  UniqueFd faults = openUserfaultfd();
  if (!faults.valid() && holds == Holds::kOwnCode) {
    faults = openUserfaultfdBySyscall(UFFD_USER_MODE_ONLY);
  }
  if (!faults.valid()) return failErrno(ErrorCode::kPermission, "cannot open userfaultfd");
  faults.keep();
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_REMAP;
  if (raw::ioctl(faults.get(), UFFDIO_API, &api) != 0) {
    return failErrno(ErrorCode::kUnsupported, "userfaultfd does not tell of moved mappings");
  }
  UniqueFd stop(raw::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return failErrno(ErrorCode::kNoMemory, "cannot make an eventfd");
  stop.keep();
  std::unique_ptr<MappingSwap> swap(new MappingSwap(std::move(faults), std::move(stop)));
  TP_TRY(swap->thread_.start(
      "tidepool-swap", [](void* self) { static_cast<MappingSwap*>(self)->readEvents(); },
      swap.get()));
  swap->thread_.awaitBegin();
  return swap;
}

MappingSwap::~MappingSwap() {
  if (!thread_.running()) return;
  const uint64_t one = 1;
  TP_CHECK(raw::write(stop_.get(), &one, sizeof one) == sizeof one);
  thread_.join();
}

void MappingSwap::readEvents() {
  pollfd waits[2] = {{faults_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  for (;;) {
    if (raw::poll(waits, 2, -1) < 0) continue;
    if (waits[1].revents != 0) return;
    // To have read of a move is all that is wanted. Who waits for a page is woken by fill().
    uffd_msg messages[8];
    [[maybe_unused]] const ssize_t got = raw::read(faults_.get(), messages, sizeof messages);
  }
}

Status MappingSwap::take(uintptr_t address, Bytes size, uintptr_t fill) {
  TP_TRY(mapFresh(fill, size));
  uffdio_register request{};
  request.range = {fill, size.value()};
  request.mode = UFFDIO_REGISTER_MODE_MISSING;
  Status taken;
  if (raw::ioctl(faults_.get(), UFFDIO_REGISTER, &request) != 0) {
    taken = failErrno(ErrorCode::kNoMemory, "cannot register memory with userfaultfd");
  } else {
    taken = moveMapping(fill, address, size);
  }
  [[maybe_unused]] const Status gone = mapUnused(fill, size);
  return taken;
}

void MappingSwap::fill(uintptr_t address, Bytes size, const std::byte* from) {
  for (uint64_t done = 0; done < size.value();) {
    uffdio_copy request{};
    request.dst = address + done;
    request.src = reinterpret_cast<__u64>(from) + done;
    request.len = size.value() - done;
    if (raw::ioctl(faults_.get(), UFFDIO_COPY, &request) == 0) break;
    // Pages that are there are in use already: there is no way back. EAGAIN: some are done, or an
    // event has yet to be read; ENOMEM passes, or ends in the kernel's own choice of a victim.
    TP_CHECK(errno == EAGAIN || errno == ENOMEM);
    if (request.copy > 0) done += static_cast<uint64_t>(request.copy);
  }
  letGo(address, size);
}

void MappingSwap::letGo(uintptr_t address, Bytes size) {
  uffdio_range range{address, size.value()};
  // Fails where something else is mapped by now, which is not armed; who waits is woken either way.
  [[maybe_unused]] const int disarmed = raw::ioctl(faults_.get(), UFFDIO_UNREGISTER, &range);
  TP_CHECK(raw::ioctl(faults_.get(), UFFDIO_WAKE, &range) == 0);
}

}  // namespace tidepool::os
