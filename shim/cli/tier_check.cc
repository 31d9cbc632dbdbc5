// SPDX-License-Identifier: Apache-2.0
// Checks of far tiers, by their kinds' rows. See tier_check.h.
#include "shim/cli/tier_check.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "runtime/agent_status.h"
#include "runtime/base/format.h"
#include "runtime/base/text_buffer.h"

namespace tidepool::cli {
namespace {

template <size_t kSize>
void copyText(const nlohmann::json& from, const char* key, const char* otherwise,
              char (&to)[kSize]) {
  formatText(to, kSize, "%s", from.value(key, otherwise).c_str());
}

Result<AgentState> askAgent(const char* agent) {
  char text[4096];
  TP_TRY(agentStatus(agent, text));
  const auto status = nlohmann::json::parse(text, nullptr, false);
  if (!status.is_object()) {
    return fail(ErrorCode::kCorrupt, "the agent does not say how it is: is it of another version?");
  }
  AgentState state;
  copyText(status, "host", "?", state.host);
  copyText(status, "manager", "", state.manager);
  copyText(status, "trouble", "", state.trouble);
  state.ready = status.value("ready", uint64_t{0});
  state.regions = status.value("regions", uint64_t{0});
  return state;
}

}  // namespace

Result<TierReport> checkTier(const FarSpec& spec, const Options& options, CheckDepth depth) {
  const auto asked = sealedAsAsked(spec, options);
  if (!asked) return tl::unexpected(asked.error());
  return spec.kind->check(*asked, {.depth = depth, .agent = options.agent, .ask_agent = askAgent});
}

std::string specText(const FarSpec& spec) {
  FarSpec unsized = spec;
  unsized.size = Bytes();
  char text[192];
  if (!renderFarSpec(unsized, text)) return "?";
  return spec.size == Bytes() ? text : fmt::format("{}:{}", text, sizeText(spec.size));
}

}  // namespace tidepool::cli
