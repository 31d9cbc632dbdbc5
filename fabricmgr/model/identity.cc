// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/model/identity.h"

#include <sys/random.h>

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool::fabric {
namespace {

/// Changes of one region's epoch within a term, before its epochs reach into the next one's: a
/// million fences. JSON's numbers, exact up to 2^53, then have room for 2^33 terms.
constexpr int kTermShift = 20;

}  // namespace

bool isFabricId(std::string_view text) {
  if (text.size() != kFabricIdSize) return false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool dash = at == 8 || at == 13 || at == 18 || at == 23;
    const bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (dash ? c != '-' : !digit) return false;
  }
  return true;
}

std::string newFabricId() {
  constexpr char kDigits[] = "0123456789abcdef";
  uint8_t bytes[16];
  TP_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  bytes[6] = static_cast<uint8_t>(0x40 | (bytes[6] & 0x0f));
  bytes[8] = static_cast<uint8_t>(0x80 | (bytes[8] & 0x3f));
  std::string id;
  for (const uint8_t byte : bytes) {
    if (id.size() == 8 || id.size() == 13 || id.size() == 18 || id.size() == 23) id += '-';
    id += kDigits[byte >> 4];
    id += kDigits[byte & 15];
  }
  return id;
}

uint64_t newIncarnation() {
  uint64_t number = 0;
  TP_CHECK(getrandom(&number, sizeof number, 0) == sizeof number);
  return number;
}

Epoch nextEpoch(Epoch known, Term term) {
  return std::max(known + 1, Epoch(term.value() << kTermShift | 1));
}

Status mayLead(const Leader& known, const Leader& who, const char* way_out) {
  if (known.fabric != who.fabric) {
    return fail(ErrorCode::kRefused, "it belongs to fabric %.36s: %s", known.fabric.c_str(),
                way_out);
  }
  const auto term = static_cast<unsigned long long>(known.term.value());
  if (who.term < known.term) {
    return fail(ErrorCode::kStaleEpoch, "a manager of term %llu has been in charge since", term);
  }
  if (who.term == known.term && who.incarnation != known.incarnation) {
    return fail(ErrorCode::kStaleEpoch, "another manager of term %llu is in charge", term);
  }
  return {};
}

}  // namespace tidepool::fabric
