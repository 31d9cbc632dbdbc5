// SPDX-License-Identifier: Apache-2.0
// The grants of an emulated pool, kept beside it: a text file that is only appended to, a checksum
// in front of every line. A last line that was cut off by a crash is dropped when the log is
// opened, which also rewrites it without what is over, as is done whenever it has become long. A
// log with any other damage is left as it is. Thread-safe; many appends share one disk write.
//
// Its first line says which manager has the device: no other fabric's, and no older one of its own,
// may open the log. Logs without that line, of earlier versions, are adopted.
//
//   CHECKSUM fabric uuid=UUID term=N incarnation=N
//   CHECKSUM granted|revoked|scrubbed region=ID epoch=N extents=OFFSET+LENGTH,... [evidence]
//   CHECKSUM forget region=ID
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/device/device_driver.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::fabric {

class GrantLog {
 public:
  /// Opens the log, locked against other processes, and returns what it says; from then on it is
  /// the manager's. Errors: kConflict when another process has it, kIo, kPermission, kCorrupt for a
  /// damaged line, or one that makes no sense; kStaleEpoch and kRefused as DriverFactory has them.
  static Result<std::unique_ptr<GrantLog>> open(const std::string& path, DeviceId device,
                                                Leadership& leadership,
                                                std::vector<GrantReport>* grants);
  /// Of a device that some process has: good if that can be this manager, or is not known. Errors:
  /// kStaleEpoch and kRefused as DriverFactory has them.
  static Status mayBeOurs(const std::string& path, Leadership& leadership);

  /// What the log of a pool that is in use says, as far as it is written. Errors: kIo, kPermission,
  /// kCorrupt.
  static Result<std::vector<GrantReport>> read(const std::string& path, DeviceId device);

  static std::string lineOf(const GrantReport& report);
  static std::string forgetLine(RegionId region);

  /// Puts a line (without checksum and end) in the queue; the order of calls is that of the file.
  uint64_t enqueue(const std::string& line) TP_EXCLUDES(mutex_);
  /// Much of the file is over: time for renew().
  bool isLong() TP_EXCLUDES(mutex_);
  /// The next write puts a new file in place, which says `grants`: what all that was enqueued comes
  /// to.
  void renew(const std::vector<GrantReport>& grants) TP_EXCLUDES(mutex_);
  /// The next write makes the log nobody's, and empty; what it is to be awaited by.
  uint64_t disown() TP_EXCLUDES(mutex_);
  /// Returns when all lines up to `ticket` are on the disk. Errors: kIo, kNoSpace: from then on,
  /// always: open the log anew.
  Status await(uint64_t ticket) TP_EXCLUDES(mutex_);

 private:
  GrantLog(std::string path, UniqueFd lock, std::string head)
      : path_(std::move(path)), lock_(std::move(lock)), head_(std::move(head)) {}
  /// A new file instead of the old one. By who has set writing_, as long as others can.
  Status rewrite(const std::string& text);
  void begin(size_t length) TP_EXCLUDES(mutex_);
  void beginAt(size_t length) TP_REQUIRES(mutex_);

  const std::string path_;
  const UniqueFd lock_;
  const std::string head_;  // whose log it is
  UniqueFd fd_;             // of who has set writing_
  Mutex mutex_;
  CondVar done_;
  std::string waiting_ TP_GUARDED_BY(mutex_);
  bool anew_ TP_GUARDED_BY(mutex_) = false;  // `waiting_` begins a new file
  size_t length_ TP_GUARDED_BY(mutex_) = 0;  // of the file, once `waiting_` is in it
  size_t long_ TP_GUARDED_BY(mutex_) = 0;
  uint64_t enqueued_ TP_GUARDED_BY(mutex_) = 0;
  uint64_t durable_ TP_GUARDED_BY(mutex_) = 0;
  bool writing_ TP_GUARDED_BY(mutex_) = false;
  bool broken_ TP_GUARDED_BY(mutex_) = false;
};

}  // namespace tidepool::fabric
