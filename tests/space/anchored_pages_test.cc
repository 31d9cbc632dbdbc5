// SPDX-License-Identifier: Apache-2.0
// AnchoredPages against a plain model: what is kept, what is waited on, and what was forgotten.
#include "runtime/space/anchored_pages.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <vector>

namespace tidepool {
namespace {

constexpr uint64_t kPages = 24;

struct Model {
  std::array<bool, kPages> kept{};
  std::array<uint32_t, kPages> waits{};
};

void compare(const AnchoredPages& pages, const Model& model) {
  for (uint64_t first = 0; first < kPages; ++first) {
    bool any = false, kept = false;
    for (uint64_t end = first + 1; end <= kPages; ++end) {
      any = any || model.kept[end - 1] || model.waits[end - 1] > 0;
      kept = kept || model.kept[end - 1];
      RC_ASSERT(pages.any(PageIndex(first), end - first) == any);
      RC_ASSERT(pages.anyKept(PageIndex(first), end - first) == kept);
    }
  }
}

RC_GTEST_PROP(AnchoredPages, AreAsTheirModel, ()) {
  AnchoredPages pages;
  Model model;
  const auto steps = *rc::gen::inRange(0, 60);
  for (int step = 0; step < steps; ++step) {
    const uint64_t first = *rc::gen::inRange<uint64_t>(0, kPages);
    const uint64_t end = *rc::gen::inRange<uint64_t>(first, kPages + 1);
    switch (*rc::gen::inRange(0, 5)) {
      case 0:
        pages.keep(PageIndex(first), PageIndex(end));
        for (uint64_t page = first; page < end; ++page) model.kept[page] = true;
        break;
      case 1:
        pages.hold(PageIndex(first));
        ++model.waits[first];
        break;
      case 2:
        pages.letGo(PageIndex(first));
        if (model.waits[first] > 0) --model.waits[first];
        break;
      case 3:
        pages.forget(PageIndex(first), PageIndex(end));
        for (uint64_t page = first; page < end; ++page) {
          model.kept[page] = false;
          model.waits[page] = 0;
        }
        break;
      default:
        pages.forgetWaits();
        model.waits.fill(0);
    }
    compare(pages, model);
  }
}

}  // namespace
}  // namespace tidepool
