// SPDX-License-Identifier: Apache-2.0
// file:, a file on a disk: its row among the kinds of far memory. Thread-safe.
#include <algorithm>

#include "runtime/base/format.h"
#include "runtime/tier/far_kind.h"
#include "runtime/tier/file_tier.h"

namespace tidepool {
namespace {

constexpr std::string_view kDirectWord = ":direct";

/// PATH:SIZE[:direct]; a path may have colons of its own.
Status parseFile(const SpecText& text, FarSpec& spec) {
  std::string_view rest = text.body;
  if (!rest.starts_with('/')) return badSpec(text, "needs an absolute path");
  spec.direct = rest.ends_with(kDirectWord);
  if (spec.direct) rest.remove_suffix(kDirectWord.size());
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return badSpec(text, "has no size");
  TP_TRY(setTarget(spec, text, rest.substr(0, colon)));
  return setSize(spec, rest.substr(colon + 1));
}

void printFile(TextBuffer& out, const FarSpec& spec) {
  printTargetAndSize(out, spec);
  if (spec.direct) out.append(kDirectWord);
}

/// Opens the tier as a program would, with a segment at most: what does a page take?
Status tryFile(const FarSpec& spec, TextBuffer& detail) {
  FarSpec small = spec;
  small.size = std::min(spec.size, toBytes(PageFile::kSegment));
  const auto tier = FileTier::open(small, Nanoseconds(0));
  if (!tier) return tl::unexpected(tier.error());
  const auto& file = static_cast<const FileTier&>(**tier);
  detail.append("; a page in ");
  detail.appendFixed(static_cast<double>(file.pageRoundTrip().value()) * 1e-3, 0);
  detail.append(" us");
  if (file.ring() || !file.file().direct()) return {};
  detail.append(", one at a time (");
  detail.append(file.ring().error().text());
  detail.append(')');
  return {};
}

/// How a file there is read and written, if it can be made.
Result<os::Caching> cachingIn(const os::Folder& folder, const FarSpec& spec) {
  if (!folder.in_memory) {
    const auto direct = os::createUnnamedFile(folder, os::Caching::kDirect);
    if (direct) return os::Caching::kDirect;
    if (spec.direct || direct.error().code() != ErrorCode::kUnsupported) {
      return tl::unexpected(direct.error());
    }
  } else if (spec.direct) {
    return fail(ErrorCode::kUnsupported, "%s is memory, not a disk", folder.path);
  }
  const auto cached = os::createUnnamedFile(folder, os::Caching::kCached);
  if (!cached) return tl::unexpected(cached.error());
  return os::Caching::kCached;
}

Result<TierReport> checkFile(const FarSpec& spec, const TierCheck& how) {
  const auto failed = [&](const Error& why) {
    return fail(why.code(), "far tier file:%s: %s", spec.target, why.text());
  };
  const auto folder = os::folderFor(spec.target);
  if (!folder) return failed(folder.error());
  const auto caching = cachingIn(*folder, spec);
  if (!caching) return failed(caching.error());
  TierReport report;
  TextBuffer detail(report.detail);
  detail.appendSize(folder->free);
  detail.append(folder->in_memory ? " of memory free" : " free on the disk");
  if (*caching == os::Caching::kCached) {
    formatText(report.warning, sizeof report.warning, "far tier file:%s is %s", spec.target,
               folder->in_memory
                   ? "memory (a tmpfs): what goes there stays in the machine's memory"
                   : "read through the page cache, whose memory --dram does not count: its file "
                     "system has no O_DIRECT");
  } else if (spec.size > folder->free) {
    formatText(report.warning, sizeof report.warning,
               "far tier file:%s: only %s is free on the disk: the tier may not fill", spec.target,
               SizeText(folder->free).c_str());
  }
  if (how.depth == CheckDepth::kTry) {
    if (const Status tried = tryFile(spec, detail); !tried) return failed(tried.error());
  }
  return report;
}

}  // namespace

extern constinit const FarKind kFileKind{
    .name = "file",
    .form = "file:PATH:SIZE[:direct]",
    .help =
        "A file without a name on the disk of PATH, a folder or a new file; nothing is left of it. "
        "Past the page cache if the file system can; with direct, it must.",
    .parse = parseFile,
    .print = printFile,
    .open = FileTier::open,
    .check = checkFile,
    .largest_file = [](const FarSpec& spec) {
      return std::max(toBytes(toPages(spec.size)), fileOfFrameTable(spec));
    }};

}  // namespace tidepool
