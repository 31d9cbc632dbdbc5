// SPDX-License-Identifier: Apache-2.0
// A CXL switch, as far as pooling needs it: which host a logical device is bound to. What speaks to
// the switch is a program of the site: switches differ. It is called as
//
//   PROGRAM show SERIAL          prints "BYTES HOST", HOST being - if it is bound to none
//   PROGRAM bind SERIAL HOST     ends when it is bound; bound to this host before: fine
//   PROGRAM unbind SERIAL        ends when no host has it; bound to none before: fine
//
// and ends with 0, or says on stderr why not. Stateless; thread-safe; calls block.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::fabric {

struct Binding {
  Bytes size;
  std::string host;  // empty: none
};

class SwitchCommand {
 public:
  SwitchCommand(std::string program, Nanoseconds timeout)
      : program_(std::move(program)), timeout_(timeout) {}

  // Errors of all: kUnreachable, when the program cannot be run, fails, or takes too long.
  Result<Binding> show(const std::string& serial) const;
  Status bind(const std::string& serial, const std::string& host) const;
  Status unbind(const std::string& serial) const;

 private:
  Result<std::string> run(std::vector<std::string> words) const;

  const std::string program_;
  const Nanoseconds timeout_;
};

}  // namespace tidepool::fabric
