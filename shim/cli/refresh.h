// SPDX-License-Identifier: Apache-2.0
// What commands share that draw the same again and again until a key or a signal ends them. One at
// a time: signals are the process's.
#pragma once

#include <termios.h>

#include "runtime/base/units.h"
#include "shim/cli/arguments.h"

namespace tidepool::cli {

/// Keys without Enter and without echo for as long as it lives, if stdin is a terminal. Until then
/// SIGINT and SIGTERM only ask for the end.
class RawKeys {
 public:
  RawKeys();
  ~RawKeys();
  RawKeys(const RawKeys&) = delete;
  RawKeys& operator=(const RawKeys&) = delete;

  /// Waits; true as soon as q is pressed or a signal asks to end.
  bool waitForQuit(Nanoseconds time) const;

 private:
  termios saved_ = {};
  bool terminal_;
};

/// The value of --interval, 1 s by default. Throws UsageError.
Nanoseconds intervalOf(const Arguments& arguments, const char* command);

/// Whether NO_COLOR leaves a terminal its colours.
bool colourAllowed();

}  // namespace tidepool::cli
