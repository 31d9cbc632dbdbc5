// SPDX-License-Identifier: Apache-2.0
// Which descriptors are Tidepool's own. The shim keeps the program from closing them; they stand
// high, where a program that counts its descriptors, or uses select(2), does not meet them.
// UniqueFd takes one off the list before it closes it. Thread-safe, no allocation, no lock.
#pragma once

#include <sys/resource.h>

namespace tidepool {

/// From now on descriptors that are kept get high numbers, if possible beyond the soft limit, where
/// the program cannot have any of its own.
void placeOwnFdsHigh();

/// Raises the soft limit on descriptors for its own life, as far as the hard one allows: numbers
/// beyond the program's limit can be had, whatever it has open.
class FdRoom {
 public:
  FdRoom();
  ~FdRoom();
  FdRoom(const FdRoom&) = delete;
  FdRoom& operator=(const FdRoom&) = delete;

 private:
  rlimit before_{};
  rlimit raised_{};  // 0: not raised
};

/// Puts a descriptor on the list. Returns its number, which may be a new one (the old is then
/// closed). -1, or a list that is full, is passed through.
int keepFd(int fd);

bool isOwnFd(int fd);

/// Takes it off the list, if it is on it.
void forgetOwnFd(int fd);

/// The lowest own descriptor >= `from`, or -1.
int nextOwnFd(unsigned from);

}  // namespace tidepool
