// SPDX-License-Identifier: Apache-2.0
// What is kept on disk by lines with a checksum: the grants of a pool, the journal of an agent. The
// first byte says which, and whether this program puts the checksums there: a file that was damaged
// on purpose has them right. A log that opens says the same when it is opened again, and no byte of
// a device is granted twice.
#include <fmt/format.h>

#include <algorithm>

#include "fabricmgr/agent/journal.h"
#include "fabricmgr/device/grant_log.h"
#include "tests/fuzz/fuzz.h"

namespace tidepool::fuzz {
namespace {

using fabric::DeviceId;
using fabric::GrantLog;
using fabric::GrantReport;

constexpr char kFabric[] = "01234567-89ab-4cde-8f01-23456789abcd";

/// The checksum of both files, FNV-1a.
uint64_t checksum(std::string_view line) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const char c : line) sum = (sum ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return sum;
}

/// Every line with its checksum before it.
std::string sealed(std::string_view lines) {
  std::string text;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    text += fmt::format("{:016x} {}\n", checksum(line), line);
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  return text;
}

std::string textOf(const std::vector<GrantReport>& reports) {
  std::string text;
  for (const GrantReport& report : reports) text += GrantLog::lineOf(report) + "\n";
  return text;
}

/// No two regions hold the same byte, none holds a byte twice.
void checkApart(const std::vector<GrantReport>& reports) {
  std::vector<fabric::Extent> extents;
  for (const GrantReport& report : reports) {
    TP_CHECK(!report.grant.extents.empty());
    extents.insert(extents.end(), report.grant.extents.begin(), report.grant.extents.end());
  }
  std::sort(extents.begin(), extents.end(),
            [](const auto& left, const auto& right) { return left.offset < right.offset; });
  for (size_t i = 0; i < extents.size(); ++i) {
    TP_CHECK_OP(extents[i].offset, <, extents[i].end());
    if (i > 0) TP_CHECK_OP(extents[i - 1].end(), <=, extents[i].offset);
  }
}

void tryGrants(const std::string& path) {
  const auto read = GrantLog::read(path, DeviceId(1));
  std::vector<GrantReport> first, second;
  // Of the fabric of the seeds, with the highest term there is.
  fabric::Leadership leadership({kFabric, fabric::Term(~0ull), 1, fabric::TakeOver::kNo});
  {
    const auto log = GrantLog::open(path, DeviceId(1), leadership, &first);
    TP_CHECK(!log || read);
    if (!log && read) {  // of another fabric, or the very same term
      TP_CHECK(log.error().code() == ErrorCode::kRefused ||
               log.error().code() == ErrorCode::kStaleEpoch);
    }
    if (!log) return;
    TP_CHECK(textOf(*read) == textOf(first));
    checkApart(first);
  }
  TP_CHECK(GrantLog::open(path, DeviceId(1), leadership, &second).has_value());
  TP_CHECK(textOf(first) == textOf(second));
}

void checkSame(const std::map<uint64_t, agent::Journal::Record>& left,
               const std::map<uint64_t, agent::Journal::Record>& right) {
  TP_CHECK_OP(left.size(), ==, right.size());
  for (const auto& [region, record] : left) {
    const auto found = right.find(region);
    TP_CHECK(found != right.end());
    TP_CHECK(record.epoch == found->second.epoch && record.uid == found->second.uid);
    TP_CHECK(record.clean == found->second.clean && record.holders == found->second.holders);
    TP_CHECK(!record.clean || record.holders.empty());
  }
}

void tryJournal(const std::string& path) {
  std::map<uint64_t, agent::Journal::Record> records;
  {
    const auto journal = agent::Journal::open(path);
    if (!journal) return;
    records = (*journal)->records();
  }
  const auto again = agent::Journal::open(path);
  TP_CHECK(again.has_value());
  checkSame(records, (*again)->records());
}

std::string journalLines() {
  return "fabric uuid=01234567-89ab-4cde-8f01-23456789abcd term=3\n"
         "held region=5 epoch=1 uid=1000 pid=100 start=7 client=3\n"
         "held region=6 epoch=2 uid=1000 pid=101 start=8 client=0\n"
         "left region=6 epoch=2 uid=1000 pid=101 start=8\n"
         "clean region=6 epoch=2 uid=1000\n"
         "gone region=5\n";
}

std::string grantLines() {
  GrantReport report;
  report.grant.region = fabric::RegionId(3);
  report.grant.epoch = Epoch(2);
  report.grant.extents = {{DeviceId(1), 0, Bytes(4096)}, {DeviceId(1), 8192, Bytes(4096)}};
  std::string text = fmt::format("fabric uuid={} term=3 incarnation=4\n", kFabric);
  text += GrantLog::lineOf(report) + "\n";
  report.grant.state = fabric::GrantState::kRevoked;
  text += GrantLog::lineOf(report) + "\n";
  report.grant.state = fabric::GrantState::kScrubbed;
  report.evidence.digest = "0123456789abcdef";
  text += GrantLog::lineOf(report) + "\n";
  return text + GrantLog::forgetLine(fabric::RegionId(4)) + "\n";
}

}  // namespace

std::vector<std::string> seeds() {
  return {std::string(1, 0) + grantLines(), std::string(1, 1) + sealed(grantLines()),
          std::string(1, 2) + journalLines(), std::string(1, 3) + sealed(journalLines())};
}

void tryInput(std::string_view input) {
  const uint8_t form = takeByte(&input);
  static const std::string path = scratchFile("log");
  write(path, form % 2 == 0 ? sealed(input) : std::string(input));
  if (form % 4 < 2) {
    tryGrants(path);
  } else {
    tryJournal(path);
  }
}

}  // namespace tidepool::fuzz
