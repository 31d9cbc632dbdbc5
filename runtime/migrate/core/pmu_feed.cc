// SPDX-License-Identifier: Apache-2.0
// From addresses to scores. See pmu_feed.h.
#include "runtime/migrate/core/pmu_feed.h"

#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/raw_calls.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

constexpr size_t kBatch = 64;     // samples for which the policy's lock is held
constexpr int kMostBatches = 64;  // a tick; what is left waits in the rings
// As much as the answer "written" to a probe: each proves one use since the hand came by.
constexpr uint32_t kSampleWeight = 4;

}  // namespace

std::unique_ptr<PmuFeed> PmuFeed::create(Core& core, SharedPolicy& policy, PerfPort& port,
                                         const MemoryEvent& event, int processors) {
  auto sampler = PmuSampler::create(port, event,
                                    {.processors = processors,
                                     .process = static_cast<uint32_t>(raw::getpid()),
                                     .cpu_share = core.options.sampling_cpu});
  if (!sampler) return nullptr;
  SampleStats* source = addStatsSource(*core.stats, event.name);
  if (source == nullptr) return nullptr;
  return std::unique_ptr<PmuFeed>(new PmuFeed(core, policy, std::move(*sampler), source));
}

void PmuFeed::take(std::span<const PmuSample> samples, Nanoseconds now) {
  uint64_t local = 0;
  MutexLock lock(policy_.mutex());
  for (const PmuSample& sample : samples) {
    if (!core_.space->contains(sample.address)) continue;
    const PageIndex page = core_.space->pageAt(sample.address);
    if (core_.space->word(page).state() != PageState::kLocal) continue;
    policy_.chooser().onSample(page, kSampleWeight);
    policy_.looks().note(granuleOf(page), now);
    ++local;
  }
  count(source_->count, local);
}

void PmuFeed::tick(Nanoseconds now) {
  const Nanoseconds start = threadCpuTime();
  std::array<PmuSample, kBatch> samples;
  for (int i = 0; i < kMostBatches; ++i) {
    const size_t got = sampler_->poll(samples);
    take({samples.data(), got}, now);
    if (got < samples.size()) break;
  }
  const Nanoseconds cost = sampler_->charge(now, threadCpuTime() - start);
  count(source_->cpu_nanoseconds, cost.value());
  count(core_.stats->sampling_cpu_nanoseconds, cost.value());
}

}  // namespace tidepool
