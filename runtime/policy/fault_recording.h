// SPDX-License-Identifier: Apache-2.0
// Recordings of faults: what the prefetcher was told, and the memory that it looked at, so that a
// test can tell it again (docs/contributing.md says how one is made). For builds with
// TIDEPOOL_RECORD_FAULTS and for tests; no other code uses it, so it is linked into nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"
#include "runtime/policy/indirect_prefetcher.h"

namespace tidepool {

/// What writer and reader of a recording know alike: things are written as differences from it.
struct RecordingState {
  std::map<uint64_t, uint64_t> words;      // memory that can be read, by address
  std::map<uint64_t, bool> far;            // pages
  std::map<uint64_t, FaultSample> latest;  // by code address
  uint64_t code = 0, address = 0, stack = 0, word = 0, page = 0;
};

/// Writes a recording of a running program. One owner; not thread-safe.
class FaultRecorder {
 public:
  /// By TIDEPOOL_FAULT_RECORDING=PATH,SKIP,COUNT: COUNT faults after the first SKIP. Null if it is
  /// not set or the file cannot be made.
  static std::unique_ptr<FaultRecorder> fromEnvironment();

  void onFault(const FaultSample& sample, const MemoryView& memory);

 private:
  class View;
  FaultRecorder(UniqueFd file, uint64_t skip, uint64_t count)
      : file_(std::move(file)), skip_(skip), left_(count) {}
  void put(uint64_t number);
  void putSigned(int64_t number);
  void putSample(const FaultSample& sample);
  void putWord(uint64_t address, uint64_t value);
  void putPage(uint64_t page, bool far);

  UniqueFd file_;
  uint64_t skip_, left_;
  RecordingState state_;
  std::vector<std::byte> out_;
  std::map<uint64_t, uint64_t> faults_;  // by code address
  PatternLearner learner_;
  IndirectPrefetcher prefetcher_;
};

/// Reads one, as a view of the memory as it was at the latest fault.
class FaultRecording final : public MemoryView {
 public:
  explicit FaultRecording(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  /// Goes on to the next fault; none at the end, or where the recording is damaged.
  std::optional<FaultSample> next();
  /// Of the page that faulted: it is there now.
  void arrive(uint64_t address) { state_.far[address / kPageSize] = false; }

  size_t read(uint64_t address, std::span<std::byte> out) const override;
  bool isFar(uint64_t address) const override;

 private:
  uint64_t get();
  int64_t getSigned();
  FaultSample getSample();
  bool ended() const { return at_ >= bytes_.size(); }

  std::vector<std::byte> bytes_;
  size_t at_ = 0;
  RecordingState state_;
};

}  // namespace tidepool
