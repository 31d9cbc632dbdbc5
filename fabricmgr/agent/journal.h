// SPDX-License-Identifier: Apache-2.0
// Who has which region, kept for an agent that is killed and started again. A text file that is
// only appended to, a checksum in front of each line; it is rewritten when the agent starts, and
// when most of it is over. It has to outlive the agent, not the machine (no program does), so it
// belongs on a file system that is empty after a start, and nothing is synced. Not thread-safe.
//
//   CHECKSUM fabric uuid=UUID term=N           whose host this is, by what its agent has heard
//   CHECKSUM held region=ID epoch=N uid=U pid=P start=T client=C     C is 0 for one without a name
//   CHECKSUM left region=ID epoch=N uid=U pid=P start=T     it is dirty, and stays this user's
//   CHECKSUM clean region=ID epoch=N uid=U                  it was erased, and stays this user's
//   CHECKSUM gone region=ID
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/agent/process_id.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool::agent {

class Journal {
 public:
  /// What is known of a region that some program has or had.
  struct Record {
    Epoch epoch{};
    uid_t uid = 0;
    bool clean = false;
    std::map<ProcessId, ClientName> holders;
  };

  /// The fabric that this host belongs to, and the newest term of its managers that was heard of.
  struct Fabric {
    std::string id;  // its UUID; empty: none yet
    uint64_t term = 0;
  };

  /// Opens or makes the file, locked against a second agent. A last line that was cut
  /// off is dropped. Errors: kConflict when another agent has it, kPermission, kIo, kCorrupt for
  /// other damage: the file is left as it is.
  static Result<std::unique_ptr<Journal>> open(const std::string& path);

  const std::map<uint64_t, Record>& records() const { return records_; }
  const Fabric& fabric() const { return fabric_; }

  // Each is in the file when it returns. Errors: kIo, kNoSpace: nothing has changed then.
  Status held(uint64_t region, Epoch epoch, uid_t uid, const ProcessId& process,
              ClientName client = kNoName);
  Status left(uint64_t region, const ProcessId& process);
  Status clean(uint64_t region, Epoch epoch, uid_t uid);
  Status gone(uint64_t region);
  Status belongsTo(const Fabric& fabric);
  /// The host may belong to whatever fabric answers next.
  Status forgetFabric();

 private:
  Journal(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  Status load();
  Status rewrite();
  Status append(const std::string& line);

  const std::string path_;
  const UniqueFd lock_;
  UniqueFd file_;
  uint64_t size_ = 0;   // of the file, up to the last whole line
  uint64_t lines_ = 0;  // in the file
  std::map<uint64_t, Record> records_;
  Fabric fabric_;
};

}  // namespace tidepool::agent
