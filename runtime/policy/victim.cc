// SPDX-License-Identifier: Apache-2.0
// The victim chooser. See victim.h, and docs/policy.md for what it was compared with.
#include "runtime/policy/victim.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/base/check.h"

namespace tidepool {
namespace {
int ev(const char* n, int d) { const char* v = getenv(n); return v ? atoi(v) : d; }

// What one observation adds to a page's score. A turn of the hand without a sighting takes 1.
const uint32_t kFaultGain = ev("FG", 2);
const uint32_t kWrittenGain = ev("WG", 1);
const uint32_t kRescueGain = ev("RG", 2);
// Turns an absent page keeps a point of its score: its past is the only evidence there is on it.
const uint32_t kGhostTurns = ev("GT", 2);
const uint32_t kLoWin = ev("LW", 64), kHiWin = ev("HW", 256), kDecay=ev("DC",1), kUnkDecay=ev("UD",1), kHot=ev("HOT",99), kMul=ev("MUL",0), kCap=ev("CAP",63), kCA=ev("CA",0), kNoProbeNew=ev("NPN",0);
// The threshold is reviewed every so many visits, and moves so that between a 16th and a 4th of
// the visited pages go: fewer means the hand spins, more means it knows too little of them.
constexpr uint32_t kWindow = 1024;
// Unspent budget is kept for at most this long, in seconds.
constexpr double kBudgetSeconds = 0.5;

}  // namespace

VictimChooser::VictimChooser(const VictimConfig& config, std::span<std::byte> memory)
    : words_(reinterpret_cast<uint16_t*>(memory.data()), memory.size() / sizeof(uint16_t)),
      config_(config) {
  TP_CHECK_OP(reinterpret_cast<uintptr_t>(memory.data()) % alignof(uint16_t), ==, 0u);
  TP_CHECK_OP(config.capacity.value(), >, 0u);
}

void VictimChooser::setCapacity(PageCount capacity) {
  TP_CHECK_OP(capacity.value(), >, 0u);
  config_.capacity = capacity;
}

uint32_t VictimChooser::agedScore(uint16_t word) const {
  const uint32_t score = word & kScoreMask;
  const uint32_t turns = static_cast<uint8_t>(turn_ - (word >> 8));
  const uint32_t lost = turns / kGhostTurns;
  return score > lost ? score - lost : 0;
}

uint16_t VictimChooser::pack(uint32_t score) const {
  return static_cast<uint16_t>(turn_ << 8 | std::min(score, kMaxScore));
}

uint32_t VictimChooser::score(PageIndex page) const {
  TP_CHECK_OP(page.value(), <, words_.size());
  return agedScore(words_[page.value()]);
}

void VictimChooser::raise(PageIndex page, uint32_t gain) {
  TP_CHECK_OP(page.value(), <, words_.size());
  uint16_t& word = words_[page.value()];
  word = pack(agedScore(word) + gain);
}

void VictimChooser::earn(Nanoseconds now) {
  if (now <= last_now_) return;
  const double earned = static_cast<double>((now - last_now_).value()) * config_.sampling_cpu;
  const double most = kBudgetSeconds * 1e9 * config_.sampling_cpu;
  budget_ = static_cast<int64_t>(std::min(static_cast<double>(budget_) + earned, most));
  last_now_ = now;
}

void VictimChooser::spend(uint64_t nanoseconds) {
  budget_ -= static_cast<int64_t>(nanoseconds);
  stats_.probe_spent += Nanoseconds(nanoseconds);
}

PageRun VictimChooser::onFault(PageIndex page, Nanoseconds now) {
  ++stats_.faults;
  earn(now);
  PageRun run{page, PageCount(1)};
  if (config_.streams) run = streams_.onFault(page);
  if (run.count.value() == 1) {
    raise(page, kFaultGain);
    return run;
  }
  const uint64_t room = words_.size() - page.value();
  run.count = PageCount(std::min(run.count.value(), room));
  for (uint64_t i = 0; i < run.count.value(); ++i) {
    uint16_t& word = words_[page.value() + i];
    word = pack(agedScore(word)) | kStreamed;
  }
  return run;
}

void VictimChooser::onRescue(PageIndex page, Nanoseconds now) {
  ++stats_.rescues;
  earn(now);
  raise(page, kRescueGain);
}

void VictimChooser::onSample(PageIndex page, uint32_t weight) {
  ++stats_.samples;
  raise(page, std::min(weight, kMaxScore));
}

void VictimChooser::onDiscard(PageIndex page) {
  TP_CHECK_OP(page.value(), <, words_.size());
  words_[page.value()] = 0;
}

void VictimChooser::adaptThreshold(Verdict verdict) {
  if (verdict == Verdict::kEvict) ++window_evictions_;
  if (++window_visits_ < kWindow) return;
  if (window_evictions_ < kLoWin && threshold_ < kMaxScore) ++threshold_;
  if (window_evictions_ > kHiWin && threshold_ > 0) --threshold_;
  window_visits_ = 0;
  window_evictions_ = 0;
}

Verdict VictimChooser::classify(PageIndex page, WriteBit written) {
  TP_CHECK_OP(page.value(), <, words_.size());
  ++stats_.visits;
  if (++turn_visits_ >= config_.capacity.value()) {
    turn_visits_ = 0;
    ++turn_;
  }
  uint16_t& word = words_[page.value()];
  uint32_t score = word & kScoreMask;
  const bool streamed = (word & kStreamed) != 0;
  Verdict verdict = Verdict::kKeep;
  switch (written) {
    case WriteBit::kWritten:
      spend(config_.ask_cost.value() + config_.write_fault_cost.value());
      score = std::min(score + kWrittenGain + (kMul ? score * kMul / 4 : 0), kCap);
      break;
    case WriteBit::kClean:
      spend(config_.ask_cost.value());
      [[fallthrough]];
    case WriteBit::kNotArmed:
      if (kCA && written == WriteBit::kClean) score -= std::min(score, kDecay);
      if (score <= threshold_ || streamed) verdict = Verdict::kEvict;
      if (!(kCA && written == WriteBit::kClean)) score -= std::min(score, written == WriteBit::kClean ? kDecay : kUnkDecay);
      break;
  }
  if (verdict == Verdict::kKeep && written != WriteBit::kClean && budget_ > 0 && score < kHot) {
    verdict = Verdict::kProbe;
    ++stats_.probes;
    spend(config_.ask_cost.value());
  }
  if (verdict == Verdict::kEvict) ++stats_.evictions;
  word = pack(score);
  adaptThreshold(verdict);
  return verdict;
}

}  // namespace tidepool
