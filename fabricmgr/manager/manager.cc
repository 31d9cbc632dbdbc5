// SPDX-License-Identifier: Apache-2.0
// Opening and closing the manager, and waiting for its work. See manager.h.
#include "fabricmgr/manager/manager.h"

#include "fabricmgr/manager/impl.h"
#include "runtime/base/check.h"

namespace tidepool::fabric {

Manager::Manager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Manager::~Manager() = default;

Result<std::unique_ptr<Manager>> Manager::open(std::unique_ptr<Store> store,
                                               const ManagerOptions& options) {
  TP_CHECK(options.clock != nullptr && options.wall_clock != nullptr && options.drivers);
  auto impl = std::make_unique<Impl>(std::move(store), options);
  if (options.on_durable) impl->store->listen(options.on_durable);
  TP_TRY(impl->beginTerm(Term()));
  TP_TRY(impl->recover());
  impl->startWorkers();
  return std::unique_ptr<Manager>(new Manager(std::move(impl)));
}

void Manager::settle() {
  MutexLock lock(impl_->mutex);
  while ((!impl_->jobs.empty() || impl_->active > 0) && !impl_->broken) {
    impl_->changed.wait(impl_->mutex);
  }
}

}  // namespace tidepool::fabric
