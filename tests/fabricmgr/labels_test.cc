// SPDX-License-Identifier: Apache-2.0
// Labels: what they may be, what selectors find (against a model), and that hosts, devices and
// regions keep them over restarts, changes and a store from before there were any.
#include "fabricmgr/model/labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "fabricmgr/store/sqlite.h"
#include "tests/fabricmgr/independent_checker.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string applyOne(const std::string& key, const std::optional<std::string>& value) {
  const auto labels = applied({}, {{key, value}});
  return labels ? textOf(*labels) : labels.error().text();
}

TEST(Labels, HaveKeysAndValuesAsKubectlHasThem) {
  for (const char* key : {"a", "rack", "A.b_c-9", "example.org/rack", "0/x"}) {
    EXPECT_EQ(applyOne(key, "v"), std::string(key) + "=v");
  }
  EXPECT_EQ(applyOne("rack", ""), "rack=");
  EXPECT_EQ(applyOne(std::string(63, 'k'), std::string(63, 'v')).size(), 127u);
  const std::string bad_keys[] = {"",
                                  "-a",
                                  "a-",
                                  "a b",
                                  "/a",
                                  "a/",
                                  "a/b/c",
                                  "é",
                                  "a=b",
                                  "a,b",
                                  "_a",
                                  "a_/b",
                                  std::string(64, 'k'),
                                  "a\n",
                                  std::string(254, 'p') + "/k"};
  for (const std::string& key : bad_keys) {
    EXPECT_THAT(applyOne(key, "v"), HasSubstr("is no key of a label")) << key;
    EXPECT_THAT(applyOne(key, std::nullopt), HasSubstr("is no key of a label")) << key;
  }
  for (const std::string& value : {std::string("-v"), std::string("v."), std::string("a b"),
                                   std::string("a=b"), std::string("a/b"), std::string(64, 'v')}) {
    EXPECT_THAT(applyOne("k", value), HasSubstr("is no value of a label")) << value;
  }
}

TEST(Labels, AreSetAndTakenAwayOneByOne) {
  Labels labels = *applied({}, {{"rack", "r7"}, {"disk", "nvme"}});
  EXPECT_EQ(textOf(labels), "disk=nvme,rack=r7");
  labels = *applied(labels, {{"rack", std::nullopt}, {"disk", "ssd"}, {"nothing", std::nullopt}});
  EXPECT_EQ(textOf(labels), "disk=ssd");
  LabelChange many;
  for (size_t i = 0; i < kMostLabels; ++i) many["k" + std::to_string(i)] = "";
  labels = *applied({}, many);
  EXPECT_EQ(applied(labels, {{"more", ""}}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(applied(labels, {{"more", ""}, {"k0", std::nullopt}}));
}

TEST(Labels, AreReadBackAsTheyWereWritten) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    Labels labels;
    for (unsigned n = random() % 5; n > 0; --n) {
      labels["k" + std::to_string(random() % 9)] =
          random() % 3 == 0 ? "" : "v" + std::to_string(random() % 9);
    }
    const std::string text = textOf(labels);
    EXPECT_EQ(*labelsIn(text), labels);
    std::string bad = text + ",";
    if (!text.empty()) bad[random() % bad.size()] = "=, \n\x7f-"[random() % 6];
    const auto read = labelsIn(bad);  // whatever it is, it is what its text is
    if (read) {
      EXPECT_EQ(*labelsIn(textOf(*read)), *read);
    }
  }
  for (const char* bad : {",", "a", "=v", "a=b,", "a=b,,c=d", "a=b c=d", "a=b=c"}) {
    EXPECT_EQ(labelsIn(bad).error().code(), ErrorCode::kCorrupt) << bad;
  }
}

bool selects(const std::string& selector, const Labels& labels) {
  const auto parsed = Selector::parse(selector);
  EXPECT_TRUE(parsed) << selector << ": " << parsed.error().text();
  return parsed && parsed->matches(labels);
}

TEST(Selector, KnowsTheFormsThatKubectlHas) {
  const Labels labels = {{"rack", "r7"}, {"disk", "nvme"}, {"spare", ""}};
  for (const char* yes :
       {"", " ", "rack=r7", "rack==r7", " rack = r7 , disk = nvme ", "rack!=r8", "gpu!=a", "rack",
        "!gpu", "spare=", "spare", "rack in (r6, r7)", "gpu notin (a)", "rack notin (r8,r9)",
        "disk in (nvme),rack=r7,!gpu", "gpu!="}) {
    EXPECT_TRUE(selects(yes, labels)) << yes;
  }
  for (const char* no : {"rack=r8", "rack!=r7", "gpu=a", "gpu", "!rack", "gpu in (a)",
                         "spare!=", "rack notin (r7)", "rack=r7,disk=ssd"}) {
    EXPECT_FALSE(selects(no, labels)) << no;
  }
  const std::string bad_ones[] = {"=",
                                  "rack=r 7",
                                  ",",
                                  "rack=r7,",
                                  ",rack",
                                  "!",
                                  "!=",
                                  "a=b=c",
                                  "rack in r7",
                                  "rack in (r7",
                                  "rack in )(",
                                  "in (a)",
                                  "a!b",
                                  "!!a",
                                  "a===b",
                                  std::string(5000, 'a'),
                                  std::string("a\0b", 3)};
  for (const std::string& bad : bad_ones) {
    EXPECT_EQ(Selector::parse(bad).error().code(), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(Selector, FindsWhatItsTermsSay) {
  // Against a model: each term is made with what it means.
  std::mt19937 random(11);
  const auto key = [&] { return std::string(1, static_cast<char>('a' + random() % 4)); };
  const auto value = [&] { return std::string(1, static_cast<char>('x' + random() % 3)); };
  using Means = std::function<bool(const Labels&)>;
  const auto has = [](const Labels& labels, const std::string& k, const std::string& v) {
    return labels.contains(k) && labels.at(k) == v;
  };
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    std::vector<Means> means;
    for (unsigned n = random() % 4; n > 0; --n) {
      const std::string k = key(), v = value(), w = value();
      if (!text.empty()) text += random() % 2 == 0 ? "," : " , ";
      switch (random() % 6) {
        case 0:
          text += k + (random() % 2 == 0 ? "=" : "==") + v;
          means.push_back([=](const Labels& l) { return has(l, k, v); });
          break;
        case 1:
          text += k + "!=" + v;
          means.push_back([=](const Labels& l) { return !has(l, k, v); });
          break;
        case 2:
          text += k;
          means.push_back([=](const Labels& l) { return l.contains(k); });
          break;
        case 3:
          text += "!" + k;
          means.push_back([=](const Labels& l) { return !l.contains(k); });
          break;
        case 4:
          text += k + " in (" + v + "," + w + ")";
          means.push_back([=](const Labels& l) { return has(l, k, v) || has(l, k, w); });
          break;
        default:
          text += k + " notin (" + v + "," + w + ")";
          means.push_back([=](const Labels& l) { return !has(l, k, v) && !has(l, k, w); });
      }
    }
    Labels labels;
    for (unsigned n = random() % 4; n > 0; --n) labels[key()] = value();
    const bool expected =
        std::all_of(means.begin(), means.end(), [&](const Means& one) { return one(labels); });
    ASSERT_EQ(selects(text, labels), expected) << text << " of " << textOf(labels);
  }
}

class LabelVerbs : public ManagerFixture {
 protected:
  void SetUp() override {
    open({"d1", "d2"}, {"h1", "h2"});
    region = assign("h1", 8);
  }
  void reopen() {
    manager.reset();
    EXPECT_EQ(checker::Checker(house.folder / "store.db").check(), "");
    manager = house.open();
  }
  std::vector<std::string> hosts(const std::string& selector) {
    std::vector<std::string> names;
    for (const HostInfo& info : must(manager->listHosts({}, *Selector::parse(selector))).items) {
      names.push_back(info.host.name);
    }
    return names;
  }
  std::string labelsOf(const std::string& host) {
    return textOf(must(manager->showHost(host)).host.labels);
  }
  /// Runs statements behind the store's back.
  void meddle(const char* sql) {
    const auto database = Database::open(house.folder / "store.db", SQLITE_OPEN_READWRITE);
    ASSERT_TRUE(database) << database.error().text();
    must(database->execute(sql));
  }
  std::string regionLabels() { return textOf(infoOf(region).region.labels); }

  RegionId region;
};

TEST_F(LabelVerbs, AreKeptFoundAndAudited) {
  must(manager->labelHost({}, "h1", {{"rack", "r7"}, {"gpu", "h100"}}));
  must(manager->labelHost({}, "h2", {{"rack", "r8"}}));
  must(manager->labelDevice({}, "d2", {{"slow", ""}}));
  must(manager->labelRegion({}, region, {{"job", "train-1"}}));
  for (int life = 0; life < 2; ++life) {
    EXPECT_THAT(hosts("rack=r7"), ElementsAre("h1"));
    EXPECT_THAT(hosts("rack!=r7"), ElementsAre("h2"));
    EXPECT_THAT(hosts("rack"), ElementsAre("h1", "h2"));
    EXPECT_THAT(hosts("gpu,rack=r8"), IsEmpty());
    const auto devices = must(manager->listDevices({}, "", *Selector::parse("slow")));
    ASSERT_EQ(devices.items.size(), 1u);
    EXPECT_EQ(devices.items[0].device.name, "d2");
    RegionFilter filter;
    filter.selector = *Selector::parse("job in (train-1)");
    EXPECT_EQ(must(manager->listRegions({}, filter)).items.size(), 1u);
    filter.selector = *Selector::parse("!job");
    EXPECT_EQ(must(manager->listRegions({}, filter)).items.size(), 0u);
    reopen();
  }
  must(manager->labelHost({}, "h1", {{"gpu", std::nullopt}, {"rack", "r9"}}));
  EXPECT_EQ(labelsOf("h1"), "rack=r9");
  must(manager->labelHost({}, "h1", {{"rack", std::nullopt}}));
  reopen();
  EXPECT_EQ(labelsOf("h1"), "");
  const auto audit = must(manager->listAudit({0, 1000})).items;
  EXPECT_EQ(audit.back().verb, "host.set");
  EXPECT_EQ(audit.back().changes,
            "set-labels " + std::to_string(audit.back().id) + " of=host labels=-\n");
}

TEST_F(LabelVerbs, StayThroughWhatChangesTheThing) {
  must(manager->labelHost({}, "h1", {{"rack", "r7"}}));
  must(manager->labelDevice({}, "d1", {{"rack", "r1"}}));
  must(manager->labelRegion({}, region, {{"job", "j1"}}));
  must(manager->cordonDevice({}, "d1"));
  must(manager->drainHost({}, "h1", {}));
  must(manager->resumeHost({}, "h1"));
  must(manager->uncordonDevice({}, "d1"));
  must(manager->resize({}, region, Bytes(16 * kGrain), {}));
  const Answer shrunk = must(manager->resize({}, region, Bytes(4 * kGrain), {}));
  EXPECT_EQ(shrunk.id, region.value());
  manager->settle();
  must(manager->transferRegion({}, region, "h2", Force::kForce));
  manager->settle();
  EXPECT_EQ(infoOf(region).host, "h2");
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(labelsOf("h1"), "rack=r7");
    EXPECT_EQ(textOf(must(manager->showDevice("d1")).device.labels), "rack=r1");
    EXPECT_EQ(regionLabels(), "job=j1");
    reopen();
  }
  // They go with what they were written on.
  must(manager->releaseRegion({}, region, "", Force::kForce));
  manager->settle();
  must(manager->removeHost({}, "h1"));
  must(manager->removeDevice({}, "d1", Force::kNo));
  reopen();
  must(manager->addHost({}, hostSpec("h1")));
  EXPECT_EQ(labelsOf("h1"), "");
}

TEST_F(LabelVerbs, AreRefusedAsOtherVerbsAre) {
  EXPECT_EQ(codeOf(manager->labelHost({}, "nobody", {{"a", "b"}})), ErrorCode::kNotFound);
  EXPECT_EQ(codeOf(manager->labelDevice({}, "nothing", {{"a", "b"}})), ErrorCode::kNotFound);
  EXPECT_EQ(codeOf(manager->labelRegion({}, RegionId(99), {{"a", "b"}})), ErrorCode::kNotFound);
  EXPECT_EQ(codeOf(manager->labelHost({}, "h1", {{"a b", "c"}})), ErrorCode::kInvalidArgument);
  const Index before = must(manager->totals()).index;
  Caller dry;
  dry.mode = Mode::kDryRun;
  EXPECT_EQ(must(manager->labelHost(dry, "h1", {{"a", "b"}})).index, Index());
  EXPECT_EQ(must(manager->labelHost({}, "h1", {{"a", std::nullopt}})).index, Index());
  EXPECT_EQ(must(manager->totals()).index, before) << "nothing was changed";
  Caller caller;
  caller.expected = must(manager->showHost("h1")).host.modified;
  const Answer done = must(manager->labelHost(caller, "h1", {{"a", "b"}}));
  EXPECT_EQ(must(manager->showHost("h1")).host.modified, done.index);
  const auto late = manager->labelHost(caller, "h1", {{"a", "c"}});
  ASSERT_FALSE(late);
  EXPECT_TRUE(isOutdated(late.error()));
  EXPECT_FALSE(isOutdated(manager->addHost({}, hostSpec("h1")).error()));
  Caller keyed;
  keyed.key = "k";
  const Answer once = must(manager->labelHost(keyed, "h1", {{"z", "1"}}));
  EXPECT_EQ(must(manager->labelHost(keyed, "h1", {{"z", "1"}})), once);
  EXPECT_EQ(codeOf(manager->labelHost(keyed, "h1", {{"z", "2"}})), ErrorCode::kConflict);
}

TEST_F(LabelVerbs, AStoreFromBeforeThereWereAnyIsBroughtUpToDate) {
  const Answer drained = must(manager->drainRegion({}, region, {}));
  manager.reset();
  meddle(kUndoToSecondStep);
  manager = house.open();
  ASSERT_NE(manager, nullptr);
  EXPECT_EQ(stateOf(drained), OperationState::kRunning);
  EXPECT_EQ(regionLabels(), "");
  must(manager->labelRegion({}, region, {{"job", "j1"}}));
  reopen();
  EXPECT_EQ(regionLabels(), "job=j1");
}

TEST_F(LabelVerbs, LabelsThatAreNoneAreACorruptStore) {
  must(manager->labelHost({}, "h1", {{"rack", "r7"}}));
  manager.reset();
  for (const char* sql :
       {"UPDATE labels SET labels = 'rack r7'", "UPDATE labels SET labels = 'rack=r7', id = 999"}) {
    meddle(sql);
    const auto opened = house.tryOpen();
    ASSERT_FALSE(opened) << sql;
    EXPECT_EQ(opened.error().code(), ErrorCode::kCorrupt) << opened.error().text();
  }
}

}  // namespace
}  // namespace tidepool::fabric
