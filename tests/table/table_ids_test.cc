// SPDX-License-Identifier: Apache-2.0
// TableIds against maps: which row an id has, which rows are new, what is counted before an id is
// admitted, and that a batch for which there is no room changes nothing.
#include "allocator/table/table_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace tidepool {
namespace {

constexpr RowNumber kRows = 60;

TableOptions hashedIds(uint32_t admit_after) {
  TableOptions options;
  options.name = "items";
  options.rows = kRows;
  options.ids = IdKind::kHashed;
  options.tracked = Tracked::kBoth;
  options.admit_after = admit_after;
  options.remembered_ids = 1000;  // as many as there are: counts are exact
  return options;
}

/// The same with maps. Row numbers are not foretold: a row must be nobody else's.
class Model {
 public:
  explicit Model(uint32_t admit_after) : options_(hashedIds(admit_after)), ids_(options_) {
    EXPECT_TRUE(ids_.setUp());
  }

  void lookUp(const std::vector<int64_t>& ids, bool inserts) {
    const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
    Batch batch{ids, offsets};
    batch.absent = inserts ? Absent::kInsert : Absent::kInitial;
    std::set<int64_t> wanted;
    for (const int64_t id : ids) {
      if (!inserts || rows_.count(id) > 0) continue;
      if (options_.admit_after <= 1 || ++seen_[id] >= options_.admit_after) wanted.insert(id);
    }
    std::vector<uint32_t> without;
    check(ids, ids_.forLookUp(batch, without), without, wanted);
  }
  void step(const std::vector<int64_t>& ids) {
    std::set<int64_t> wanted;
    if (options_.admit_after <= 1) wanted = absentOf(ids);
    std::vector<uint32_t> without;
    check(ids, ids_.forStep(ids, without), without, wanted);
  }
  void write(const std::vector<int64_t>& ids) {
    check(ids, ids_.forWriting(ids), {}, absentOf(ids));
  }
  void use(const std::vector<int64_t>& ids) {
    ++step_;
    for (const int64_t id : std::set<int64_t>(ids.begin(), ids.end())) {
      const auto found = rows_.find(id);
      if (found == rows_.end()) continue;
      ids_.used(found->second, step_);
      RowUse& use = uses_[id];
      use.last = static_cast<uint32_t>(step_);
      ++use.uses;
    }
  }
  void remove(const std::vector<int64_t>& ids) {
    std::set<RowNumber> wanted;
    for (const int64_t id : ids) {
      if (rows_.count(id) > 0) wanted.insert(rows_[id]);
    }
    const std::vector<RowNumber> present = ids_.present(ids);
    ASSERT_EQ(present, std::vector<RowNumber>(wanted.begin(), wanted.end()));
    erase(present);
  }
  void expire(const Expiry& expiry) {
    std::set<RowNumber> wanted;
    for (const auto& [id, row] : rows_) {
      if (expiry.takes(uses_[id], step_)) wanted.insert(row);
    }
    std::vector<RowNumber> expired;
    ids_.expired(expiry, step_, 0, ids_.end(), expired);
    ASSERT_EQ(expired, std::vector<RowNumber>(wanted.begin(), wanted.end()));
    erase(expired);
  }

 private:
  std::set<int64_t> absentOf(const std::vector<int64_t>& ids) const {
    std::set<int64_t> absent;
    for (const int64_t id : ids) {
      if (rows_.count(id) == 0) absent.insert(id);
    }
    return absent;
  }

  /// `wanted` are the ids without a row that were to get one.
  void check(const std::vector<int64_t>& ids, const Result<std::span<const RowNumber>>& found,
             const std::vector<uint32_t>& without, const std::set<int64_t>& wanted) {
    ASSERT_EQ(found.has_value(), rows_.size() + wanted.size() <= kRows);
    if (!found) {
      EXPECT_EQ(found.error().code(), ErrorCode::kNoSpace);
      return checkRows();
    }
    ASSERT_EQ(ids_.made().size(), wanted.size());
    ASSERT_EQ(found->size() + without.size(), ids.size());
    const std::set<RowNumber> made(ids_.made().begin(), ids_.made().end());
    size_t next = 0, next_without = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool has = rows_.count(ids[i]) > 0 || wanted.count(ids[i]) > 0;
      if (!has) {
        ASSERT_EQ(without[next_without++], i);
        continue;
      }
      const RowNumber row = (*found)[next++];
      ASSERT_EQ(made.count(row), wanted.count(ids[i]));
      ASSERT_EQ(rows_.emplace(ids[i], row).first->second, row);
      ASSERT_EQ(ids_.id(row), static_cast<uint64_t>(ids[i]));
    }
    for (const RowNumber row : made) ids_.born(row, step_);
    for (const int64_t id : wanted) {
      uses_[id] = {static_cast<uint32_t>(step_), 0};
      seen_.erase(id);
    }
    checkRows();
  }

  void erase(const std::vector<RowNumber>& rows) {
    for (const RowNumber row : rows) {
      ids_.erase(row);
      std::erase_if(rows_, [row](const auto& entry) { return entry.second == row; });
    }
    checkRows();
  }

  void checkRows() {
    ASSERT_EQ(ids_.count(), rows_.size());
    std::set<RowNumber> live;
    for (const auto& [id, row] : rows_) {
      ASSERT_TRUE(live.insert(row).second) << "two ids have row " << row;
    }
    for (RowNumber row = 0; row < ids_.end(); ++row) {
      ASSERT_EQ(ids_.live(row), live.count(row) > 0);
    }
    std::vector<int64_t> ids;
    std::vector<RowNumber> rows;
    for (const auto& [id, row] : rows_) ids.push_back(id);
    ASSERT_TRUE(ids_.existing(ids, rows));
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(rows[i], rows_[ids[i]]);
  }

  const TableOptions options_;
  TableIds ids_;
  uint64_t step_ = 0;
  std::map<int64_t, RowNumber> rows_;
  std::map<int64_t, RowUse> uses_;
  std::map<int64_t, uint32_t> seen_;
};

TEST(TableIds, AreAsMapsHaveThem) {
  for (const uint32_t admit_after : {0u, 2u, 5u}) {
    Model model(admit_after);
    std::mt19937_64 random(admit_after + 1);
    for (int i = 0; i < 4000 && !testing::Test::HasFatalFailure(); ++i) {
      std::vector<int64_t> ids(random() % 20);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % 90) - 45;  // more than fit
      switch (random() % 8) {
        case 0:
          model.remove(ids);
          break;
        case 1:
          model.expire({random() % 30 + 20, random() % 3});
          break;
        case 2:
          model.write(ids);
          break;
        case 3:
          model.lookUp(ids, false);
          break;
        case 4:
        case 5:
          model.step(ids);
          model.use(ids);
          break;
        default:
          model.lookUp(ids, true);
      }
    }
  }
}

TEST(TableIds, ThatAreDenseAreRowNumbers) {
  TableOptions options;
  options.rows = 10;
  TableIds ids(options);
  ASSERT_TRUE(ids.setUp());
  const std::vector<int64_t> some{3, 9, 3};
  std::vector<uint32_t> without;
  const auto rows = ids.forStep(some, without);
  ASSERT_TRUE(rows);
  EXPECT_TRUE(std::equal(rows->begin(), rows->end(), some.begin(), some.end()));
  EXPECT_TRUE(ids.made().empty());
  EXPECT_TRUE(without.empty());
  EXPECT_EQ(ids.count(), 10u);
  EXPECT_EQ(ids.end(), 10u);
  EXPECT_TRUE(ids.live(9));
  EXPECT_EQ(ids.id(9), 9u);
  EXPECT_EQ(ids.byRow(), nullptr);
  EXPECT_EQ(ids.memory(), Bytes());
  EXPECT_EQ(TableIds::checkHashed(options, "this is for").error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace tidepool
