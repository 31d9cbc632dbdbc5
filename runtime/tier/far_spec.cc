// SPDX-License-Identifier: Apache-2.0
// A --far SPEC, read and printed by its kind's row. No exceptions, no heap, no locale. Thread-safe.
#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/tier/far_kind.h"
#include "runtime/tier/frame_table.h"

namespace tidepool {

const FarKind* farKind(std::string_view name) {
  for (const FarKind* kind : farKinds()) {
    if (kind->name == name) return kind;
  }
  return nullptr;
}

tl::unexpected<Error> badSpec(const SpecText& text, const char* reason) {
  ShortText<200> advice;
  const FarKind* const meant = farKind(text.whole.substr(0, text.whole.find(':')));
  if (meant != nullptr) {
    advice.append("write ");
    advice.append(meant->form);
  } else {
    // All forms would not fit an error.
    for (const FarKind* kind : farKinds()) {
      if (kind != farKinds().front()) advice.append(kind == farKinds().back() ? " or " : ", ");
      advice.append(kind->name);
    }
    advice.append("; `tidepool run --help` shows how each is written");
  }
  return fail(ErrorCode::kInvalidArgument, "far tier '%.*s' %s: %s",
              static_cast<int>(std::min<size_t>(text.whole.size(), 60)), text.whole.data(), reason,
              advice.c_str());
}

Status setTarget(FarSpec& spec, const SpecText& text, std::string_view target) {
  if (target.size() >= sizeof spec.target) return badSpec(text, "is too long");
  memcpy(spec.target, target.data(), target.size());
  spec.target[target.size()] = '\0';
  return {};
}

Status setSize(FarSpec& spec, std::string_view size) {
  const Result<Bytes> bytes = parseSize(size, machineMemory());
  if (!bytes) return tl::unexpected(bytes.error());
  spec.size = *bytes;
  return {};
}

void printTargetAndSize(TextBuffer& out, const FarSpec& spec) {
  if (spec.target[0] != '\0') {
    out.append(':');
    out.append(spec.target);
  }
  if (spec.size != Bytes()) {
    out.append(':');
    out.appendNumber(spec.size.value());
  }
}

Bytes fileOfFrameTable(const FarSpec& spec) {
  return FrameTable::smallestFile(std::max(PageCount(1), toPages(spec.size)));
}

Result<FarSpec> parseFarSpec(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, colon);
  const std::string_view body = text.substr(std::min(text.size(), colon + 1));
  // Targets are C strings.
  if (text.find('\0') != std::string_view::npos) return badSpec({name, body}, "holds a NUL byte");
  const SpecText spec_text{text, body, colon == text.size()};
  FarSpec spec;
  spec.kind = farKind(name);
  if (spec.kind == nullptr) return badSpec(spec_text, "is of no known kind");
  TP_TRY(spec.kind->parse(spec_text, spec));
  return spec;
}

Status renderFarSpec(const FarSpec& spec, std::span<char> out) {
  TP_CHECK(spec.kind != nullptr);
  TextBuffer text(out);
  text.append(spec.kind->name);
  spec.kind->print(text, spec);
  if (text.overflowed()) return fail(ErrorCode::kNoSpace, "a far tier does not fit its buffer");
  return {};
}

Result<FarSpec> sealedAsAsked(const FarSpec& spec, const Options& options) {
  FarSpec asked = spec;
  asked.sealed = options.seal && spec.kind->sealing == Sealing::kCan;
  if (!options.seal || spec.kind->sealing != Sealing::kCannot) return asked;
  return fail(ErrorCode::kUnsupported,
              "far tier %.*s: its pages cannot be sealed yet: name memory servers with remote: or "
              "mirror:, or leave seal:on out",
              static_cast<int>(spec.kind->name.size()), spec.kind->name.data());
}

}  // namespace tidepool
