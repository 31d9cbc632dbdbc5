// SPDX-License-Identifier: Apache-2.0
// The values options are made of: sizes and durations. Exact integer arithmetic, so a
// value written by hand means the same everywhere. No exceptions, no heap, no locale. Thread-safe.
#include <algorithm>

#include "runtime/options.h"

namespace tidepool {
namespace {

#define TP_SV(text) static_cast<int>(std::min<size_t>((text).size(), 60)), (text).data()

using Wide = unsigned __int128;

constexpr uint64_t kMostBytes = INT64_MAX;  // what an off_t can say
constexpr Nanoseconds kLongestTimeout(3'600'000'000'000);

constexpr const char* kSizeForms = "write a size such as 256M, 2G, 1.5T or plain bytes";

/// A decimal number kept exact: value / scale.
struct Decimal {
  uint64_t value = 0;
  uint64_t scale = 1;
};

bool isDigit(char character) { return character >= '0' && character <= '9'; }

/// Takes "12" or "1.5" off the front of `text`. At most 18 digits, at most 9 after the point.
bool takeDecimal(std::string_view& text, Decimal& number) {
  size_t digits = 0;
  bool point = false;
  for (; !text.empty(); text.remove_prefix(1)) {
    if (text[0] == '.' && !point && digits > 0) {
      point = true;
      continue;
    }
    if (!isDigit(text[0])) break;
    if (++digits > 18) return false;
    number.value = number.value * 10 + static_cast<uint64_t>(text[0] - '0');
    if (point) number.scale *= 10;
  }
  return digits > 0 && number.scale <= 1'000'000'000 && !(point && number.scale == 1);
}

/// The multiplier of "", "K", "KB", "KiB" and so on in either case; 0 if it is none of them.
uint64_t sizeUnit(std::string_view suffix) {
  if (suffix.empty() || suffix == "B" || suffix == "b") return 1;
  uint64_t unit = 0;
  switch (suffix[0] | 0x20) {
    case 'k':
      unit = kKiB;
      break;
    case 'm':
      unit = kMiB;
      break;
    case 'g':
      unit = kGiB;
      break;
    case 't':
      unit = kTiB;
      break;
    case 'p':
      unit = 1024 * kTiB;
      break;
    default:
      return 0;
  }
  const std::string_view rest = suffix.substr(1);
  const bool known = rest.empty() || rest == "B" || rest == "b" || rest == "iB" || rest == "ib";
  return known ? unit : 0;
}

uint64_t durationUnit(std::string_view suffix) {
  if (suffix == "ns") return 1;
  if (suffix == "us") return 1'000;
  if (suffix == "ms") return 1'000'000;
  if (suffix == "s" || suffix.empty()) return 1'000'000'000;
  if (suffix == "m" || suffix == "min") return 60'000'000'000;
  return 0;
}

}  // namespace

Result<Bytes> parseSize(std::string_view text, Bytes whole) {
  std::string_view rest = text;
  Decimal number;
  if (!takeDecimal(rest, number)) {
    return fail(ErrorCode::kInvalidArgument, "'%.*s' is not a size: %s", TP_SV(text), kSizeForms);
  }
  Wide bytes = 0;
  if (rest == "%" && whole != Bytes()) {
    if (number.value > 100 * number.scale) {
      return fail(ErrorCode::kInvalidArgument, "%.*s is more than all there is: give at most 100%%",
                  TP_SV(text));
    }
    bytes = Wide(whole.value()) * number.value / number.scale / 100;
  } else {
    const uint64_t unit = sizeUnit(rest);
    if (unit == 0) {
      return fail(ErrorCode::kInvalidArgument, "'%.*s' is not a size: %s", TP_SV(text), kSizeForms);
    }
    bytes = Wide(number.value) * unit / number.scale;
  }
  if (bytes == 0) {
    return fail(ErrorCode::kInvalidArgument, "'%.*s' is no size at all: give more than zero",
                TP_SV(text));
  }
  if (bytes > kMostBytes) {
    return fail(ErrorCode::kInvalidArgument, "'%.*s' is too large: no machine has 8 EiB",
                TP_SV(text));
  }
  return Bytes(static_cast<uint64_t>(bytes));
}

Result<Nanoseconds> parseDuration(std::string_view text) {
  std::string_view rest = text;
  Decimal number;
  const uint64_t unit = takeDecimal(rest, number) ? durationUnit(rest) : 0;
  const Wide time = Wide(number.value) * unit / number.scale;
  if (time == 0 || time > kLongestTimeout.value()) {
    return fail(ErrorCode::kInvalidArgument,
                "'%.*s' is not a time: write 500ms, 5s or 2m (more than zero, at most an hour)",
                TP_SV(text));
  }
  return Nanoseconds(static_cast<uint64_t>(time));
}

}  // namespace tidepool
