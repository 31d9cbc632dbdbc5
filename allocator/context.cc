// SPDX-License-Identifier: Apache-2.0
// Opening and closing contexts, and names of tiers.
#include "allocator/context.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/text_buffer.h"
#include "runtime/stats/stats_json.h"

namespace tidepool {

Result<std::unique_ptr<Context>> Context::open(const std::optional<Options>& options) {
  ProcessMemory& process = ProcessMemory::instance();
  TP_TRY(process.join(options));
  return std::unique_ptr<Context>(new Context(process));
}

Context::~Context() { process_.leave(); }

Status Context::close() {
  const size_t left = users();
  if (left == 0) return {};
  return fail(ErrorCode::kConflict,
              "%zu heaps, tables or completions of this context are still there: free them first",
              left);
}

namespace {

uint64_t tierCount(const StatsPage& stats) {
  return std::min<uint64_t>(stats.tier_count.load(std::memory_order_relaxed), kMaxTiers);
}

/// The only tier of that kind ("cxl", "remote"); 0 if none or several are.
uint8_t onlyOfKind(const StatsPage& stats, std::string_view kind) {
  uint8_t found = 0;
  for (uint64_t number = 1; number < tierCount(stats); ++number) {
    const std::string_view name = statsText(stats.tiers[number].name);
    if (name.substr(0, name.find(':')) != kind) continue;
    if (found != 0) return 0;
    found = static_cast<uint8_t>(number);
  }
  return found;
}

}  // namespace

Result<Placement> findTier(const StatsPage& stats, std::string_view name) {
  if (name == "local" || name == "dram" || name == "0") return Placement::local();
  uint64_t wanted = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), wanted);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  ShortText<160> known;
  for (uint64_t number = 1; number < tierCount(stats); ++number) {
    const std::string_view its_name = statsText(stats.tiers[number].name);
    if (its_name.empty()) continue;
    if (its_name == name || (is_number && wanted == number)) {
      return Placement::in(static_cast<uint8_t>(number));
    }
    known.append(", ");
    known.append(its_name);
  }
  if (const uint8_t number = onlyOfKind(stats, name)) return Placement::in(number);
  return fail(ErrorCode::kNotFound, "no tier is called '%.*s': there are local%s",
              static_cast<int>(std::min<size_t>(name.size(), 40)), name.data(), known.c_str());
}

}  // namespace tidepool
