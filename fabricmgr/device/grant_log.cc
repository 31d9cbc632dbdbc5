// SPDX-License-Identifier: Apache-2.0
// GrantLog: writing, reading and rewriting the file. See grant_log.h for its form.
#include "fabricmgr/device/grant_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include "fabricmgr/device/grant_table.h"
#include "fabricmgr/model/fault_point.h"
#include "fabricmgr/model/sealed_lines.h"

namespace tidepool::fabric {
namespace {

std::string_view stateWord(GrantState state) {
  if (state == GrantState::kGranted) return "granted";
  return state == GrantState::kRevoked ? "revoked" : "scrubbed";
}

/// Takes "NAME=VALUE" off the front of `line`; empty if it is not what comes next.
std::string_view field(std::string_view* line, std::string_view name) {
  if (line->substr(0, name.size()) != name || line->size() <= name.size() ||
      (*line)[name.size()] != '=') {
    return {};
  }
  std::string_view value = line->substr(name.size() + 1);
  value = value.substr(0, value.find(' '));
  line->remove_prefix(std::min(line->size(), name.size() + 1 + value.size() + 1));
  return value;
}

bool number(std::string_view text, uint64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool numberField(std::string_view* line, std::string_view name, uint64_t* out) {
  return number(field(line, name), out);
}

/// Nothing, or pieces that one region can hold.
bool extentsOf(std::string_view text, DeviceId device, std::vector<Extent>* out) {
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    const size_t plus = one.find('+');
    uint64_t offset = 0, length = 0;
    if (plus == std::string_view::npos || !number(one.substr(0, plus), &offset) ||
        !number(one.substr(plus + 1), &length)) {
      return false;
    }
    out->push_back({device, offset, Bytes(length)});
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
  return GrantTable::couldHold(Bytes(~0ull), *out);
}

bool evidenceIn(std::string_view line, ScrubEvidence* evidence) {
  uint64_t bytes = 0, passes = 0, nonzero = 0, started = 0, finished = 0;
  if (!numberField(&line, "bytes", &bytes) || !numberField(&line, "passes", &passes) ||
      !numberField(&line, "nonzero", &nonzero)) {
    return false;
  }
  evidence->digest = field(&line, "digest");
  if (!numberField(&line, "started", &started) || !numberField(&line, "finished", &finished) ||
      !line.empty()) {
    return false;
  }
  evidence->bytes = Bytes(bytes);
  evidence->passes = static_cast<uint32_t>(passes);
  evidence->nonzero = Bytes(nonzero);
  evidence->started = Nanoseconds(started);
  evidence->finished = Nanoseconds(finished);
  return true;
}

/// What a log says.
struct Said {
  GrantTable table{Bytes(~0ull)};
  Leader leader;  // without a fabric: nobody's
};

std::string lineOf(const Leader& leader) {
  return fmt::format("fabric uuid={} term={} incarnation={}", leader.fabric, leader.term.value(),
                     leader.incarnation);
}

bool leaderIn(std::string_view line, Leader* leader) {
  uint64_t term = 0;
  leader->fabric = field(&line, "uuid");
  const bool good = isFabricId(leader->fabric) && numberField(&line, "term", &term) &&
                    numberField(&line, "incarnation", &leader->incarnation);
  leader->term = Term(term);
  return good && line.empty();
}

/// Applies one sound line; false if it makes no sense.
bool apply(std::string_view line, DeviceId device, Said* said) {
  GrantTable* const table = &said->table;
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  if (word == "fabric") return leaderIn(line, &said->leader);
  uint64_t region = 0, epoch = 0;
  if (!numberField(&line, "region", &region)) return false;
  if (word == "forget") {
    table->drop(RegionId(region));
    return line.empty();
  }
  GrantReport report;
  report.grant.region = RegionId(region);
  if (!numberField(&line, "epoch", &epoch)) return false;
  report.grant.epoch = Epoch(epoch);
  if (!line.starts_with("extents=") ||
      !extentsOf(field(&line, "extents"), device, &report.grant.extents)) {
    return false;
  }
  report.grant.state = word == "granted"   ? GrantState::kGranted
                       : word == "revoked" ? GrantState::kRevoked
                                           : GrantState::kScrubbed;
  if (report.grant.state == GrantState::kScrubbed) {
    if (word != "scrubbed" || !evidenceIn(line, &report.evidence)) return false;
    report.evidence.region = report.grant.region;
    report.evidence.device = device;
    report.evidence.epoch = report.grant.epoch;
  } else if (!line.empty()) {
    return false;
  }
  table->put(report);
  return true;
}

Result<std::string> readWhole(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) return std::string();
  if (!fd.valid()) return failErrno(ErrorCode::kPermission, "cannot open %s", path.c_str());
  std::string text;
  char piece[65536];
  for (;;) {
    const ssize_t got = read(fd.get(), piece, sizeof piece);
    if (got < 0) return failErrno(ErrorCode::kIo, "cannot read %s", path.c_str());
    if (got == 0) return text;
    text.append(piece, static_cast<size_t>(got));
  }
}

Result<Said> readLog(const std::string& path, DeviceId device) {
  const auto text = readWhole(path);
  if (!text) return tl::unexpected(text.error());
  Said said;
  TP_TRY(readSealedLines(*text, path,
                         "Put a good copy back, or delete the line: the manager declares lost "
                         "what it then misses here",
                         [&](std::string_view line) { return apply(line, device, &said); }));
  return said;
}

/// Whether the manager may have the log, by what it says.
Status admit(const Said& said, Leadership& leadership) {
  if (said.leader.fabric.empty()) return {};
  const Status may = mayLead(said.leader, leadership.leader(),
                             "`fabricmgr device remove` it there, or, if that fabric is no more, "
                             "delete its record of grants");
  if (!may && may.error().code() == ErrorCode::kStaleEpoch) leadership.supersede(said.leader.term);
  return may;
}

Status writeWhole(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return failErrno(errno == ENOSPC ? ErrorCode::kNoSpace : ErrorCode::kIo, "cannot write %s",
                       path.c_str());
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (fdatasync(fd) != 0) return failErrno(ErrorCode::kIo, "cannot sync %s", path.c_str());
  return {};
}

/// The folder's entry for a new or renamed file is durable after this.
Status syncFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return failErrno(ErrorCode::kIo, "cannot sync %s", folder.c_str());
  }
  return {};
}

std::string linesOf(const std::vector<GrantReport>& grants) {
  std::string text;
  for (const GrantReport& report : grants) text += sealedLine(GrantLog::lineOf(report));
  return text;
}

/// Short files are not worth the effort, however little of them counts.
constexpr size_t kShort = 256 * kKiB;

Result<UniqueFd> lockFor(const std::string& path) {
  const std::string name = path + ".lock";
  UniqueFd fd(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return failErrno(ErrorCode::kPermission, "cannot open %s", name.c_str());
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorCode::kConflict, "%s: another process has this pool open", path.c_str());
  }
  return fd;
}

}  // namespace

std::string GrantLog::lineOf(const GrantReport& report) {
  const Grant& grant = report.grant;
  std::string line = fmt::format("{} region={} epoch={} extents=", stateWord(grant.state),
                                 grant.region.value(), grant.epoch.value());
  for (const Extent& extent : grant.extents) {
    if (&extent != grant.extents.data()) line += ',';
    line += fmt::format("{}+{}", extent.offset, extent.length.value());
  }
  if (grant.state == GrantState::kScrubbed) {
    const ScrubEvidence& e = report.evidence;
    line += fmt::format(" bytes={} passes={} nonzero={} digest={} started={} finished={}",
                        e.bytes.value(), e.passes, e.nonzero.value(), e.digest, e.started.value(),
                        e.finished.value());
  }
  return line;
}

std::string GrantLog::forgetLine(RegionId region) {
  return fmt::format("forget region={}", region.value());
}

Result<std::unique_ptr<GrantLog>> GrantLog::open(const std::string& path, DeviceId device,
                                                 Leadership& leadership,
                                                 std::vector<GrantReport>* grants) {
  auto lock = lockFor(path);
  if (!lock && lock.error().code() == ErrorCode::kConflict) TP_TRY(mayBeOurs(path, leadership));
  if (!lock) return tl::unexpected(lock.error());
  const auto said = readLog(path, device);
  if (!said) return tl::unexpected(said.error());
  TP_TRY(admit(*said, leadership));
  *grants = said->table.all();
  const std::string head = sealedLine(fabric::lineOf(leadership.leader()));
  std::unique_ptr<GrantLog> log(new GrantLog(path, std::move(*lock), head));
  const std::string lines = head + linesOf(*grants);
  TP_TRY(log->rewrite(lines));
  log->begin(lines.size());
  return log;
}

Status GrantLog::mayBeOurs(const std::string& path, Leadership& leadership) {
  const auto said = readLog(path, DeviceId());
  if (!said || said->leader.fabric.empty()) return {};
  TP_TRY(admit(*said, leadership));
  if (said->leader.is(leadership.leader())) return {};
  leadership.supersede(said->leader.term);
  return fail(ErrorCode::kStaleEpoch, "another manager of this fabric, of term %llu, has it",
              static_cast<unsigned long long>(said->leader.term.value()));
}

void GrantLog::begin(size_t length) {
  MutexLock lock(mutex_);
  beginAt(length);
}

void GrantLog::beginAt(size_t length) {
  length_ = length;
  long_ = std::max(kShort, 4 * length);
}

bool GrantLog::isLong() {
  MutexLock lock(mutex_);
  return length_ > long_;
}

void GrantLog::renew(const std::vector<GrantReport>& grants) {
  std::string text = head_ + linesOf(grants);
  MutexLock lock(mutex_);
  waiting_ = std::move(text);
  anew_ = true;
  beginAt(waiting_.size());
}

/// Put in place in one step.
Status GrantLog::rewrite(const std::string& text) {
  const std::string part = path_ + ".part";
  UniqueFd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return failErrno(ErrorCode::kPermission, "cannot open %s", part.c_str());
  TP_TRY(writeWhole(fd.get(), text, part));
  if (rename(part.c_str(), path_.c_str()) != 0) {
    return failErrno(ErrorCode::kIo, "cannot rename %s", part.c_str());
  }
  TP_TRY(syncFolder(path_));
  fd_ = std::move(fd);
  return {};
}

Result<std::vector<GrantReport>> GrantLog::read(const std::string& path, DeviceId device) {
  const auto said = readLog(path, device);
  if (!said) return tl::unexpected(said.error());
  return said->table.all();
}

uint64_t GrantLog::disown() {
  MutexLock lock(mutex_);
  waiting_.clear();
  anew_ = true;
  beginAt(0);
  return ++enqueued_;
}

uint64_t GrantLog::enqueue(const std::string& line) {
  MutexLock lock(mutex_);
  const std::string whole = sealedLine(line);
  waiting_ += whole;
  length_ += whole.size();
  return ++enqueued_;
}

Status GrantLog::await(uint64_t ticket) {
  mutex_.lock();
  while (durable_ < ticket && !broken_) {
    if (writing_) {
      done_.wait(mutex_);
      continue;
    }
    // Nobody writes: this thread does, for all who wait.
    writing_ = true;
    std::string text;
    text.swap(waiting_);
    const bool anew = std::exchange(anew_, false);
    const uint64_t last = enqueued_;
    mutex_.unlock();
    faultPoint(FaultPoint::kPoolBeforeGrantWrite);
    const Status written = anew ? rewrite(text) : writeWhole(fd_.get(), text, path_);
    faultPoint(FaultPoint::kPoolAfterGrantWrite);
    mutex_.lock();
    writing_ = false;
    if (written) {
      durable_ = last;
    } else {
      broken_ = true;
    }
    done_.notifyAll();
  }
  const bool good = durable_ >= ticket;
  mutex_.unlock();
  if (good) return {};
  return fail(ErrorCode::kIo, "the pool's grants could not be written: is its disk full?");
}

}  // namespace tidepool::fabric
