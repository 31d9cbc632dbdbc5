// SPDX-License-Identifier: Apache-2.0
// The table of the kinds of far memory: what each row must have, and the conformance suite for
// each kind that can be opened on any machine.
#include "runtime/tier/far_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/transport/seal/page_cipher.h"
#include "tests/tier/far_specs.h"
#include "tests/tier/server.h"
#include "tests/tier/tier_conformance.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kLong(20'000'000'000);

/// Devices, which their own tests stand in for, and what has no tier of its own.
bool opensAnywhere(const FarKind& kind) {
  return kind.open != nullptr && kind.name != "dax" && kind.name != "numa" && kind.name != "auto";
}

/// What the newest tier is in. They end with the tests: their threads use the log until then.
std::vector<std::unique_ptr<memserver::Server>> servers_in_use;
class Servers : public testing::Environment {
  void TearDown() override { servers_in_use.clear(); }
};
[[maybe_unused]] testing::Environment* const servers =
    testing::AddGlobalTestEnvironment(new Servers);

/// Makes tiers of a kind, and what they are in.
class Maker {
 public:
  enum class Pages : uint8_t { kPlain, kSealed };
  explicit Maker(const FarKind& kind, Pages pages = Pages::kPlain)
      : kind_(kind), sealed_(pages == Pages::kSealed) {}

  FarSpec spec(PageCount pages) {
    servers_in_use.clear();
    const uint64_t each = sealed_ ? PageCipher::kSealedSize : kPageSize;
    const Bytes size(roundUp(pages.value() * each, kPageSize));
    const auto value = [&](std::string_view word) -> std::string {
      if (word == "SIZE") return std::to_string(size.value());
      if (word == "HOST") return testHost();
      if (word == "PORT") {
        servers_in_use.push_back(serve(size));
        return std::to_string(servers_in_use.back()->port());
      }
      if (word == "PATH") return "/var/tmp";  // of what opensAnywhere(): a folder on a disk
      return plainValue(word);
    };
    auto spec = parseFarSpec(specOf(kind_.form, value, [] { return false; }));
    EXPECT_TRUE(spec) << spec.error().text();
    spec->sealed = sealed_;
    return *spec;
  }
  std::unique_ptr<Tier> tier(PageCount pages) {
    auto tier = kind_.open(spec(pages), kLong);
    EXPECT_TRUE(tier) << tier.error().text();
    return tier ? std::move(*tier) : nullptr;
  }

 private:
  const FarKind& kind_;
  const bool sealed_;
};

std::vector<TierCase> cases() {
  std::vector<TierCase> cases;
  for (const FarKind* kind : farKinds()) {
    if (!opensAnywhere(*kind)) continue;
    cases.push_back({std::string(kind->name), [maker = std::make_shared<Maker>(*kind)](
                                                  PageCount pages) { return maker->tier(pages); }});
    if (kind->sealing != Sealing::kCan) continue;
    cases.push_back({std::string(kind->name) + "_sealed",
                     [maker = std::make_shared<Maker>(*kind, Maker::Pages::kSealed)](
                         PageCount pages) { return maker->tier(pages); }});
  }
  return cases;
}

std::vector<TierCase> fetchCases() {
  std::vector<TierCase> all = cases();
  std::erase_if(all, [](const TierCase& one) {
    const auto tier = one.make(PageCount(kPagesPerGranule));
    return tier != nullptr && tier->kind() != TierKind::kFetch;
  });
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryKind, TierConformance, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(EveryKind, FetchTierConformance, testing::ValuesIn(fetchCases()),
                         [](const auto& one) { return one.param.name; });

TEST(FarKinds, EveryRowIsWhole) {
  for (const FarKind* kind : farKinds()) {
    SCOPED_TRACE(std::string(kind->name));
    EXPECT_EQ(farKind(kind->name), kind);
    EXPECT_TRUE(kind->form.starts_with(kind->name));
    EXPECT_TRUE(kind->help.ends_with('.')) << kind->help;
    EXPECT_NE(kind->parse, nullptr);
    EXPECT_NE(kind->check, nullptr);
    FarSpec spec;
    spec.kind = kind;
    spec.size = Bytes(64 * kMiB);
    EXPECT_GT(kind->largest_file(spec), Bytes());
  }
  EXPECT_EQ(farKind("tape"), nullptr);
  EXPECT_EQ(farKind(""), nullptr);
}

TEST(FarKinds, WhatCanBeOpenedPassesItsCheckAndHasRowsIfTheRowSaysSo) {
  for (const FarKind* kind : farKinds()) {
    if (!opensAnywhere(*kind)) continue;
    SCOPED_TRACE(std::string(kind->name));
    Maker maker(*kind);
    const FarSpec spec = maker.spec(PageCount(4 * kPagesPerGranule));
    for (const CheckDepth depth : {CheckDepth::kReach, CheckDepth::kTry}) {
      const auto report = kind->check(spec, {.depth = depth});
      ASSERT_TRUE(report) << report.error().text();
      EXPECT_STRNE(report->detail, "");
      EXPECT_STREQ(report->warning, "");
    }
    const auto tier = kind->open(spec, kLong);
    ASSERT_TRUE(tier) << tier.error().text();
    EXPECT_THAT((*tier)->name(), testing::StartsWith(std::string(kind->name)));
    EXPECT_EQ((*tier)->direct() != nullptr, (*tier)->kind() == TierKind::kDirect);
    EXPECT_EQ((*tier)->fetch() != nullptr, (*tier)->kind() == TierKind::kFetch);
    EXPECT_EQ(kind->tables.value_or((*tier)->kind()), (*tier)->kind());
    EXPECT_EQ((*tier)->rowStore() != nullptr, kind->tables.has_value());
  }
}

}  // namespace
}  // namespace tidepool
