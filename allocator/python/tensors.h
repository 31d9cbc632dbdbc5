// SPDX-License-Identifier: Apache-2.0
// Tensors in far tiers as Python holds them: memory of arrays is borrowed by threads that know
// nothing of Python, so it is kept here until they are done, even if a future is dropped before. As
// tables, stores belong to the process that made them. All functions need the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/python/handles.h"
#include "allocator/tensors/tensor_store.h"

namespace tidepool::python {

/// A store, and the space that its tier belongs to.
struct OpenTensors {
  std::shared_ptr<TableSpace> space;
  std::unique_ptr<TensorStore> store;  // goes first
};

/// Arrays that transfers still use although nobody else refers to them.
class KeptArrays {
 public:
  void keep(std::shared_ptr<TensorTransfer> transfer, pybind11::object array);
  /// Lets go of those whose transfer is over.
  void sweep();

 private:
  std::vector<std::pair<std::shared_ptr<TensorTransfer>, pybind11::object>> kept_;
};

class TransferHandle {
 public:
  TransferHandle(std::shared_ptr<TensorTransfer> transfer, pybind11::object array,
                 std::shared_ptr<KeptArrays> kept);
  ~TransferHandle();
  TransferHandle(const TransferHandle&) = delete;
  TransferHandle& operator=(const TransferHandle&) = delete;

  bool done() const;
  /// False when so many seconds (none: no limit) were not enough. Releases the GIL; signals are
  /// served. Raises nothing of the transfer's own.
  bool wait(std::optional<double> seconds);
  /// Once it is done: raises what it failed with.
  void check();
  void tell(const std::shared_ptr<DoneQueue>& queue, uint64_t token);

 private:
  void checkOwner() const;

  const pid_t owner_;
  std::shared_ptr<TensorTransfer> transfer_;
  pybind11::object array_;  // none once it is done
  std::shared_ptr<KeptArrays> kept_;
};

/// The value that a name had when it was asked for.
class ValueHandle {
 public:
  struct Pinned {
    std::shared_ptr<OpenTensors> open;
    std::shared_ptr<TensorValue> value;  // goes first
  };
  ValueHandle(std::shared_ptr<Pinned> pinned, std::shared_ptr<KeptArrays> kept)
      : pinned_(std::move(pinned)), kept_(std::move(kept)) {}

  const std::string& description() const { return pinned_->value->description(); }
  uint64_t bytes() const { return pinned_->value->size().value(); }
  /// `out`: bytes in one dimension.
  std::unique_ptr<TransferHandle> get(const pybind11::object& out) const;

 private:
  const std::shared_ptr<Pinned> pinned_;
  const std::shared_ptr<KeptArrays> kept_;
};

class TensorsHandle {
 public:
  /// `limit`: bytes, 0 for all that the tier has.
  TensorsHandle(const SpaceHandle& space, size_t tier, uint64_t limit, size_t threads,
                TensorChecksums checksums);
  ~TensorsHandle() { close(); }
  TensorsHandle(const TensorsHandle&) = delete;
  TensorsHandle& operator=(const TensorsHandle&) = delete;

  std::unique_ptr<TransferHandle> put(const std::string& name, const std::string& description,
                                      const pybind11::object& bytes);
  std::unique_ptr<ValueHandle> find(const std::string& name);
  void remove(const std::string& name);
  std::vector<std::string> names();
  pybind11::dict counts();
  void trim();
  /// Waits for what is under way, then gives the memory back.
  void close();
  bool closed() const { return open_ == nullptr; }

 private:
  std::shared_ptr<OpenTensors> use() const;

  const pid_t owner_;
  std::shared_ptr<OpenTensors> open_;
  std::shared_ptr<KeptArrays> kept_ = std::make_shared<KeptArrays>();
};

void bindTensors(pybind11::module_& module);

}  // namespace tidepool::python
