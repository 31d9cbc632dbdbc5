// SPDX-License-Identifier: Apache-2.0
// SPECs made from the form that a kind of far memory states (FarKind::form), so that tests cover
// kinds that they have never heard of.
#pragma once

#include <cctype>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/tier/far_kind.h"

namespace tidepool {

/// `form` with what `value` gives for each word in capitals. What is in brackets is there if
/// `keep` says so, which is asked for each pair.
inline std::string specOf(std::string_view form,
                          const std::function<std::string(std::string_view word)>& value,
                          const std::function<bool()>& keep) {
  std::string spec;
  while (!form.empty()) {
    size_t length = 1;
    if (form[0] == '[') {
      length = form.find(']') + 1;
      if (keep()) spec += specOf(form.substr(1, length - 2), value, keep);
    } else if (isupper(form[0]) != 0) {
      while (length < form.size() && isupper(form[length]) != 0) ++length;
      spec += value(form.substr(0, length));
    } else {
      spec += form[0];
    }
    form.remove_prefix(length);
  }
  return spec;
}

/// A plain value for each word that forms have.
inline std::string plainValue(std::string_view word) {
  if (word == "SIZE") return "64M";
  if (word == "PATH") return "/dev/dax0.0";
  if (word == "NODE") return "3";
  if (word == "HOST") return "[fe80::1]";
  if (word == "PORT") return "7777";
  if (word == "WHICH") return "tcp";
  return "a word of a form that tests/tier/far_specs.h has no value for";
}

}  // namespace tidepool
