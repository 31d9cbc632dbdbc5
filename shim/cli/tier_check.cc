// SPDX-License-Identifier: Apache-2.0
// One check for each kind of far tier. See tier_check.h.
#include "shim/cli/tier_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/agent_status.h"
#include "runtime/base/clock.h"
#include "runtime/base/text_buffer.h"
#include "runtime/base/unique_fd.h"
#include "runtime/far_auto.h"
#include "runtime/os/numa.h"
#include "runtime/os/probe.h"

namespace tidepool::cli {
namespace {

constexpr Nanoseconds kConnectTimeout(2'000'000'000);

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// HOST:PORT taken apart; brackets around an IPv6 address are dropped.
AddressList resolve(const std::string& target, int& error) {
  const size_t colon = target.rfind(':');
  std::string host = target.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const std::string port = colon == std::string::npos ? "443" : target.substr(colon + 1);
  error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  return AddressList(error == 0 ? list : nullptr, freeaddrinfo);
}

/// Waits for a non-blocking connect to end; returns its errno, 0 when connected.
int finishConnect(int fd, Nanoseconds timeout) {
  pollfd wait = {fd, POLLOUT, 0};
  if (poll(&wait, 1, static_cast<int>(timeout.value() / 1'000'000)) == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

int connectOne(const addrinfo& address, Nanoseconds timeout) {
  const UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  return errno == EINPROGRESS ? finishConnect(fd.get(), timeout) : errno;
}

Result<TierReport> checkCxl(const FarSpec& spec) {
  const Bytes total = machineMemory() + readMeminfo("SwapTotal");
  if (spec.size > total) {
    return fail(
        ErrorCode::kInvalidArgument,
        "far tier cxl:%s: an emulated pool lives in this machine's memory, which is only %s: "
        "give a smaller size, or a real device (dax:, numa:, remote:)",
        sizeText(spec.size).c_str(), sizeText(total).c_str());
  }
  TierReport report{"emulated in this machine's memory", ""};
  const Bytes available = readMeminfo("MemAvailable");
  if (spec.size > available) {
    report.warning =
        fmt::format("far tier cxl:{}: only {} of memory is available now: the pool may not fill",
                    sizeText(spec.size), sizeText(available));
  }
  return report;
}

Result<TierReport> checkDax(const FarSpec& spec) {
  struct stat status;
  if (stat(spec.target, &status) != 0) {
    return failErrno(ErrorCode::kNotFound,
                     "far tier dax:%s: see `daxctl list` for the devices there are", spec.target);
  }
  if (!S_ISCHR(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument,
                "far tier dax:%s is not a character device: give a device-DAX node such as "
                "/dev/dax0.0 (`daxctl list`)",
                spec.target);
  }
  const UniqueFd fd(open(spec.target, O_RDWR | O_CLOEXEC));
  if (!fd.valid()) {
    return failErrno(ErrorCode::kPermission,
                     "far tier dax:%s cannot be opened (give your user access with `setfacl -m "
                     "u:$USER:rw`)",
                     spec.target);
  }
  return TierReport{"device can be opened", ""};
}

Result<TierReport> checkNuma(const FarSpec& spec) {
  const os::NumaNodes nodes = os::readNumaNodes();
  const os::NumaNode* const node = nodes.find(spec.node);
  if (node == nullptr) {
    return fail(ErrorCode::kNotFound,
                "far tier numa:%u: this machine has no such node with memory: `tidepool doctor` "
                "and `numactl --hardware` list them",
                spec.node);
  }
  TierReport report{
      fmt::format("{} free of {}, distance {}{}", sizeText(node->free), sizeText(node->total),
                  node->distance, node->has_cpus ? "" : ", no processors"),
      ""};
  if (nodes.count < 2) {
    report.warning = fmt::format(
        "far tier numa:{}: it is all the memory this machine has: there is nothing to tier",
        spec.node);
  } else if (node->has_cpus) {
    report.warning = fmt::format(
        "far tier numa:{}: it has processors: is it not local memory to programs that run there?",
        spec.node);
  } else if (const os::KernelTiering kernel = os::readKernelTiering(); kernel.moves()) {
    report.warning = fmt::format(
        "far tier numa:{}: the kernel moves pages between nodes, too (numa_balancing {}, demotion "
        "{}): what counts as local may lie there; {}",
        spec.node, kernel.balancing, kernel.demotes ? "on" : "off", kernelTieringMend());
  }
  return report;
}

Result<TierReport> checkAuto(const Options& options) {
  const auto found = findFar();
  if (!found) return fail(found.error().code(), "far tier %s", found.error().text());
  auto report = checkTier(*found, options);
  if (report) report->detail = fmt::format("{}: {}", specText(*found), report->detail);
  return report;
}

Result<TierReport> checkRemote(const FarSpec& spec) {
  const MonotonicClock clock;
  const Nanoseconds start = clock.now();
  const Status status = tryConnect(spec.target, kConnectTimeout);
  if (!status) {
    return fail(
        status.error().code(),
        "far tier remote:%s: %s: is `fabricmgr memserver` running there, and the port open?",
        spec.target, status.error().text());
  }
  return TierReport{fmt::format("reachable in {:.1f} ms",
                                static_cast<double>((clock.now() - start).value()) * 1e-6),
                    ""};
}

Result<TierReport> checkFabric(const char* agent) {
  char text[4096];
  const Status asked = agentStatus(agent, text);
  if (!asked) {
    return fail(asked.error().code(),
                "far tier fabric: %s: `fabricmgr agent` runs on hosts that use pooled memory; "
                "TIDEPOOL_AGENT says where its socket is",
                asked.error().text());
  }
  const auto status = nlohmann::json::parse(text, nullptr, false);
  if (!status.is_object()) {
    return fail(ErrorCode::kCorrupt,
                "far tier fabric: the agent does not say how it is: is it of "
                "another version?");
  }
  const std::string manager = status.value("manager", "");
  TierReport report{
      fmt::format("agent of {}, {} of {} regions ready", status.value("host", "?"),
                  status.value("ready", uint64_t{0}), status.value("regions", uint64_t{0})),
      ""};
  if (manager != "member") {
    report.warning = fmt::format(
        "far tier fabric: the agent has no contact to its manager ({}): {}. There is only what "
        "stands ready on this host",
        manager, status.value("trouble", ""));
  }
  return report;
}

}  // namespace

Status tryConnect(const std::string& target, Nanoseconds timeout) {
  int error = 0;
  const AddressList list = resolve(target, error);
  if (list == nullptr) {
    return fail(ErrorCode::kUnreachable, "cannot resolve its name (%s)", gai_strerror(error));
  }
  int reason = 0;
  for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
    reason = connectOne(*address, timeout);
    if (reason == 0) return {};
    // One silent address is enough: the next ones get no further two seconds each.
    if (reason == ETIMEDOUT) break;
  }
  if (reason == ETIMEDOUT) return fail(ErrorCode::kTimedOut, "no answer within 2 s");
  errno = reason;
  return failErrno(ErrorCode::kUnreachable, "cannot connect");
}

Result<TierReport> checkTier(const FarSpec& spec, const Options& options) {
  switch (spec.kind) {
    case FarKind::kCxl:
      return checkCxl(spec);
    case FarKind::kDax:
      return checkDax(spec);
    case FarKind::kNuma:
      return checkNuma(spec);
    case FarKind::kRemote:
      return checkRemote(spec);
    case FarKind::kFabric:
      return checkFabric(options.agent);
    case FarKind::kAuto:
      return checkAuto(options);
  }
  return fail(ErrorCode::kInternal, "far tier of unknown kind");
}

std::string kernelTieringMend() {
  const os::KernelTiering kernel = os::readKernelTiering();
  std::string mend;
  if (kernel.demotes) mend = "echo false | sudo tee /sys/kernel/mm/numa/demotion_enabled";
  if ((kernel.balancing & 2) == 0) return mend;
  return mend + (mend.empty() ? "" : "; ") + "sudo sysctl -w kernel.numa_balancing=0";
}

std::string specText(const FarSpec& spec) {
  FarSpec unsized = spec;
  unsized.size = Bytes();
  char text[192];
  if (!renderFarSpec(unsized, text)) return "?";
  return spec.size == Bytes() ? text : fmt::format("{}:{}", text, sizeText(spec.size));
}

}  // namespace tidepool::cli
