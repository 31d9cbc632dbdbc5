// SPDX-License-Identifier: Apache-2.0
// Transfers that are held up, overtaken, broken or dropped half way: over a tier that does what the
// test says.
#include <gtest/gtest.h>
#include <poll.h>

#include <set>
#include <thread>

#include "tests/tensors/tensor_fixture.h"

namespace tidepool {
namespace {

using Waited = TensorTransfer::Waited;
constexpr Nanoseconds kMoment(1'000'000);

class Transfers : public testing::Test {
 protected:
  std::shared_ptr<TensorTransfer> beginPut(const std::string& name, const Tensor& tensor) {
    auto transfer = store_->put(name, "", tensor);
    EXPECT_TRUE(transfer) << transfer.error().text();
    return *transfer;
  }
  std::shared_ptr<TensorTransfer> beginGet(const std::string& name, Tensor& to) {
    auto transfer = store_->get(*store_->find(name), to);
    EXPECT_TRUE(transfer) << transfer.error().text();
    return *transfer;
  }

  HeldTier tier_{PageCount(4096)};
  std::unique_ptr<TensorStore> store_ = storeIn(tier_);
  const Tensor old_ = someBytes(2 * kMiB + 100, 1), new_ = someBytes(3 * kMiB + 1, 2);
};

TEST_F(Transfers, AGetDuringAPutHasTheOldValue) {
  ASSERT_TRUE(put(*store_, "a", old_));
  tier_.hold();
  const auto putting = beginPut("a", new_);
  Tensor got(old_.size());
  const auto getting = beginGet("a", got);
  EXPECT_EQ(*putting->wait(kMoment), Waited::kTimedOut);
  EXPECT_FALSE(putting->over() || getting->over());
  tier_.release();
  EXPECT_TRUE(ended(*putting));
  EXPECT_TRUE(ended(*getting));
  EXPECT_TRUE(got == old_);
  EXPECT_TRUE(*get(*store_, "a") == new_);
  EXPECT_EQ(store_->counts().used, toBytes(toPages(Bytes(new_.size()))));
}

TEST_F(Transfers, DeletionLeavesGetsAloneAndStopsPuts) {
  ASSERT_TRUE(put(*store_, "a", old_));
  tier_.hold();
  Tensor got(old_.size());
  const auto getting = beginGet("a", got);
  const auto putting = beginPut("a", new_), fresh = beginPut("b", new_);
  ASSERT_TRUE(store_->remove("a"));
  ASSERT_TRUE(store_->remove("b"));
  EXPECT_FALSE(store_->remove("a"));
  EXPECT_FALSE(store_->find("a"));
  // Its frames are not given away while they are being read.
  EXPECT_GE(store_->counts().used.value(), old_.size() + 2 * new_.size());
  tier_.release();
  EXPECT_TRUE(ended(*getting) && ended(*putting) && ended(*fresh));
  EXPECT_TRUE(got == old_);
  EXPECT_TRUE(store_->names().empty());
  store_->drain();
  EXPECT_EQ(store_->counts().used, Bytes());
}

TEST_F(Transfers, ThePutThatWasBegunLastStays) {
  const Tensor small(100);
  tier_.hold();
  const auto first = beginPut("a", new_);    // of more pieces than
  const auto second = beginPut("a", small);  // this, which ends before it
  tier_.release();
  EXPECT_TRUE(ended(*first) && ended(*second));
  EXPECT_TRUE(*get(*store_, "a") == small);
}

TEST_F(Transfers, APutThatFailsLeavesTheOldValue) {
  ASSERT_TRUE(put(*store_, "a", old_));
  for (int good = 0; good < 4; ++good) {
    tier_.failAfter(good, ErrorCode::kLost);
    const Status status = put(*store_, "a", new_);
    ASSERT_FALSE(status) << good;
    EXPECT_EQ(status.error().code(), ErrorCode::kLost);
    EXPECT_TRUE(*get(*store_, "a") == old_);
  }
  EXPECT_EQ(store_->counts().failures, 4u);
  EXPECT_EQ(store_->counts().used, toBytes(toPages(Bytes(old_.size()))));
  ASSERT_TRUE(put(*store_, "a", new_));
  EXPECT_TRUE(*get(*store_, "a") == new_);
}

TEST_F(Transfers, AConnectionThatBreaksIsMadeAnew) {
  ASSERT_TRUE(put(*store_, "a", old_));
  const int before = tier_.channels();
  for (int good = 0; good < 4; ++good) {
    tier_.failAfter(good, ErrorCode::kUnreachable);
    EXPECT_TRUE(put(*store_, "b", new_)) << good;
    EXPECT_TRUE(*get(*store_, "b") == new_);
  }
  EXPECT_EQ(tier_.channels(), before + 4);
  EXPECT_EQ(store_->counts().failures, 0u);
}

TEST_F(Transfers, AfterTheRegionIsGoneEverythingFails) {
  ASSERT_TRUE(put(*store_, "a", old_));
  tier_.hold();
  std::vector<Tensor> tensors(100, old_);
  std::vector<std::shared_ptr<TensorTransfer>> gets;
  for (Tensor& tensor : tensors) gets.push_back(beginGet("a", tensor));
  tier_.lose();
  tier_.failAfter(5, ErrorCode::kUnreachable);
  tier_.release();
  size_t failed = 0;
  for (const auto& transfer : gets) {
    const Status status = ended(*transfer);
    if (status) continue;
    ++failed;
    EXPECT_EQ(status.error().code(), ErrorCode::kLost) << status.error().text();
  }
  EXPECT_GT(failed, 90u);
  EXPECT_EQ(put(*store_, "b", old_).error().code(), ErrorCode::kLost);
}

TEST_F(Transfers, SmallOnesDoNotWaitForLargeOnes) {
  const Tensor large = someBytes(8 * kMiB, 1), small = someBytes(1000, 2);
  tier_.hold();
  const auto first = beginPut("large", large), second = beginPut("small", small);
  // Both are under way: the small one's only piece is among the first that were asked for.
  while (tier_.submitted() < 9) ASSERT_EQ(*first->wait(kMoment), Waited::kTimedOut);
  tier_.failAfter(3, ErrorCode::kLost);  // the large one fails, and not before the small one
  tier_.release();
  EXPECT_FALSE(ended(*first));
  EXPECT_TRUE(ended(*second));
  EXPECT_TRUE(*get(*store_, "small") == small);
}

TEST_F(Transfers, OneDescriptorTellsOfAll) {
  auto queue = DoneQueue::create();
  ASSERT_TRUE(queue);
  pollfd readable{(*queue)->fd(), POLLIN, 0};
  tier_.hold();
  std::vector<std::shared_ptr<TensorTransfer>> puts;
  std::vector<Tensor> tensors;
  for (size_t size = 0; size < 50; ++size) tensors.emplace_back(size);
  for (uint64_t token = 0; token < 50; ++token) {
    puts.push_back(beginPut(std::to_string(token), tensors[token]));
    puts.back()->tell(*queue, token);
  }
  // The one without any bytes is over at once.
  EXPECT_EQ((*queue)->take(), std::vector<uint64_t>{0});
  EXPECT_EQ(poll(&readable, 1, 0), 0);
  tier_.release();
  std::set<uint64_t> told;
  while (told.size() < 49) {
    ASSERT_EQ(poll(&readable, 1, 20'000), 1);
    for (const uint64_t token : (*queue)->take()) EXPECT_TRUE(told.insert(token).second);
  }
  EXPECT_EQ(poll(&readable, 1, 0), 0);
  puts[7]->tell(*queue, 1000);  // over: at once
  EXPECT_EQ((*queue)->take(), std::vector<uint64_t>{1000});
}

TEST_F(Transfers, TheStoreEndsWhenEverythingHasEnded) {
  tier_.hold();
  Tensor tensor = new_;
  const auto putting = beginPut("a", tensor);
  std::thread ending([&] { store_.reset(); });
  EXPECT_EQ(*putting->wait(kMoment), Waited::kTimedOut);
  tier_.release();
  ending.join();
  EXPECT_TRUE(putting->over());
  EXPECT_TRUE(putting->outcome());
  EXPECT_EQ(tier_.used(), Bytes());
}

}  // namespace
}  // namespace tidepool
