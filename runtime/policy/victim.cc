// SPDX-License-Identifier: Apache-2.0
// The victim chooser: a clock with scores instead of one reference bit, and probes instead of
// hardware accessed bits. See victim.h, and docs/policy.md for what it was compared with.
#include "runtime/policy/victim.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// Unspent probing budget is kept for at most this long: enough for a hot set that moves, but a
// program that slept must not wake up to minutes' worth of write faults.
constexpr double kBudgetSeconds = 2;

}  // namespace

VictimChooser::VictimChooser(const VictimConfig& config, std::span<std::byte> memory)
    : bytes_(reinterpret_cast<uint8_t*>(memory.data()), memory.size() / 2),
      left_(bytes_.data() + bytes_.size(), bytes_.size()),
      config_(config),
      rule_(config.tuning),
      last_now_(config.started) {
  setCapacity(config.capacity);
  TP_CHECK(config.sampling_cpu >= 0);
}

void VictimChooser::setCapacity(PageCount capacity) {
  TP_CHECK_OP(capacity.value(), >, 0u);
  config_.capacity = capacity;
}

uint8_t& VictimChooser::byteOf(PageIndex page) {
  TP_CHECK_OP(page.value(), <, bytes_.size());
  return bytes_[page.value()];
}

uint32_t VictimChooser::score(PageIndex page) const {
  TP_CHECK_OP(page.value(), <, bytes_.size());
  return scoreOf(bytes_[page.value()]);
}

// Stamps a page that goes with the epoch, which is counted in evictions: they, not time, tell how
// much else was wanted meanwhile.
void VictimChooser::onLeaving(PageIndex page) {
  ++stats_.evictions;
  byteOf(page) &= static_cast<uint8_t>(~(kStreamed | kAhead));
  left_[page.value()] = epoch_;
  if (++epoch_evictions_ < config_.capacity.value() / kEpochsPerTurnover) return;
  epoch_evictions_ = 0;
  epoch_ = static_cast<uint8_t>(epoch_ % kEpochs + 1);
  TP_DCHECK(epoch_ != 0);  // that is for pages that never left
}

// A stamp older than all epochs looks recent again; that is one in sixteen of the oldest, and costs
// a few turns of one page.
void VictimChooser::onReturn(PageIndex page) {
  uint8_t& byte = byteOf(page);
  const uint32_t left = left_[page.value()];
  if (left == 0) return;  // it never went
  setScore(byte, rule_.returned(scoreOf(byte), (epoch_ + kEpochs - left) % kEpochs));
}

// Within its epoch a page may have gone at any time: half of them have gone before it.
std::optional<PageCount> VictimChooser::evictedSince(PageIndex page) const {
  TP_CHECK_OP(page.value(), <, left_.size());
  const uint32_t left = left_[page.value()];
  if (left == 0) return std::nullopt;
  const uint64_t epoch = config_.capacity.value() / kEpochsPerTurnover;
  const uint64_t begun = (epoch_ + kEpochs - left) % kEpochs * epoch + epoch_evictions_;
  TP_DCHECK(left == epoch_ || begun >= epoch / 2);
  return PageCount(left == epoch_ ? begun / 2 : begun - epoch / 2);
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
  if (config_.streams) {
    run = streams_.onFault(page);
    TP_DCHECK(run.first <= page && page < run.first + run.count.value());
    countPassed(streams_.passed());
  }
  if (run.count.value() > 1) {
    run.count = PageCount(std::min(run.count.value(), bytes_.size() - run.first.value()));
    byteOf(page) |= kStreamed;
    return run;
  }
  onReturn(page);
  return run;
}

void VictimChooser::countPassed(const PageRun& run) {
  const uint64_t end = std::min((run.first + run.count.value()).value(), bytes_.size());
  for (PageIndex page = run.first; page.value() < end; ++page) {
    if ((byteOf(page) & kAhead) == 0) continue;
    byteOf(page) &= static_cast<uint8_t>(~kAhead);
    ++stats_.prefetch_hits;
  }
}

void VictimChooser::onPrefetched(PageIndex page) { byteOf(page) |= kStreamed | kAhead; }

void VictimChooser::onRescue(PageIndex page, Nanoseconds now) {
  ++stats_.rescues;
  earn(now);
  onReturn(page);
}

void VictimChooser::onSample(PageIndex page, uint32_t weight) {
  ++stats_.samples;
  uint8_t& byte = byteOf(page);
  setScore(byte, rule_.sampled(scoreOf(byte), weight));
}

void VictimChooser::onGivenUp(PageIndex page) {
  onCold(page);
  byteOf(page) |= kStreamed;
}

void VictimChooser::onDiscard(PageIndex page) { byteOf(page) = left_[page.value()] = 0; }

Verdict VictimChooser::classifyBehind(PageIndex page) {
  if ((byteOf(page) & kStreamed) == 0) return Verdict::kKeep;
  onLeaving(page);
  return Verdict::kEvict;
}

Verdict VictimChooser::classify(PageIndex page, WriteBit written) {
  ++stats_.visits;
  uint8_t& byte = byteOf(page);
  if (written == WriteBit::kWritten) {
    spend(config_.write_fault_cost.value());
    byte &= static_cast<uint8_t>(~kStreamed);
  }
  uint32_t score = scoreOf(byte);
  const Verdict verdict =
      rule_.visited(score, written, budget_ > 0 ? Probes::kLeft : Probes::kSpent);
  setScore(byte, score);
  if (verdict == Verdict::kProbe) ++stats_.probes;
  if (verdict == Verdict::kEvict) onLeaving(page);
  return verdict;
}

}  // namespace tidepool
