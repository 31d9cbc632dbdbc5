// SPDX-License-Identifier: Apache-2.0
// A directory of checkpoints: what is in it, one writer at a time, and how a checkpoint comes into
// being (its manifest gets its name) or goes. A checkpoint exists exactly when its manifest does;
// other files are what killed writers left behind. Not thread-safe; processes exclude one another.
#pragma once

#include <string>
#include <vector>

#include "allocator/checkpoint/manifest.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

class CheckpointDirectory {
 public:
  /// For reading. Errors: kNotFound, kPermission, kIo.
  static Result<CheckpointDirectory> open(const std::string& path);
  /// For writing: is made if there is none, and nobody else can write until it is closed. Errors:
  /// as open(), and kConflict while another writer has it.
  static Result<CheckpointDirectory> openToWrite(const std::string& path);

  /// Lets other writers in.
  void unlock();

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }

  /// Numbers of the checkpoints, ascending. Errors: kIo.
  Result<std::vector<uint64_t>> numbers() const;
  /// The newest one's number; 0 if there is none.
  Result<uint64_t> newest() const;
  /// Errors: kNotFound, kCorrupt, kUnsupported, kIo, naming the file and the way on.
  Result<Manifest> load(uint64_t number) const;
  /// 0 for the newest. Errors: as load(), and kNotFound if there is none.
  Result<Manifest> loadOrNewest(uint64_t number) const;

  /// Above every number that occurs, leftovers counted.
  Result<uint64_t> nextNumber() const;
  /// Removes files of rows and states that no manifest names, and unfinished manifests. Does
  /// nothing while any manifest cannot be read: nobody knows what it names. Returns how many went.
  Result<size_t> removeLeftovers() const;
  /// The checkpoint exists from its return on, or not at all. Its files of rows are on the disk.
  Status publish(const Manifest& manifest) const;
  /// Removes all checkpoints but the newest `keep`, and the files that only they name.
  Status removeOld(size_t keep) const;

  static std::string manifestName(uint64_t number);
  static std::string rowsName(uint64_t number, size_t table);
  static std::string stateName(uint64_t number);

 private:
  Result<std::vector<std::string>> names() const;
  Status sync() const;

  std::string path_;
  UniqueFd fd_, lock_;
};

}  // namespace tidepool
