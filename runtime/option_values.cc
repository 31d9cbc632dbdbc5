// SPDX-License-Identifier: Apache-2.0
// The values options are made of: sizes, durations, far tier specs. Exact integer arithmetic, so a
// value written by hand means the same everywhere. No exceptions, no heap, no locale. Thread-safe.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "runtime/options.h"

namespace tidepool {
namespace {

#define TP_SV(text) static_cast<int>(std::min<size_t>((text).size(), 60)), (text).data()

using Wide = unsigned __int128;

constexpr uint64_t kMostBytes = INT64_MAX;  // what an off_t can say
constexpr uint64_t kMostNodes = 1024;       // MAX_NUMNODES of the largest kernel configuration
constexpr Nanoseconds kLongestTimeout(3'600'000'000'000);

constexpr const char* kSizeForms = "write a size such as 256M, 2G, 1.5T or plain bytes";
constexpr const char* kSpecForms =
    "write cxl:SIZE, dax:PATH, numa:NODE, remote:HOST:PORT[:SIZE][:transport:WHICH], fabric[:SIZE] "
    "or "
    "auto";

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

tl::unexpected<Error> badSpec(std::string_view text, const char* reason) {
  return fail(ErrorCode::kInvalidArgument, "far tier '%.*s' %s: %s", TP_SV(text), reason,
              kSpecForms);
}

Status setTarget(FarSpec& spec, std::string_view text, std::string_view target) {
  if (target.size() >= sizeof spec.target) return badSpec(text, "is too long");
  memcpy(spec.target, target.data(), target.size());
  spec.target[target.size()] = '\0';
  return {};
}

Status setSize(FarSpec& spec, std::string_view text) {
  const Result<Bytes> size = parseSize(text, machineMemory());
  if (!size) return tl::unexpected(size.error());
  spec.size = *size;
  return {};
}

/// A whole decimal number below `limit`.
bool parseSmall(std::string_view text, uint32_t limit, uint32_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out < limit;
}

Status setTransport(FarSpec& spec, std::string_view text, std::string_view name) {
  if (name == "auto") {
    spec.transport = Transport::kAuto;
  } else if (name == "tcp") {
    spec.transport = Transport::kTcp;
  } else if (name == "verbs") {
    spec.transport = Transport::kVerbs;
  } else {
    return badSpec(text, "has a bad transport (verbs, tcp or auto)");
  }
  return {};
}

/// What may follow HOST:PORT: a size, and transport:WHICH, each once.
Status parseRemoteRest(FarSpec& spec, std::string_view text, std::string_view rest) {
  constexpr std::string_view kTransport = "transport";
  bool sized = false;
  bool chosen = false;
  for (bool more = true; more;) {
    std::string_view word = rest.substr(0, rest.find(':'));
    more = word.size() < rest.size();
    rest.remove_prefix(word.size() + (more ? 1 : 0));
    if (word != kTransport) {
      if (std::exchange(sized, true)) return badSpec(text, "says more than a size and a transport");
      TP_TRY(setSize(spec, word));
      continue;
    }
    if (!more || std::exchange(chosen, true)) return badSpec(text, "needs one transport");
    word = rest.substr(0, rest.find(':'));
    more = word.size() < rest.size();
    rest.remove_prefix(word.size() + (more ? 1 : 0));
    TP_TRY(setTransport(spec, text, word));
  }
  return {};
}

/// HOST:PORT[:SIZE][:transport:WHICH] with an IPv6 address in brackets.
Status parseRemote(FarSpec& spec, std::string_view text, std::string_view body) {
  const size_t host_end = body.starts_with('[') ? body.find("]:") : body.find(':');
  if (host_end == std::string_view::npos) return badSpec(text, "names no port");
  const size_t host_length = host_end + (body[0] == '[' ? 1 : 0);
  if (host_length == 0 || host_length == 2) return badSpec(text, "names no host");
  const std::string_view after = body.substr(host_length + 1);
  const size_t port_length = std::min(after.find(':'), after.size());
  uint32_t port = 0;
  if (!parseSmall(after.substr(0, port_length), 65536, port) || port == 0) {
    return badSpec(text, "has a bad port (1 to 65535)");
  }
  TP_TRY(setTarget(spec, text, body.substr(0, host_length + 1 + port_length)));
  if (port_length == after.size()) return {};
  return parseRemoteRest(spec, text, after.substr(port_length + 1));
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

Result<FarSpec> parseFarSpec(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view kind = text.substr(0, colon);
  const std::string_view body = text.substr(std::min(text.size(), colon + 1));
  // Targets are C strings.
  if (text.find('\0') != std::string_view::npos) return badSpec(kind, "holds a NUL byte");
  FarSpec spec;
  if (kind == "cxl") {
    spec.kind = FarKind::kCxl;
    if (body.empty()) return badSpec(text, "has no size");
    TP_TRY(setSize(spec, body));
  } else if (kind == "dax") {
    spec.kind = FarKind::kDax;
    if (!body.starts_with('/')) return badSpec(text, "needs an absolute path");
    TP_TRY(setTarget(spec, text, body));
  } else if (kind == "numa") {
    spec.kind = FarKind::kNuma;
    if (!parseSmall(body, kMostNodes, spec.node)) return badSpec(text, "has a bad node number");
  } else if (kind == "remote") {
    spec.kind = FarKind::kRemote;
    TP_TRY(parseRemote(spec, text, body));
  } else if (kind == "fabric") {
    spec.kind = FarKind::kFabric;
    if (colon < text.size()) TP_TRY(setSize(spec, body));
  } else if (text == "auto") {
    spec.kind = FarKind::kAuto;
  } else {
    return badSpec(text, "is of no known kind");
  }
  return spec;
}

}  // namespace tidepool
