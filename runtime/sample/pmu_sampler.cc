// SPDX-License-Identifier: Apache-2.0
// One pass over the rings a poll. See pmu_sampler.h.
#include "runtime/sample/pmu_sampler.h"

#include <algorithm>

namespace tidepool {
namespace {

// What the processor and the kernel take from the program for a sample: assumed, not measured.
constexpr double kSampleNs = 1'000;
// Unspent budget is kept for so long: a burst of samples must not follow a long sleep.
constexpr double kSavedSeconds = 1;

}  // namespace

Result<std::unique_ptr<PmuSampler>> PmuSampler::create(PerfPort& port, const MemoryEvent& event,
                                                       const PmuSamplerConfig& config) {
  std::unique_ptr<PmuSampler> sampler(new PmuSampler(config));
  for (int cpu = 0; cpu < config.processors; ++cpu) {
    auto ring = port.open(event, kPmuSampleType, cpu);
    if (ring) {
      const PmuRing records((*ring)->data());
      sampler->sources_.push_back({std::move(*ring), records});
    } else if (ring.error().code() != ErrorCode::kNotFound) {
      return tl::unexpected(ring.error());
    }
  }
  if (sampler->sources_.empty()) {
    return fail(ErrorCode::kNotFound, "no processor samples accesses to memory");
  }
  sampler->setRunning(true);
  return sampler;
}

void PmuSampler::setRunning(bool running) {
  for (Source& source : sources_) running ? source.ring->start() : source.ring->stop();
  running_ = running;
}

size_t PmuSampler::poll(std::span<PmuSample> out) {
  size_t count = 0;
  for (size_t i = 0; i < sources_.size() && count < out.size(); ++i) {
    Source& source = sources_[next_];
    const std::span<PmuSample> rest = out.subspan(count);
    const size_t got = source.records.drain(source.ring->head(), rest);
    source.ring->release(source.records.tail());
    uncharged_ += got;
    const auto end = std::remove_if(
        rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(got),
        [this](const PmuSample& sample) { return sample.process != config_.process; });
    count += static_cast<size_t>(end - rest.begin());
    // A ring that filled `out` may have more; it goes on where it stopped.
    if (count < out.size()) next_ = (next_ + 1) % sources_.size();
  }
  return count;
}

Nanoseconds PmuSampler::charge(Nanoseconds now, Nanoseconds spent) {
  const double most = kSavedSeconds * 1e9 * config_.cpu_share;
  if (last_now_.value() != 0) {
    budget_ns_ += static_cast<double>((now - last_now_).value()) * config_.cpu_share;
  }
  last_now_ = now;
  const double cost =
      static_cast<double>(spent.value()) + kSampleNs * static_cast<double>(uncharged_);
  uncharged_ = 0;
  budget_ns_ = std::min(budget_ns_, most) - cost;
  if (running_ != (budget_ns_ >= 0)) setRunning(budget_ns_ >= 0);
  return Nanoseconds(static_cast<uint64_t>(cost));
}

}  // namespace tidepool
