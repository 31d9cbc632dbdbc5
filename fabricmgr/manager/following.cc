// SPDX-License-Identifier: Apache-2.0
// A manager that stands by: the same state and the same ways of showing it, without anything that
// decides. It is never made into one that leads: that one loads the state anew, under its term.
#include "fabricmgr/manager/impl.h"
#include "runtime/base/check.h"

namespace tidepool::fabric {

Manager::Impl::Impl(std::unique_ptr<FollowedStore> store_to_own,
                    const ManagerOptions& options_to_use)
    : options(options_to_use),
      store(std::move(store_to_own)),
      followed(static_cast<FollowedStore*>(store.get())),
      drivers(options.drivers, leadership),
      awake(*options.clock, options.longest_gap),
      cleaned_time(options.wall_clock->now()) {}

/// What is shown stays, while the new state is read.
Status Manager::Impl::loadFollowed() {
  const auto loaded = followed->load();
  if (!loaded) return tl::unexpected(loaded.error());
  State fresh;
  TP_TRY(fresh.load(*loaded));
  const MutexLock lock(mutex);
  std::swap(state, fresh);
  last_index = loaded->index;
  broken = false;
  followed->reached(last_index);
  return {};
}

Status Manager::Impl::keepUp(Nanoseconds wait) {
  if (loading_due) {
    TP_TRY(loadFollowed());
    loading_due = false;
  } else {
    const auto news = followed->next(wait);
    if (!news) {
      loading_due = news.error().code() == ErrorCode::kStaleEpoch ||
                    news.error().code() == ErrorCode::kCorrupt;
      return tl::unexpected(news.error());
    }
    if (!*news) return {};
    const MutexLock lock(mutex);
    if (const Status fits = state.follow((*news)->changes, (*news)->index); !fits) {
      loading_due = broken = true;
      trouble = fits.error().text();
      return fits;
    }
    last_index = (*news)->index;
    followed->reached(last_index);
  }
  if (options.on_durable) options.on_durable(followed->durable());
  return {};
}

Result<std::unique_ptr<Manager>> Manager::follow(std::unique_ptr<FollowedStore> store,
                                                 const ManagerOptions& options) {
  TP_CHECK(options.clock != nullptr && options.wall_clock != nullptr);
  auto impl = std::make_unique<Impl>(std::move(store), options);
  TP_TRY(impl->loadFollowed());
  return std::unique_ptr<Manager>(new Manager(std::move(impl)));
}

Status Manager::keepUp(Nanoseconds wait) {
  TP_CHECK(impl_->followed != nullptr);
  return impl_->keepUp(wait);
}

std::optional<Nanoseconds> Manager::age() const {
  if (impl_->followed == nullptr) return std::nullopt;
  return impl_->followed->age();
}

}  // namespace tidepool::fabric
