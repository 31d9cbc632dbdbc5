// SPDX-License-Identifier: Apache-2.0
// A descriptor that children of fork() are not to keep: each closes its copy at once. The end of
// the last copy of a connection to the agent gives regions back, and a child that lives on would
// keep them for a parent that has ended. Thread-safe: the object by its owner's lock.
#pragma once

#include <cstddef>

namespace tidepool {

class ForkedSocket {
 public:
  ForkedSocket();
  ~ForkedSocket();
  ForkedSocket(const ForkedSocket&) = delete;
  ForkedSocket& operator=(const ForkedSocket&) = delete;

  /// Which one it is from now on; -1: none.
  void set(int fd);

 private:
  size_t place_;
};

}  // namespace tidepool
