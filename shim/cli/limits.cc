// SPDX-License-Identifier: Apache-2.0
// What of Tidepool counts against which limit. See limits.h.
#include "shim/cli/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <span>

#include "runtime/base/text_buffer.h"
#include "runtime/tier/far_kind.h"

namespace tidepool::cli {
namespace {

/// Null where there is no limit.
const Bytes* limitOf(__rlimit_resource which, Bytes& storage) {
  rlimit limit;
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return nullptr;
  storage = Bytes(limit.rlim_cur);
  return &storage;
}

/// Tables of the pages of a space, and heaps' own: address space that is writable, and so counts,
/// though next to none of it is memory.
Bytes tablesOf(Bytes space) { return Bytes(space.value() / 400 + 256 * kMiB); }

Finding addressSpace(const Options& options) {
  Bytes storage;
  const Bytes* const limit = limitOf(RLIMIT_AS, storage);
  if (limit == nullptr) return {"limit-address-space", Verdict::kOk, "unlimited", ""};
  const bool enough = *limit > options.space + tablesOf(options.space);
  return {
      "limit-address-space", enough ? Verdict::kOk : Verdict::kFail,
      fmt::format("{}; the managed space reserves {}", sizeText(*limit), sizeText(options.space)),
      enough ? "" : "ulimit -v unlimited   (or --conf space:SIZE)"};
}

Finding data(const Options& options) {
  Bytes storage;
  const Bytes* const limit = limitOf(RLIMIT_DATA, storage);
  if (limit == nullptr) return {"limit-data", Verdict::kOk, "unlimited", ""};
  const bool enough = *limit > tablesOf(options.space);
  return {"limit-data", enough ? Verdict::kOk : Verdict::kFail,
          fmt::format("{}; tables of a managed space of {} count as {}", sizeText(*limit),
                      sizeText(options.space), sizeText(tablesOf(options.space))),
          enough ? "" : "ulimit -d unlimited   (or --conf space:SIZE)"};
}

Finding fileSize(const Options& options) {
  Bytes storage;
  const Bytes* const limit = limitOf(RLIMIT_FSIZE, storage);
  if (limit == nullptr) return {"limit-file-size", Verdict::kOk, "unlimited", ""};
  Bytes needed;
  for (const FarSpec& spec : std::span(options.far).first(options.far_count)) {
    needed = std::max(needed, spec.kind->largest_file(spec));
  }
  const std::string text = sizeText(*limit);
  if (needed > *limit) {
    return {"limit-file-size", Verdict::kFail,
            fmt::format("{}, which counts for far memory too; that of this run needs {}", text,
                        sizeText(needed)),
            "ulimit -f unlimited"};
  }
  // A pool of any useful size is larger.
  if (options.far_count == 0) {
    return {"limit-file-size", Verdict::kWarn, text + ": cxl:SIZE can be no larger",
            "ulimit -f unlimited"};
  }
  return {"limit-file-size", Verdict::kOk, text, ""};
}

}  // namespace

std::vector<Finding> examineLimits(const Options& options) {
  return {addressSpace(options), data(options), fileSize(options)};
}

}  // namespace tidepool::cli
