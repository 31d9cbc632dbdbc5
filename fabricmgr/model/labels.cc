// SPDX-License-Identifier: Apache-2.0
// Labels and selectors. Pure.
#include "fabricmgr/model/labels.h"

#include <algorithm>

namespace tidepool::fabric {
namespace {

constexpr size_t kLongestName = 63;
constexpr size_t kLongestPrefix = 253;
constexpr size_t kLongestSelector = 4096;

bool alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool isName(std::string_view text, std::string_view between, size_t longest) {
  return !text.empty() && text.size() <= longest && alphanumeric(text.front()) &&
         alphanumeric(text.back()) && std::all_of(text.begin(), text.end(), [&](char c) {
           return alphanumeric(c) || between.find(c) != std::string_view::npos;
         });
}

bool isKey(std::string_view key) {
  if (const size_t slash = key.find('/'); slash != std::string_view::npos) {
    if (!isName(key.substr(0, slash), ".-", kLongestPrefix)) return false;
    key.remove_prefix(slash + 1);
  }
  return isName(key, "._-", kLongestName);
}

bool isValue(std::string_view value) { return value.empty() || isName(value, "._-", kLongestName); }

Status checkKey(std::string_view key) {
  if (isKey(key)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "'%.80s' is no key of a label: 1 to 63 of a-z A-Z 0-9 . _ -, a letter or digit at "
              "both ends; before it, a DNS name and / may stand",
              std::string(key).c_str());
}

Status checkValue(std::string_view value) {
  if (isValue(value)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "'%.80s' is no value of a label: at most 63 of a-z A-Z 0-9 . _ -, a letter or digit "
              "at both ends",
              std::string(value).c_str());
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// Takes what comes before the next comma that is not in brackets.
std::string_view takeTerm(std::string_view* rest) {
  int open = 0;
  size_t at = 0;
  for (; at < rest->size() && ((*rest)[at] != ',' || open > 0); ++at) {
    open += (*rest)[at] == '(' ? 1 : (*rest)[at] == ')' ? -1 : 0;
  }
  const std::string_view term = rest->substr(0, at);
  rest->remove_prefix(std::min(rest->size(), at + 1));
  return trimmed(term);
}

/// "(a, b)"
Result<std::set<std::string>> valuesIn(std::string_view text) {
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') {
    return fail(ErrorCode::kInvalidArgument, "after in and notin come values: (a,b), not '%.80s'",
                std::string(text).c_str());
  }
  std::string_view rest = text.substr(1, text.size() - 2);
  std::set<std::string> values;
  do {
    const std::string_view value = takeTerm(&rest);
    TP_TRY(checkValue(value));
    values.emplace(value);
  } while (!rest.empty());
  return values;
}

}  // namespace

Result<Labels> applied(Labels labels, const LabelChange& change) {
  for (const auto& [key, value] : change) {
    TP_TRY(checkKey(key));
    if (!value) {
      labels.erase(key);
      continue;
    }
    TP_TRY(checkValue(*value));
    labels[key] = *value;
  }
  if (labels.size() <= kMostLabels) return labels;
  return fail(ErrorCode::kInvalidArgument, "it would have %zu labels: at most %zu", labels.size(),
              kMostLabels);
}

std::string textOf(const Labels& labels) {
  std::string text;
  for (const auto& [key, value] : labels) {
    text += (text.empty() ? "" : ",") + key + "=" + value;
  }
  return text;
}

Result<Labels> labelsIn(std::string_view text) {
  Labels labels;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    const size_t equal = one.find('=');
    if (equal == std::string_view::npos || !isKey(one.substr(0, equal)) ||
        !isValue(one.substr(equal + 1)) || one.size() + 1 == text.size()) {
      return fail(ErrorCode::kCorrupt, "'%.80s' are no labels", std::string(text).c_str());
    }
    labels.emplace(one.substr(0, equal), one.substr(equal + 1));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
  return labels;
}

Result<Selector::Term> Selector::termOf(std::string_view text) {
  Term term;
  const auto withKey = [&](std::string_view key) -> Result<Term> {
    key = trimmed(key);
    TP_TRY(checkKey(key));
    term.key = key;
    return term;
  };
  for (const auto& [word, wanted] : {std::pair(" notin ", false), std::pair(" in ", true)}) {
    const size_t at = text.find(word);
    if (at == std::string_view::npos) continue;
    auto values = valuesIn(trimmed(text.substr(at + std::string_view(word).size())));
    if (!values) return tl::unexpected(values.error());
    term.values = std::move(*values);
    term.wanted = wanted;
    return withKey(text.substr(0, at));
  }
  if (const size_t equal = text.find('='); equal != std::string_view::npos) {
    term.wanted = equal == 0 || text[equal - 1] != '!';
    const bool twice = term.wanted && text.substr(equal).starts_with("==");
    const std::string_view value = trimmed(text.substr(equal + (twice ? 2 : 1)));
    TP_TRY(checkValue(value));
    term.values = std::set<std::string>{std::string(value)};
    return withKey(text.substr(0, term.wanted ? equal : equal - 1));
  }
  term.wanted = !text.starts_with('!');
  return withKey(text.substr(term.wanted ? 0 : 1));
}

Result<Selector> Selector::parse(std::string_view text) {
  Selector selector;
  if (text.size() > kLongestSelector) {
    return fail(ErrorCode::kInvalidArgument, "a selector has at most %zu characters",
                kLongestSelector);
  }
  selector.text_ = text;
  for (std::string_view rest = trimmed(text); !rest.empty();) {
    const bool more = rest.ends_with(',');  // nothing comes after it
    auto term = termOf(takeTerm(&rest));
    if (!term) return tl::unexpected(term.error());
    selector.terms_.push_back(std::move(*term));
    if (more && rest.empty()) TP_TRY(checkKey(""));
  }
  return selector;
}

bool Selector::matches(const Labels& labels) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const Term& term) {
    const auto label = labels.find(term.key);
    const bool fits =
        label != labels.end() && (!term.values || term.values->contains(label->second));
    return fits == term.wanted;
  });
}

}  // namespace tidepool::fabric
