// SPDX-License-Identifier: Apache-2.0
// What operators write on hosts, devices and regions to find them again: names with values, and
// what selects by them, as kubectl has both. Plain values; pure.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace tidepool::fabric {

using Labels = std::map<std::string, std::string>;
/// By key: the new value, or nothing, which takes the label away.
using LabelChange = std::map<std::string, std::optional<std::string>>;

inline constexpr size_t kMostLabels = 64;  // of one thing

/// `labels` as they are after `change`. Keys are [PREFIX/]NAME: a DNS name of at most 253
/// characters, and 1 to 63 of a-z A-Z 0-9 . _ -, a letter or digit at both ends. Values are as
/// NAME, or empty. Errors: kInvalidArgument, also when there would be more than kMostLabels.
Result<Labels> applied(Labels labels, const LabelChange& change);

/// "disk=nvme,rack=r7", ordered by key; the inverse. Errors of the inverse: kCorrupt.
std::string textOf(const Labels& labels);
Result<Labels> labelsIn(std::string_view text);

/// Which things are meant: all of its terms hold.
class Selector {
 public:
  /// Terms between commas: `key=value` (or ==), `key!=value` (what lacks the key, too), `key`,
  /// `!key`, `key in (a,b)`, `key notin (a,b)`. Empty: everything. Errors: kInvalidArgument.
  static Result<Selector> parse(std::string_view text);
  bool matches(const Labels& labels) const;
  bool isEverything() const { return terms_.empty(); }
  /// As it was written.
  const std::string& text() const { return text_; }

 private:
  struct Term {
    std::string key;
    std::optional<std::set<std::string>> values;  // without any: the key alone counts
    bool wanted = true;                           // false: what fits is left out
  };
  static Result<Term> termOf(std::string_view text);

  std::string text_;
  std::vector<Term> terms_;
};

}  // namespace tidepool::fabric
