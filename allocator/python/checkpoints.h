// SPDX-License-Identifier: Apache-2.0
// Checkpoints of tables as Python holds them: tables that are being saved stay until it is over,
// even if they are closed. Belong to the process that began them. All functions need the GIL.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "allocator/checkpoint/checkpoint_writer.h"
#include "allocator/python/handles.h"

namespace tidepool::python {

class CheckpointHandle {
 public:
  struct Open {
    std::vector<std::shared_ptr<TableHandle::Open>> tables;
    std::unique_ptr<CheckpointWriter> writer;  // goes first
  };
  explicit CheckpointHandle(std::shared_ptr<Open> open);

  uint64_t number() const;
  /// Blocks until it is over, without the GIL. Raises what it failed with.
  pybind11::dict wait();
  pybind11::dict progress();
  void cancel();

 private:
  Open& use() const;

  const pid_t owner_;
  std::shared_ptr<Open> open_;
};

void bindCheckpoints(pybind11::module_& module);

}  // namespace tidepool::python
