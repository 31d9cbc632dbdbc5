// SPDX-License-Identifier: Apache-2.0
// See the header for the idea.
#include "runtime/policy/tree_share.h"

#include <algorithm>

#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

constexpr double kTax = 0.2;  // a second: half of what is idle is elsewhere after some three
// A process that pays must lose so much less than the other gains: then nothing goes to and fro.
constexpr double kWorthMoving = 2;
constexpr double kGainMemory = 2, kUseMemory = 16;  // seconds in which the past fades
constexpr double kLeastGain = 1e6;                  // ns a second: less is chance
// Pages times seconds in staging, of which it is assumed that they cost what others gain.
constexpr double kDoubt = 64;

Bytes bytes(double value) { return Bytes(static_cast<uint64_t>(std::max(value, 0.0))); }
double number(Bytes value) { return static_cast<double>(value.value()); }

}  // namespace

/// What it costs, as a part of what it would save another, follows from `yields`: see hold().
Bytes TreeShare::Holding::tax() const {
  if (yields == Bytes()) return Bytes();
  const double cost = number(held) / number(yields) - 1;
  return bytes(kTax * number(held) * (1 - kWorthMoving * cost));
}

void TreeShare::Others::add(const Holding& one) {
  ++processes;
  held += one.held;
  yields += one.yields;
  taxes += one.tax();
  gain += one.gain;
  most_gain = std::max(most_gain, one.gain);
}

void TreeShare::remember(const Seen& seen, Nanoseconds now) {
  // The first time, or in a child of fork(), which counts from nothing.
  if (!asked_ || seen.saved < before_.saved || seen.saved_by_part < before_.saved_by_part ||
      seen.rescues < before_.rescues) {
    *this = TreeShare();
    before_ = seen;
  }
  since_ = static_cast<double>((now - asked_.value_or(now)).value()) / 1e9;
  asked_ = now;
  const auto add = [this](double& sum, double memory, double more) {
    sum = sum * (memory / (memory + since_)) + more;
  };
  const auto ns = [](Nanoseconds from, Nanoseconds to) {
    return static_cast<double>((to - from).value());
  };
  add(saved_, kGainMemory, ns(before_.saved, seen.saved));
  add(saved_by_part_, kGainMemory, ns(before_.saved_by_part, seen.saved_by_part));
  add(rescues_, kUseMemory, static_cast<double>(seen.rescues - before_.rescues));
  add(page_seconds_, kUseMemory, static_cast<double>(seen.staged.value()) * since_);
  before_ = seen;
}

TreeShare::Holding TreeShare::hold(Bytes held, const Seen& seen, const Others& others,
                                   Nanoseconds now) {
  remember(seen, now);
  const double gain = std::max(saved_, saved_by_part_ * kParts) / kGainMemory;
  mine_ = {.held = held, .yields = held / 2, .gain = static_cast<uint64_t>(gain)};
  if (gain < kLeastGain) mine_.gain = 0;
  const auto most = static_cast<double>(std::max(mine_.gain, others.most_gain));
  if (most == 0) return mine_;
  // Each page of a step is touched as often as one in staging, and would be a fault each time.
  const double touches = rescues_ * static_cast<double>((seen.step.value()) * seen.fault.value());
  const double lost = (touches + kDoubt * most) / (page_seconds_ + kDoubt);
  mine_.yields = bytes(number(held) / (1 + std::max(lost, gain) / most));
  TP_DCHECK(mine_.yields <= held);
  return mine_;
}

Bytes TreeShare::share(Bytes budget, const Others& others) const {
  const Bytes all = mine_.held + others.held;
  double share = number(mine_.held);
  if (all <= budget) {
    share += number(budget - all) / (others.processes + 1);
  } else {
    const double yields =
        number(mine_.yields) / std::max(number(mine_.yields + others.yields), 1.0);
    share -= number(all - budget) * yields;
  }
  if (mine_.gain > 0) {
    const auto all_gain = static_cast<double>(mine_.gain + others.gain);
    share += number(others.taxes) * since_ * static_cast<double>(mine_.gain) / all_gain;
  }
  if (others.gain > 0) share -= number(mine_.tax()) * since_;
  return bytes(share);
}

}  // namespace tidepool
