// SPDX-License-Identifier: Apache-2.0
// The kernel probes: errors that name the mending command for each way userfaultfd can be missing,
// and small files of /proc read safely.
#include "runtime/os/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/options.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

uint64_t allFeatures() {
  uint64_t bits = 0;
  for (const UffdFeature& feature : uffdFeatures()) bits |= feature.bit;
  return bits;
}

TEST(RequireUserfaultfd, PassesWithFullAccessAndFeatures) {
  EXPECT_TRUE(requireUserfaultfd({UffdAccess::kSyscall, allFeatures(), 0}));
  EXPECT_TRUE(requireUserfaultfd({UffdAccess::kDevice, allFeatures(), EPERM}));
}

TEST(RequireUserfaultfd, NamesTheCommandThatMends) {
  for (const UffdAccess access : {UffdAccess::kNone, UffdAccess::kUserOnly}) {
    const Status refused = requireUserfaultfd({access, allFeatures(), EPERM});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kPermission);
    EXPECT_THAT(refused.error().text(), HasSubstr("sysctl -w vm.unprivileged_userfaultfd=1"));
  }
  const Status absent = requireUserfaultfd({UffdAccess::kNone, 0, ENOSYS});
  EXPECT_EQ(absent.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(absent.error().text(), HasSubstr("CONFIG_USERFAULTFD"));
}

TEST(RequireUserfaultfd, OnlyFeaturesWithoutASubstituteAreRequired) {
  for (const UffdFeature& feature : uffdFeatures()) {
    const Status status =
        requireUserfaultfd({UffdAccess::kSyscall, allFeatures() & ~feature.bit, 0});
    EXPECT_EQ(status.has_value(), feature.without != nullptr) << feature.name;
  }
}

TEST(Probe, AgreesWithTheKernelsAge) {
  const KernelVersion version = kernelVersion();
  EXPECT_GE(version.major, 4u);
  // A newer kernel always has it; an older one may have it backported.
  if (version >= KernelVersion{6, 7}) {
    EXPECT_TRUE(probePagemapScan());
  }
  const UffdProbe probe = probeUserfaultfd();
  EXPECT_EQ(probe.access == UffdAccess::kNone, probe.features == 0);
}

TEST(ReadSys, ReadsNumbersAndRefusesTheRest) {
  EXPECT_GT(*readSysNumber("/proc/sys/vm/max_map_count"), 0);
  EXPECT_EQ(readSysNumber("/no/such/file").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(readSysNumber("/proc/self/status").error().code(), ErrorCode::kCorrupt);
  char small[4];
  EXPECT_LE(readSysText("/proc/self/status", small).size(), sizeof small);
}

TEST(Probe, CountsTheProcessorsThereAre) {
  EXPECT_EQ(presentProcessors(), static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_CONF)));
}

TEST(ReadMeminfo, FindsWholeNamesOnly) {
  // The kernel's own figure for the machine's memory, by another way.
  EXPECT_EQ(readMeminfo("MemTotal").value() / kMiB, machineMemory().value() / kMiB);
  EXPECT_EQ(readMeminfo("Mem").value(), 0u);
  EXPECT_EQ(readMeminfo("NoSuchLine").value(), 0u);
}

}  // namespace
}  // namespace tidepool
