// SPDX-License-Identifier: Apache-2.0
// Journal: reading, appending, rewriting. See journal.h for the file's form.
#include "fabricmgr/agent/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string_view>

#include "fabricmgr/model/identity.h"
#include "fabricmgr/model/sealed_lines.h"

namespace tidepool::agent {
namespace {

constexpr uint64_t kLinesKept = 1000;  // that are over, before the file is rewritten

std::string withHolder(const char* word, uint64_t region, const Journal::Record& record,
                       const ProcessId& process) {
  return fmt::format("{} region={} epoch={} uid={} pid={} start={}", word, region,
                     record.epoch.value(), record.uid, process.pid, process.start);
}

std::string heldLine(uint64_t region, const Journal::Record& record, const ProcessId& process,
                     ClientName client) {
  return withHolder("held", region, record, process) +
         fmt::format(" client={}", static_cast<uint64_t>(client));
}

std::string cleanLine(uint64_t region, Epoch epoch, uid_t uid) {
  return fmt::format("clean region={} epoch={} uid={}", region, epoch.value(), uid);
}

/// The record of `region`, made anew if it is of another epoch.
Journal::Record& recordOf(std::map<uint64_t, Journal::Record>* records, uint64_t region,
                          Epoch epoch, uid_t uid) {
  Journal::Record& record = (*records)[region];
  if (record.epoch != epoch) record = {};
  record.epoch = epoch;
  record.uid = uid;
  return record;
}

std::string fabricLine(const Journal::Fabric& fabric) {
  return fmt::format("fabric uuid={} term={}", fabric.id, fabric.term);
}

bool fabricIn(const std::string& line, Journal::Fabric* fabric) {
  char id[fabric::kFabricIdSize + 1] = {};
  int used = 0;
  if (sscanf(line.c_str(), "fabric uuid=%36[0-9a-f-] term=%" SCNu64 "%n", id, &fabric->term,
             &used) != 2) {
    return false;
  }
  fabric->id = id;
  return used == static_cast<int>(line.size()) && fabric::isFabricId(fabric->id);
}

/// Takes one sound line over; false if it makes no sense.
bool apply(const std::string& line, std::map<uint64_t, Journal::Record>* records) {
  uint64_t region = 0, epoch = 0, start = 0;
  uint32_t uid = 0;
  int pid = 0, used = 0;
  const auto whole = [&] { return used == static_cast<int>(line.size()); };
  const char* text = line.c_str();
  if (sscanf(text, "gone region=%" SCNu64 "%n", &region, &used) == 1 && whole()) {
    records->erase(region);
    return true;
  }
  if (sscanf(text, "clean region=%" SCNu64 " epoch=%" SCNu64 " uid=%" SCNu32 "%n", &region, &epoch,
             &uid, &used) == 3 &&
      whole()) {
    Journal::Record& record = recordOf(records, region, Epoch(epoch), uid);
    record.clean = true;
    record.holders.clear();
    return true;
  }
  char word[8] = {};
  if (sscanf(text,
             "%5[a-z] region=%" SCNu64 " epoch=%" SCNu64 " uid=%" SCNu32 " pid=%d start=%" SCNu64
             "%n",
             word, &region, &epoch, &uid, &pid, &start, &used) != 6) {
    return false;
  }
  // Who has it need not have a name.
  uint64_t client = 0;
  int more = 0;
  if (sscanf(text + used, " client=%" SCNu64 "%n", &client, &more) == 1) used += more;
  if (!whole()) return false;
  Journal::Record& record = recordOf(records, region, Epoch(epoch), uid);
  record.clean = false;
  if (std::string_view(word) == "held") {
    record.holders[{pid, start}] = ClientName(client);
  } else if (std::string_view(word) == "left") {
    record.holders.erase({pid, start});
  } else {
    return false;
  }
  return true;
}

Status writeAt(const UniqueFd& file, const std::string& text, uint64_t offset,
               const std::string& path) {
  const ssize_t written = pwrite(file.get(), text.data(), text.size(), static_cast<off_t>(offset));
  if (written == static_cast<ssize_t>(text.size())) return {};
  if (written >= 0) errno = ENOSPC;
  return failErrno(errno == ENOSPC ? ErrorCode::kNoSpace : ErrorCode::kIo,
                   "cannot write the agent's journal %s", path.c_str());
}

}  // namespace

Result<std::unique_ptr<Journal>> Journal::open(const std::string& path) {
  const std::string name = path + ".lock";
  UniqueFd lock(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) {
    return failErrno(ErrorCode::kPermission, "cannot open the agent's journal %s", name.c_str());
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorCode::kConflict, "another agent is running with the journal %s", path.c_str());
  }
  std::unique_ptr<Journal> journal(new Journal(path, std::move(lock)));
  TP_TRY(journal->load());
  TP_TRY(journal->rewrite());
  return journal;
}

Status Journal::load() {
  std::ifstream file(path_);
  if (!file && errno == ENOENT) return {};
  if (!file) return failErrno(ErrorCode::kPermission, "cannot read the journal %s", path_.c_str());
  std::ostringstream text;
  text << file.rdbuf();
  return fabric::readSealedLines(
      text.view(), path_,
      "End the programs that have memory of this host's regions, then delete the file",
      [this](std::string_view line) {
        const std::string record(line);
        return line.starts_with("fabric ") ? fabricIn(record, &fabric_) : apply(record, &records_);
      });
}

Status Journal::rewrite() {
  std::string text;
  lines_ = 0;
  if (!fabric_.id.empty()) text += fabric::sealedLine(fabricLine(fabric_));
  for (const auto& [region, record] : records_) {
    if (record.holders.empty()) {
      // A region that nobody has any more is dirty, unless it says that it is clean.
      text += fabric::sealedLine(record.clean ? cleanLine(region, record.epoch, record.uid)
                                              : withHolder("left", region, record, ProcessId()));
      ++lines_;
    }
    for (const auto& [holder, client] : record.holders) {
      text += fabric::sealedLine(heldLine(region, record, holder, client));
      ++lines_;
    }
  }
  const std::string part = path_ + ".part";
  UniqueFd file(::open(part.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return failErrno(ErrorCode::kPermission, "cannot write the agent's journal %s", part.c_str());
  }
  TP_TRY(writeAt(file, text, 0, path_));
  if (rename(part.c_str(), path_.c_str()) != 0) {
    return failErrno(ErrorCode::kIo, "cannot rename %s", part.c_str());
  }
  file_ = std::move(file);
  size_ = text.size();
  return {};
}

Status Journal::append(const std::string& line) {
  if (lines_ > 4 * records_.size() + kLinesKept) TP_TRY(rewrite());
  const std::string text = fabric::sealedLine(line);
  // At the end of the last whole line: a part of one that did not fit is written over.
  TP_TRY(writeAt(file_, text, size_, path_));
  size_ += text.size();
  ++lines_;
  apply(line, &records_);
  return {};
}

Status Journal::held(uint64_t region, Epoch epoch, uid_t uid, const ProcessId& process,
                     ClientName client) {
  Record record;
  record.epoch = epoch;
  record.uid = uid;
  return append(heldLine(region, record, process, client));
}

Status Journal::left(uint64_t region, const ProcessId& process) {
  const auto found = records_.find(region);
  if (found == records_.end()) return {};
  const std::string line = withHolder("left", region, found->second, process);
  return append(line);
}

Status Journal::clean(uint64_t region, Epoch epoch, uid_t uid) {
  return append(cleanLine(region, epoch, uid));
}

Status Journal::gone(uint64_t region) {
  if (!records_.contains(region)) return {};
  return append(fmt::format("gone region={}", region));
}

Status Journal::belongsTo(const Fabric& fabric) {
  TP_TRY(append(fabricLine(fabric)));
  fabric_ = fabric;
  return {};
}

Status Journal::forgetFabric() {
  fabric_ = Fabric();
  return rewrite();
}

}  // namespace tidepool::agent
