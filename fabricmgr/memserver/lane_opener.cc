// SPDX-License-Identifier: Apache-2.0
// LaneOpener: of a lane's maker and its session, the second to arrive sees what has to be done.
#include "fabricmgr/memserver/lane_opener.h"

#include <system_error>
#include <utility>

namespace tidepool::memserver {

// The exchanges order what was done before each of them: the offer is there for who comes second.
void LaneOpening::abandon() {
  if (!met_.exchange(true, std::memory_order_acq_rel)) return;
  if (const auto offer = offer_.get()) one_sided_.close(offer->ticket);
}

void LaneOpening::make(const std::shared_ptr<Region>& region, Epoch epoch,
                       const sockaddr_storage& at) {
  const auto offer = one_sided_.open(region, epoch, at);
  made_.set_value(offer);
  const bool abandoned = met_.exchange(true, std::memory_order_acq_rel);
  if (abandoned && offer) one_sided_.close(offer->ticket);
}

Result<std::shared_ptr<LaneOpening>> LaneOpener::open(const std::shared_ptr<Region>& region,
                                                      Epoch epoch, int socket) {
  sockaddr_storage at = {};
  socklen_t size = sizeof at;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    return failErrno(ErrorCode::kIo, "cannot read the address of a socket");
  }
  auto opening = std::make_shared<LaneOpening>(one_sided_);
  MutexLock lock(mutex_);
  makers_.remove_if([](Maker& maker) {
    // Acquire: pairs with the release of a thread that has nothing left to do.
    if (!maker.opening->ended_.load(std::memory_order_acquire)) return false;
    maker.thread.join();
    return true;
  });
  region->pin();  // so that it stays while it is used, though the client hangs up
  try {
    std::thread thread([opening, held = std::shared_ptr<Region>(region), epoch, at]() mutable {
      opening->make(held, epoch, at);
      held->unpin();
      held.reset();
      opening->ended_.store(true, std::memory_order_release);
    });
    makers_.push_back({opening, std::move(thread)});
  } catch (const std::system_error& error) {
    region->unpin();
    return fail(ErrorCode::kNoMemory, "no thread can be made for it: %s", error.what());
  }
  return opening;
}

LaneOpener::~LaneOpener() {
  MutexLock lock(mutex_);
  for (Maker& maker : makers_) maker.thread.join();
}

}  // namespace tidepool::memserver
