// SPDX-License-Identifier: Apache-2.0
// Recorded faults of real programs, told to the prefetcher again: most pages of their gather loops
// are foretold, and most of what is foretold is used. Exact: no program runs, nothing is timed.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "runtime/policy/fault_recording.h"

namespace tidepool {
namespace {

std::vector<std::byte> recordingOf(const char* program) {
  std::ifstream file(std::string(RECORDINGS) + "/" + program + ".faults", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Outcome {
  uint64_t faults = 0;
  uint64_t gathered = 0;  // pages that loops touched after they were understood
  uint64_t covered = 0;   // of them, those that were there, foretold
  uint64_t foretold = 0;
};

/// What is foretold is there when its turn comes, and does not fault.
Outcome replay(const std::vector<std::byte>& bytes) {
  FaultRecording recording(bytes);
  IndirectPrefetcher prefetcher;
  Outcome outcome;
  std::set<uint64_t> there, understood;
  while (const auto sample = recording.next()) {
    ++outcome.faults;
    const uint64_t page = sample->address / kPageSize;
    recording.arrive(sample->address);
    if (there.erase(page) > 0) {
      ++outcome.covered;
      ++outcome.gathered;
      continue;
    }
    const auto result = prefetcher.onFault(*sample, recording);
    if (result == IndirectPrefetcher::Result::kForetold) understood.insert(sample->code);
    outcome.gathered += understood.contains(sample->code) ? 1 : 0;
    for (const uint64_t foretold : prefetcher.foretold()) {
      recording.arrive(foretold);
      there.insert(foretold / kPageSize);
      ++outcome.foretold;
    }
  }
  return outcome;
}

class FaultReplay : public testing::TestWithParam<const char*> {};

TEST_P(FaultReplay, FourInFivePagesAreForetoldAndUsed) {
  const std::vector<std::byte> bytes = recordingOf(GetParam());
  ASSERT_FALSE(bytes.empty());
  const Outcome outcome = replay(bytes);
  SCOPED_TRACE(testing::Message() << outcome.faults << " faults, " << outcome.gathered
                                  << " of gather loops, " << outcome.covered << " covered, "
                                  << outcome.foretold << " foretold");
  EXPECT_GT(outcome.gathered, outcome.faults / 2);
  EXPECT_GE(outcome.covered * 5, outcome.gathered * 4);
  EXPECT_GE(outcome.covered * 5, outcome.foretold * 4);
}

// A recording that was cut off or damaged ends; it is not believed further than it goes.
TEST_P(FaultReplay, DamagedRecordingsEnd) {
  const std::vector<std::byte> whole = recordingOf(GetParam());
  for (size_t cut = 0; cut < whole.size(); cut += whole.size() / 16 + 1) {
    std::vector<std::byte> bytes(whole.begin(), whole.begin() + static_cast<long>(cut));
    replay(bytes);
    bytes = whole;
    for (size_t at = cut; at < std::min(cut + 3, bytes.size()); ++at) bytes[at] ^= std::byte{0x55};
    replay(bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, FaultReplay, testing::Values("fasttext", "pytorch", "sort"),
                         [](const auto& program) { return std::string(program.param); });

}  // namespace
}  // namespace tidepool
