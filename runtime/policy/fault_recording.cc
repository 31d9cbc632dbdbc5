// SPDX-License-Identifier: Apache-2.0
// The format: a tag each, then numbers of seven bits a byte, the lowest first. See
// fault_recording.h.
#include "runtime/policy/fault_recording.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

enum Tag : uint64_t { kSample, kWord, kNextWord, kNear, kFar };
constexpr size_t kWord8 = sizeof(uint64_t);
// So many faults of an instruction are recorded with everything that a learner looks at.
constexpr uint64_t kWhole = 80;

uint64_t difference(uint64_t now, uint64_t before) { return now - before; }

}  // namespace

// --- Writing ---

/// The memory as it is, and everything read from it goes into the recording.
class FaultRecorder::View final : public MemoryView {
 public:
  View(FaultRecorder& recorder, const MemoryView& memory) : recorder_(recorder), memory_(memory) {}

  size_t read(uint64_t address, std::span<std::byte> out) const override {
    const size_t got = memory_.read(address, out);
    if (got == 0) return 0;
    const uint64_t begin = address / kWord8 * kWord8;
    const uint64_t end = (address + got + kWord8 - 1) / kWord8 * kWord8;
    std::vector<uint64_t> words((end - begin) / kWord8);
    const size_t whole = memory_.read(begin, std::as_writable_bytes(std::span(words)));
    for (size_t i = 0; i < whole / kWord8; ++i) recorder_.putWord(begin + i * kWord8, words[i]);
    return got;
  }
  bool isFar(uint64_t address) const override {
    const bool far = memory_.isFar(address);
    recorder_.putPage(address / kPageSize, far);
    return far;
  }

 private:
  FaultRecorder& recorder_;
  const MemoryView& memory_;
};

std::unique_ptr<FaultRecorder> FaultRecorder::fromEnvironment() {
  const char* const text = getenv("TIDEPOOL_FAULT_RECORDING");
  if (text == nullptr) return nullptr;
  const char* const comma = std::strchr(text, ',');
  if (comma == nullptr) return nullptr;
  char* end = nullptr;
  const uint64_t skip = strtoull(comma + 1, &end, 10);
  const uint64_t count = *end == ',' ? strtoull(end + 1, nullptr, 10) : 1000;
  const std::vector<char> path = [&] {
    std::vector<char> copy(text, comma);
    copy.push_back('\0');
    return copy;
  }();
  UniqueFd file(static_cast<int>(raw::call(SYS_openat, AT_FDCWD, path.data(),
                                           O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)));
  if (!file.valid()) return nullptr;
  file.keep();
  return std::unique_ptr<FaultRecorder>(new FaultRecorder(std::move(file), skip, count));
}

void FaultRecorder::put(uint64_t number) {
  for (; number >= 128; number >>= 7) out_.push_back(static_cast<std::byte>(number | 128));
  out_.push_back(static_cast<std::byte>(number));
}

void FaultRecorder::putSigned(int64_t number) {
  // The sign becomes the lowest bit, so that small numbers of either sign are short.
  put(static_cast<uint64_t>(number) << 1 ^ (number < 0 ? ~uint64_t{0} : 0));
}

void FaultRecorder::putSample(const FaultSample& sample) {
  put(kSample);
  put(static_cast<uint64_t>(sample.thread));
  putSigned(static_cast<int64_t>(difference(sample.code, state_.code)));
  putSigned(static_cast<int64_t>(difference(sample.address, state_.address)));
  putSigned(static_cast<int64_t>(difference(sample.stack, state_.stack)));
  FaultSample& before = state_.latest[sample.code];
  uint64_t changed = 0;
  for (size_t i = 0; i < FaultSample::kRegisters; ++i) {
    if (sample.registers[i] != before.registers[i]) changed |= uint64_t{1} << i;
  }
  put(changed);
  for (size_t i = 0; i < FaultSample::kRegisters; ++i) {
    if ((changed >> i & 1) == 0) continue;
    putSigned(static_cast<int64_t>(difference(sample.registers[i], before.registers[i])));
  }
  before = sample;
  state_.code = sample.code;
  state_.address = sample.address;
  state_.stack = sample.stack;
}

void FaultRecorder::putWord(uint64_t address, uint64_t value) {
  const auto [known, added] = state_.words.try_emplace(address, 0);
  if (!added && known->second == value) return;
  if (address == state_.word + kWord8) {
    put(kNextWord);
  } else {
    put(kWord);
    putSigned(static_cast<int64_t>(difference(address, state_.word)) / 8);
  }
  putSigned(static_cast<int64_t>(difference(value, known->second)));
  known->second = value;
  state_.word = address;
}

void FaultRecorder::putPage(uint64_t page, bool far) {
  const auto [known, added] = state_.far.try_emplace(page, far);
  if (!added && known->second == far) return;
  known->second = far;
  put(far ? kFar : kNear);
  putSigned(static_cast<int64_t>(difference(page, state_.page)));
  state_.page = page;
}

void FaultRecorder::onFault(const FaultSample& sample, const MemoryView& memory) {
  if (skip_ > 0) {
    --skip_;
    return;
  }
  if (left_ == 0) return;
  const View view(*this, memory);
  const uint64_t page = sample.address / kPageSize;
  if (++faults_[sample.code] <= kWhole) static_cast<void>(learner_.learn(FaultView(sample, view)));
  prefetcher_.onFault(sample, view);
  // After what was read for it: so the reader has the memory when it has the fault.
  putSample(sample);
  state_.far[page] = false;
  if (--left_ > 0 && out_.size() < 65536) return;
  [[maybe_unused]] const long written = raw::call(SYS_write, file_.get(), out_.data(), out_.size());
  out_.clear();
}

// --- Reading ---

uint64_t FaultRecording::get() {
  uint64_t number = 0;
  for (unsigned shift = 0; !ended() && shift < 64; shift += 7) {
    const auto byte = static_cast<uint64_t>(bytes_[at_++]);
    number |= (byte & 127) << shift;
    if (byte < 128) break;
  }
  return number;
}

int64_t FaultRecording::getSigned() {
  const uint64_t number = get();
  return static_cast<int64_t>(number >> 1) ^ -static_cast<int64_t>(number & 1);
}

FaultSample FaultRecording::getSample() {
  const auto thread = static_cast<int>(get());
  const auto add = [this](uint64_t& to) { return to += static_cast<uint64_t>(getSigned()); };
  FaultSample& sample = state_.latest[add(state_.code)];
  sample.code = state_.code;
  sample.thread = thread;
  sample.address = add(state_.address);
  sample.stack = add(state_.stack);
  const uint64_t changed = get();
  for (size_t i = 0; i < FaultSample::kRegisters; ++i) {
    if ((changed >> i & 1) != 0) add(sample.registers[i]);
  }
  return sample;
}

std::optional<FaultSample> FaultRecording::next() {
  while (!ended()) {
    const uint64_t tag = get();
    switch (tag) {
      case kSample:
        return getSample();
      case kWord:
      case kNextWord:
        state_.word += tag == kWord ? static_cast<uint64_t>(getSigned()) * kWord8 : kWord8;
        state_.words[state_.word] += static_cast<uint64_t>(getSigned());
        break;
      case kNear:
      case kFar:
        state_.page += static_cast<uint64_t>(getSigned());
        state_.far[state_.page] = tag == kFar;
        break;
      default:
        at_ = bytes_.size();
    }
  }
  return std::nullopt;
}

size_t FaultRecording::read(uint64_t address, std::span<std::byte> out) const {
  size_t got = 0;
  auto word = state_.words.find(address / kWord8 * kWord8);
  while (got < out.size() && word != state_.words.end() &&
         word->first == (address + got) / kWord8 * kWord8) {
    const size_t from = (address + got) % kWord8;
    const size_t count = std::min(kWord8 - from, out.size() - got);
    std::memcpy(&out[got], reinterpret_cast<const std::byte*>(&word->second) + from, count);
    got += count;
    ++word;
  }
  return got;
}

bool FaultRecording::isFar(uint64_t address) const {
  const auto found = state_.far.find(address / kPageSize);
  return found != state_.far.end() && found->second;
}

}  // namespace tidepool
