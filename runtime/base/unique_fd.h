// SPDX-License-Identifier: Apache-2.0
// Owns one file descriptor and closes it. Movable, not copyable; not thread-safe.
#pragma once

#include <unistd.h>

#include <utility>

#include "runtime/base/own_fds.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(-1); }

  /// Makes it one of Tidepool's own, for as long as it is open; its number may change.
  void keep() { fd_ = keepFd(fd_); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  /// Gives the descriptor up without closing it.
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd) {
    if (fd_ >= 0) {
      forgetOwnFd(fd_);
      raw::close(fd_);
    }
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace tidepool
