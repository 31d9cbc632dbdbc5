// SPDX-License-Identifier: Apache-2.0
// Good JSON made bad: a few characters put in or taken out. The same seed gives the same texts.
#pragma once

#include <random>
#include <string>

namespace tidepool::api {

inline std::string mangle(std::string text, std::mt19937& random) {
  static const std::string kAlphabet = "{}[]\":,0123456789eE+-.truefalsn \\u\x01\xc3\xa4";
  for (unsigned i = 0; i <= random() % 3; ++i) {
    const size_t at = random() % (text.size() + 1);
    if (random() % 2 == 0) {
      text.insert(at, 1, kAlphabet[random() % kAlphabet.size()]);
    } else {
      text.erase(at, 1 + random() % 3);
    }
  }
  return text;
}

}  // namespace tidepool::api
