// SPDX-License-Identifier: Apache-2.0
// The production row policy over a trace. See row_run.h.
#include "bench/row_run.h"

#include <algorithm>

#include "bench/row_future.h"

namespace tidepool::bench {
namespace {

RowPolicyConfig configOf(const RowRun& run) {
  RowPolicyConfig config;
  config.most = config.capacity = SlotCount(run.slots);
  config.seed = run.seed;
  return config;
}

class Runner {
 public:
  Runner(const RowTrace& trace, const RowRun& run)
      : trace_(trace),
        run_(run),
        engine_(trace.rows, configOf(run), run.tier),
        most_known_((run.lookahead + 1) * run.batch),
        memory_(RowFuture::memoryFor(most_known_).value()),
        future_(most_known_, run.seed, memory_),
        steps_(std::max<size_t>(NextUse::kMostAhead / (run.lookahead + 1), 1)) {}

  RowRunResult operator()() {
    RowRunResult result;
    result.hits.resize(trace_.lookups.size());
    for (size_t begin = 0; begin < trace_.lookups.size(); begin += run_.batch) {
      if (run_.lookahead > 0) announceUpTo(begin + most_known_);
      const size_t end = std::min(begin + run_.batch, trace_.lookups.size());
      for (size_t i = begin; i < end; ++i) result.hits[i] = lookup(i, result) ? 1 : 0;
    }
    result.stats = engine_.policy().stats();
    result.metadata = engine_.policy().metadataBytes();
    if (run_.lookahead > 0) result.future_metadata = RowFuture::memoryFor(most_known_);
    return result;
  }

 private:
  /// Batches are cut into as many steps as the policy can tell apart.
  Step stepOf(size_t i) const {
    return Step(i / run_.batch * steps_ + i % run_.batch * steps_ / run_.batch);
  }
  void announceUpTo(size_t end) {
    for (end = std::min(end, trace_.lookups.size()); announced_ < end; ++announced_) {
      const uint32_t row = trace_.lookups[announced_];
      if (future_.announce(RowIndex(row), stepOf(announced_)) && engine_.resident(row)) {
        engine_.policy().willUse(engine_.slotOf(row), stepOf(announced_));
      }
    }
  }
  bool lookup(size_t i, RowRunResult& result) {
    const Step step = stepOf(i);
    if (step > step_) engine_.policy().finished(step - 1);
    step_ = step;
    const uint32_t row = trace_.lookups[i];
    const NextUse next = run_.lookahead > 0 ? future_.use() : NextUse();
    const bool hit = engine_.access(row, next);
    if (run_.tier == FarTier::kDirect) return hit;
    if (engine_.resident(row)) {
      const Step last = stepOf(i / run_.batch * run_.batch + run_.batch - 1);
      engine_.policy().needUntil(engine_.slotOf(row), last);
    } else {
      ++result.overflows;
    }
    return hit;
  }

  const RowTrace& trace_;
  const RowRun run_;
  RowEngine engine_;
  size_t most_known_;
  std::vector<std::byte> memory_;
  RowFuture future_;
  size_t steps_;
  size_t announced_ = 0;
  Step step_;
};

}  // namespace

RowRunResult runRowPolicy(const RowTrace& trace, const RowRun& run) { return Runner(trace, run)(); }

}  // namespace tidepool::bench
