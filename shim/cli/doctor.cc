// SPDX-License-Identifier: Apache-2.0
// `tidepool doctor`: gathers the findings and writes them. See doctor.h.
#include "shim/cli/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/options.h"
#include "shim/cli/limits.h"
#include "shim/cli/program_check.h"
#include "shim/cli/tier_check.h"
#include "shim/cli/topology.h"

namespace tidepool::cli {
namespace {

Finding preload() {
  const Result<std::string> library = findPreloadLibrary();
  if (library) return {"preload-library", Verdict::kOk, *library, ""};
  return {"preload-library", Verdict::kFail, library.error().text(),
          "export TIDEPOOL_PRELOAD=/path/to/libtidepool-preload.so"};
}

/// Where `tidepool run` would look for the host's agent.
Options agentOptions() {
  Options options;
  const char* agent = getenv("TIDEPOOL_AGENT");
  if (agent == nullptr || *agent == '\0') return options;
  const Status set = setOption(options, "agent", agent);
  if (!set) throw UsageError(fmt::format("doctor: TIDEPOOL_AGENT: {}", set.error().text()));
  return options;
}

Finding tier(const std::string& text) {
  const Result<FarSpec> spec = parseFarSpec(text);
  if (!spec) throw UsageError(fmt::format("doctor: --far: {}", spec.error().text()));
  const std::string name = fmt::format("far-{}", specText(*spec));
  const Result<TierReport> report = checkTier(*spec, agentOptions(), CheckDepth::kTry);
  if (!report) return {name, Verdict::kFail, report.error().text(), ""};
  const bool well = report->warning[0] == '\0';
  return {name, well ? Verdict::kOk : Verdict::kWarn, well ? report->detail : report->warning, "",
          report->transport};
}

const char* verdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
  }
  return "?";
}

std::string painted(Verdict verdict) {
  constexpr const char* kColours[] = {"\x1b[32m", "\x1b[33m", "\x1b[31m"};
  const std::string name = fmt::format("{:<4}", verdictName(verdict));
  const char* no_color = getenv("NO_COLOR");
  const bool plain = isatty(STDOUT_FILENO) == 0 || (no_color != nullptr && no_color[0] != '\0');
  return plain ? name : fmt::format("{}{}\x1b[0m", kColours[static_cast<int>(verdict)], name);
}

void print(const std::vector<Finding>& findings, const Result<Topology>& topology, bool able) {
  for (const Finding& finding : findings) {
    fmt::print("{}  {:<38}  {}\n", painted(finding.verdict), finding.name, finding.detail);
    if (!finding.mend.empty()) fmt::print("{:46}mend: {}\n", "", finding.mend);
  }
  fmt::print("\n{}", topology ? topologyText(*topology)
                              : fmt::format("Topology: {}\n", topology.error().text()));
  fmt::print("\n{}\n",
             able ? "Programs can run managed on this machine."
                  : "Programs cannot run managed on this machine: mend what failed above.");
}

void printJson(const std::vector<Finding>& findings, const Result<Topology>& topology, bool able) {
  using Json = nlohmann::ordered_json;
  Json checks = Json::array();
  for (const Finding& finding : findings) {
    Json check = {{"name", finding.name},
                  {"status", verdictName(finding.verdict)},
                  {"detail", finding.detail},
                  {"mend", finding.mend}};
    if (!finding.transport.empty()) check["transport"] = finding.transport;
    checks.push_back(std::move(check));
  }
  const Json nodes = topology ? Json::parse(topologyJson(*topology)) : Json(nullptr);
  const Json json = {
      {"schema", 1}, {"can_run_managed", able}, {"checks", checks}, {"topology", nodes}};
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

int doctor(const Arguments& arguments) {
  if (!arguments.operands().empty()) {
    throw UsageError(fmt::format("doctor: unexpected '{}'", arguments.operands().front()));
  }
  Options options;
  for (const std::string& spec : arguments.values("--far")) {
    const Status far = setOption(options, "far", spec);
    if (!far) throw UsageError(fmt::format("doctor: --far: {}", far.error().text()));
  }
  std::vector<Finding> findings = examineKernel();
  for (std::vector<Finding> more : {examineLimits(options), examineMemory(), examineDevices()}) {
    std::move(more.begin(), more.end(), std::back_inserter(findings));
  }
  findings.push_back(preload());
  for (const std::string& spec : arguments.values("--far")) findings.push_back(tier(spec));
  const bool able = std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.verdict == Verdict::kFail;
  });
  const Result<Topology> topology = readTopology();
  arguments.has("--json") ? printJson(findings, topology, able) : print(findings, topology, able);
  return able ? 0 : 1;
}

}  // namespace tidepool::cli
