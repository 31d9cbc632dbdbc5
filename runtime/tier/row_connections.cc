// SPDX-License-Identifier: Apache-2.0
// RowConnections: a connection's owners are its channels, so their number is that of its channels.
#include "runtime/tier/row_connections.h"

#include <algorithm>

namespace tidepool {
namespace {

/// Null if it has ended, or failed.
std::shared_ptr<RowConnection> working(const std::weak_ptr<RowConnection>& place) {
  auto connection = place.lock();
  return connection != nullptr && !connection->failed() ? connection : nullptr;
}

}  // namespace

/// Null while there may be one more. Each round of channels begins one place further on: threads
/// that go through the tables side by side, half of them each, would else meet at every one.
std::shared_ptr<RowConnection> RowConnections::leastShared() {
  std::array<std::shared_ptr<RowConnection>, kMost> all;
  std::transform(places_.begin(), places_.end(), all.begin(), working);
  if (std::find(all.begin(), all.end(), nullptr) != all.end()) return nullptr;
  const auto fewer = [](const auto& left, const auto& right) {
    return left.use_count() < right.use_count();
  };
  const long least = std::min_element(all.begin(), all.end(), fewer)->use_count();
  std::rotate(all.begin(), all.begin() + least % static_cast<long>(kMost), all.end());
  return *std::min_element(all.begin(), all.end(), fewer);
}

Result<std::shared_ptr<RowConnection>> RowConnections::add(std::unique_ptr<RemoteClient> client) {
  auto made = RowConnection::create(std::move(client));
  if (!made) return made;
  *std::find_if(places_.begin(), places_.end(),
                [](const auto& place) { return working(place) == nullptr; }) = *made;
  return made;
}

bool RowConnections::anyWithoutLane() {
  MutexLock lock(mutex_);
  return std::any_of(places_.begin(), places_.end(), [](const auto& place) {
    const auto connection = working(place);
    return connection != nullptr && !connection->hasLane();
  });
}

}  // namespace tidepool
