// SPDX-License-Identifier: Apache-2.0
// Handles: who may use a space or a table, and who ends it.
#include "allocator/python/handles.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <utility>

#include "allocator/python/errors.h"
#include "allocator/python/gil.h"

namespace tidepool::python {
namespace py = pybind11;

void checkUsable(const char* what, const std::string& name, const void* open, pid_t owner) {
  if (getpid() != owner) {
    raiseUnusable((what + name + " belongs to process " + std::to_string(owner) +
                   " that made it; this one (" + std::to_string(getpid()) + ") cannot use it")
                      .c_str());
  }
  if (open == nullptr) raiseUnusable((what + name + " is closed").c_str());
}

TableHandle::TableHandle(std::shared_ptr<Open> open)
    : options_(open->table->options()), owner_(getpid()), open_(std::move(open)) {}

std::shared_ptr<TableHandle::Open> TableHandle::use() const {
  checkUsable("table ", options_.name, open_.get(), owner_);
  return open_;
}

std::shared_ptr<TableHandle::Open> TableHandle::ifUsable() const {
  return getpid() == owner_ ? open_ : nullptr;
}

void TableHandle::close() {
  std::shared_ptr<Open> open = std::exchange(open_, nullptr);
  const GilReleased released;
  open.reset();
}

SpaceHandle::SpaceHandle(const std::vector<std::string>& far, size_t threads,
                         double timeout_seconds, const std::string& agent)
    : owner_(getpid()) {
  std::vector<FarSpec> specs;
  for (const std::string& text : far) specs.push_back(valueOf(parseFarSpec(text)));
  const Nanoseconds timeout(static_cast<uint64_t>(timeout_seconds * 1e9));
  const Patience patience(timeout, Options().remote_reconnect);
  auto space = [&] {
    const GilReleased released;
    return TableSpace::create(specs, threads, patience, Bytes(), nullptr, agent.c_str());
  }();
  space_ = ownedHere(valueOf(std::move(space)).release());
}

std::shared_ptr<TableSpace> SpaceHandle::use() const {
  checkUsable("the space", "", space_.get(), owner_);
  return space_;
}

std::unique_ptr<TableHandle> SpaceHandle::createTable(const TableOptions& options, size_t tier) {
  std::shared_ptr<TableSpace> space = use();
  auto table = [&] {
    const GilReleased released;
    return space->createTable(options, tier);
  }();
  auto* open = new TableHandle::Open{std::move(space), valueOf(std::move(table))};
  return std::make_unique<TableHandle>(ownedHere(open));
}

void SpaceHandle::setDram(uint64_t bytes) {
  const std::shared_ptr<TableSpace> space = use();
  const Status set = [&] {
    const GilReleased released;
    return space->shared().setBudget(Bytes(bytes));
  }();
  check(set);
}

uint64_t SpaceHandle::dram() const {
  const std::shared_ptr<TableSpace> space = use();
  const GilReleased released;
  return space->shared().budget().value();
}

uint64_t SpaceHandle::leastDram(const TableOptions& options, size_t tier) const {
  return valueOf(use()->leastDram(options, tier)).value();
}

uint64_t SpaceHandle::leastShare(const TableOptions& options, size_t tier) const {
  return valueOf(use()->leastShare(options, tier)).value();
}

void SpaceHandle::close() {
  std::shared_ptr<TableSpace> space = std::exchange(space_, nullptr);
  const GilReleased released;
  space.reset();
}

size_t SpaceHandle::threads() const { return use()->workers().threads(); }

}  // namespace tidepool::python
