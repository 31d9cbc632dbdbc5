// SPDX-License-Identifier: Apache-2.0
// What `tidepool doctor` looks at: kernel, memory and limits, devices. Reads only. See doctor.h.
#include <dirent.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/base/text_buffer.h"
#include "runtime/options.h"
#include "runtime/os/numa.h"
#include "runtime/os/perf_events.h"
#include "runtime/os/probe.h"
#include "shim/cli/doctor.h"
#include "shim/cli/processes.h"

namespace tidepool::cli {
namespace {

std::string sysText(const char* path) {
  char buffer[256];
  return std::string(readSysText(path, buffer));
}

/// The names that match a pattern, joined; empty if there are none.
std::string listed(const char* pattern) {
  glob_t found = {};
  std::string names;
  if (glob(pattern, 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      const std::string path = found.gl_pathv[i];
      names += (names.empty() ? "" : " ") + path.substr(path.rfind('/') + 1);
    }
  }
  globfree(&found);
  return names;
}

Finding kernel() {
  const KernelVersion version = kernelVersion();
  const std::string text = fmt::format("Linux {}.{}", version.major, version.minor);
  if (version < KernelVersion{5, 7}) {
    return {"kernel", Verdict::kFail, text + " is too old: Tidepool needs 5.7",
            "sudo apt-get install linux-image-amd64"};
  }
  if (version < KernelVersion{6, 8}) {
    return {"kernel", Verdict::kWarn, text + ": works; 6.8 and newer evict without copying", ""};
  }
  return {"kernel", Verdict::kOk, text, ""};
}

std::vector<Finding> userfaultfd() {
  const UffdProbe probe = probeUserfaultfd();
  const Status required = requireUserfaultfd(probe);
  if (!required) {
    const bool permission = required.error().code() == ErrorCode::kPermission;
    return {{"userfaultfd", Verdict::kFail, required.error().text(),
             permission ? "sudo sysctl -w vm.unprivileged_userfaultfd=1" : ""}};
  }
  std::vector<Finding> findings = {{"userfaultfd", Verdict::kOk,
                                    probe.access == UffdAccess::kDevice
                                        ? "usable through /dev/userfaultfd"
                                        : "usable through the system call",
                                    ""}};
  for (const UffdFeature& feature : uffdFeatures()) {
    const std::string name = fmt::format("userfaultfd-{}", feature.name);
    if ((probe.features & feature.bit) != 0) {
      findings.push_back({name, Verdict::kOk, "present", ""});
    } else {
      findings.push_back({name, Verdict::kWarn, fmt::format("absent: {}", feature.without), ""});
    }
  }
  return findings;
}

Finding pagemapScan() {
  if (probePagemapScan()) return {"pagemap-scan", Verdict::kOk, "present", ""};
  return {"pagemap-scan", Verdict::kWarn, "absent: writes are sampled at a higher cost (Linux 6.7)",
          ""};
}

Finding hugePages() {
  const std::string mode = sysText("/sys/kernel/mm/transparent_hugepage/enabled");
  if (mode.find("[always]") == std::string::npos) {
    return {"transparent-huge-pages", Verdict::kOk, mode.empty() ? "absent" : mode, ""};
  }
  return {"transparent-huge-pages", Verdict::kWarn,
          mode + ": memory outside the managed space may take more DRAM than it uses",
          "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding overcommit() {
  const auto mode = readSysNumber("/proc/sys/vm/overcommit_memory");
  if (!mode) return {"overcommit", Verdict::kWarn, mode.error().text(), ""};
  if (*mode != 2) return {"overcommit", Verdict::kOk, fmt::format("mode {}", *mode), ""};
  return {"overcommit", Verdict::kWarn,
          "mode 2 (strict): reserving the managed space may be refused",
          "sudo sysctl -w vm.overcommit_memory=0"};
}

Finding mapCount() {
  constexpr int64_t kUsual = 65530;  // the kernel's default, which Tidepool is made to live with
  const auto count = readSysNumber("/proc/sys/vm/max_map_count");
  if (!count) return {"max-map-count", Verdict::kWarn, count.error().text(), ""};
  if (*count >= kUsual) return {"max-map-count", Verdict::kOk, std::to_string(*count), ""};
  return {"max-map-count", Verdict::kWarn, fmt::format("{} is below the usual {}", *count, kUsual),
          fmt::format("sudo sysctl -w vm.max_map_count={}", kUsual)};
}

Finding openFiles() {
  constexpr rlim_t kEnough = 256;
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const bool enough = limit.rlim_cur >= kEnough;
  return {"limit-open-files", enough ? Verdict::kOk : Verdict::kWarn,
          std::to_string(limit.rlim_cur), enough ? "" : "ulimit -n 1024"};
}

Finding memory() {
  return {"memory", Verdict::kOk,
          fmt::format("{}, {} available", sizeText(machineMemory()),
                      sizeText(readMeminfo("MemAvailable"))),
          ""};
}

Finding swap() {
  const Bytes swap = readMeminfo("SwapTotal");
  const std::string zram = listed("/sys/block/zram*");
  return {"swap", Verdict::kOk,
          fmt::format("{}{}", swap == Bytes() ? "none" : sizeText(swap),
                      zram.empty() ? "" : fmt::format(" (zram devices: {})", zram)),
          ""};
}

Finding sharedMemory() {
  struct statvfs info;
  if (statvfs("/dev/shm", &info) != 0) {
    return {"dev-shm", Verdict::kWarn, "/dev/shm is not mounted",
            "sudo mount -t tmpfs tmpfs /dev/shm"};
  }
  const Bytes free(uint64_t{info.f_bavail} * info.f_frsize);
  return {"dev-shm", Verdict::kOk, fmt::format("{} free", sizeText(free)), ""};
}

/// A device class: none of a kind is no fault, only fewer choices.
Finding devices(const char* name, const char* pattern, const char* absent) {
  const std::string names = listed(pattern);
  return {name, Verdict::kOk, names.empty() ? absent : names, ""};
}

Finding counters() {
  const auto event = findMemoryEvent(kEventSources);
  if (event) {
    return {"pmu", Verdict::kOk,
            fmt::format("{}: loads are sampled too, for memory servers (not tried on hardware yet)",
                        event->name == std::string_view("ibs") ? "AMD IBS" : "Intel PEBS"),
            ""};
  }
  return {"pmu", Verdict::kOk,
          fmt::format("{}: sampling works by write tracking and unmapping", event.error().text()),
          ""};
}

Finding perfPermission() {
  const auto level = readSysNumber("/proc/sys/kernel/perf_event_paranoid");
  if (!level) return {"perf-events", Verdict::kOk, "absent", ""};
  const bool allowed = *level <= 2 || geteuid() == 0;
  return {"perf-events", allowed ? Verdict::kOk : Verdict::kWarn,
          fmt::format("perf_event_paranoid {}", *level),
          allowed ? "" : "sudo sysctl -w kernel.perf_event_paranoid=2"};
}

/// Tried, since whether it is allowed depends on capabilities and filters too.
Finding faultRegisters() {
  const auto ring = openKernelPerfPort()->openFaults(static_cast<int>(gettid()));
  if (ring) {
    return {"registers", Verdict::kOk, "gather loops over a memory server can be foretold", ""};
  }
  const bool refused = ring.error().code() == ErrorCode::kPermission;
  return {
      "registers", Verdict::kOk,
      fmt::format("gather loops over a memory server cannot be foretold: {}", ring.error().text()),
      refused ? "sudo sysctl -w kernel.perf_event_paranoid=2" : ""};
}

Finding numaNodes() {
  const os::NumaNodes nodes = os::readNumaNodes();
  std::string text;
  for (size_t i = 0; i < nodes.count; ++i) {
    const os::NumaNode& node = nodes.nodes[i];
    text += fmt::format(
        "{}node {}: {} ({} free){}", i == 0 ? "" : "; ", node.number, sizeText(node.total),
        sizeText(node.free),
        node.has_cpus ? "" : fmt::format(", no processors, distance {}", node.distance));
  }
  return {"numa", Verdict::kOk, text.empty() ? "the kernel names no nodes" : text, ""};
}

/// Where these are on, the kernel moves pages between nodes of its own accord. Memory of numa:
/// tiers has a policy, which exempts it from balancing; local memory that is demoted there by the
/// kernel counts as local still.
Finding kernelTiering() {
  const os::KernelTiering kernel = os::readKernelTiering();
  const std::string text = fmt::format("numa_balancing {}, demotion {}", kernel.balancing,
                                       kernel.demotes ? "on" : "off");
  if (!kernel.moves()) return {"kernel-tiering", Verdict::kOk, text, ""};
  ShortText<160> mend;
  kernel.appendMend(mend);
  return {"kernel-tiering", Verdict::kWarn,
          text + ": the kernel moves pages between nodes, beside Tidepool", mend.c_str()};
}

}  // namespace

std::vector<Finding> examineKernel() {
  std::vector<Finding> findings = {kernel()};
  for (Finding& finding : userfaultfd()) findings.push_back(std::move(finding));
  findings.push_back(pagemapScan());
  findings.push_back(hugePages());
  findings.push_back(overcommit());
  findings.push_back(mapCount());
  return findings;
}

std::vector<Finding> examineMemory() { return {openFiles(), memory(), swap(), sharedMemory()}; }

std::vector<Finding> examineDevices() {
  return {numaNodes(),
          kernelTiering(),
          devices("cxl", "/sys/bus/cxl/devices/mem*", "no CXL memory device"),
          devices("dax", "/dev/dax*", "no device-DAX node"),
          devices("rdma", "/sys/class/infiniband/*", "no RDMA device: remote memory goes by TCP"),
          counters(),
          perfPermission(),
          faultRegisters()};
}

}  // namespace tidepool::cli
