// SPDX-License-Identifier: Apache-2.0
// The operator's nouns and verbs as one table: which request each is, which options become which
// fields, and how its answer is shown. The command line and its documents are made from it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace tidepool::cli {

/// How an option's text becomes a field.
/// kLabels: KEY=VALUE, or KEY- to take it away.
enum class Kind : uint8_t { kText, kSize, kCount, kDuration, kFlag, kTexts, kJsonFile, kLabels };
/// Where the field goes.
enum class Place : uint8_t { kBody, kConstraints, kQuery };

struct Option {
  std::string_view flag;   // "--size"
  std::string_view field;  // "size_bytes"
  Kind kind = Kind::kText;
  std::string_view about;
  Place place = Place::kBody;
  bool must = false;
  std::string_view choices = {};     // "pack|spread"
  std::string_view short_flag = {};  // "-l"
};

/// How a value is shown to people.
/// kLeft: a duration; 0 means that it is over.
enum class As : uint8_t { kText, kBytes, kDuration, kLeft, kNumberOrDash };

struct Column {
  std::string_view title;
  std::string_view field;
  As as = As::kText;
  bool wide = false;  // shown with -o wide only
};

/// What is done with the answer.
/// kAt: of a list that is in order, what stands at the operand.
enum class Show : uint8_t { kTable, kOne, kAt, kChange, kWait, kStatus, kHealth, kPlan, kVerdict };

struct Verb {
  std::string_view noun;  // may be empty: "status"
  std::string_view verb;
  std::string_view about;
  std::string_view method;
  std::string_view path;     // {} stands for the operand; of kAt, for the number before it
  std::string_view operand;  // "NAME", "ID" or empty
  Show show = Show::kOne;
  std::span<const Option> options;
  std::span<const Column> columns;
  /// Of a change that many things can have at once: the path for when --all or --selector names
  /// them in place of the operand. The answer then has a list, which is shown by `columns`.
  std::string_view many_path = {};
};

std::span<const Verb> verbs();
/// What a noun is, for its help.
std::string_view aboutNoun(std::string_view noun);

}  // namespace tidepool::cli
