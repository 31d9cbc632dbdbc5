// SPDX-License-Identifier: Apache-2.0
// Tensors in an emulated pool and in a memory server: their bytes, their frames, and what is
// refused.
#include "allocator/tensors/tensor_store.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <map>
#include <thread>

#include "tests/tensors/tensor_fixture.h"

namespace tidepool {
namespace {

class Stores : public testing::TestWithParam<Place> {
 protected:
  Places places_{GetParam()};
  std::unique_ptr<TensorStore> store_ = storeIn(places_.tier());
};
INSTANTIATE_TEST_SUITE_P(Tiers, Stores, testing::Values(Place::kDirect, Place::kRemote),
                         [](const auto& tier) { return placeName(tier.param); });

TEST_P(Stores, BytesComeBackExactly) {
  const size_t sizes[] = {0, 1, 4095, 4096, 4097, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB + 4099};
  std::vector<Tensor> tensors;
  std::vector<std::shared_ptr<TensorTransfer>> puts;
  for (const size_t size : sizes) tensors.push_back(someBytes(size, size));
  for (const Tensor& tensor : tensors) {
    auto transfer =
        store_->put(std::to_string(tensor.size()), "of " + std::to_string(tensor.size()), tensor);
    ASSERT_TRUE(transfer) << transfer.error().text();
    puts.push_back(*transfer);
  }
  for (const auto& transfer : puts) EXPECT_TRUE(ended(*transfer));
  for (const Tensor& tensor : tensors) {
    const std::string name = std::to_string(tensor.size());
    EXPECT_EQ((*store_->find(name))->description(), "of " + name);
    EXPECT_TRUE(*get(*store_, name) == tensor) << name;
  }
  const TensorStoreCounts counts = store_->counts();
  EXPECT_EQ(counts.tensors, std::size(sizes));
  EXPECT_EQ(counts.puts, std::size(sizes));
  EXPECT_EQ(counts.gets, std::size(sizes));
  EXPECT_EQ(counts.put, counts.stored);
  EXPECT_EQ(counts.got, counts.stored);
  EXPECT_EQ(counts.failures + counts.under_way, 0u);
}

TEST_P(Stores, WhatIsNotThereIsNotFound) {
  EXPECT_EQ(get(*store_, "x").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(store_->remove("x").error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(put(*store_, "x", someBytes(100, 1)));
  Tensor wrong(99);
  EXPECT_EQ(store_->get(*store_->find("x"), wrong).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(put(*store_, "", wrong).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(put(*store_, std::string(5000, 'n'), wrong).error().code(),
            ErrorCode::kInvalidArgument);
  ASSERT_TRUE(store_->remove("x"));
  EXPECT_EQ(get(*store_, "x").error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(store_->names().empty());
}

TEST_P(Stores, NoSpaceChangesNothing) {
  const Tensor small = someBytes(kMiB, 1);
  ASSERT_TRUE(put(*store_, "a", small));
  const Tensor large(64 * kMiB);
  EXPECT_EQ(put(*store_, "a", large).error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(put(*store_, "b", large).error().code(), ErrorCode::kNoSpace);
  EXPECT_TRUE(*get(*store_, "a") == small);
  EXPECT_EQ(store_->names(), std::vector<std::string>{"a"});
  EXPECT_EQ(store_->counts().used, Bytes(kMiB));
}

TEST_P(Stores, FramesAreUsedAgainAndHolesAreFilled) {
  // Of 64 MiB: pages of which every second goes, then one that fits into the holes alone.
  const Tensor page = someBytes(kPageSize, 1);
  constexpr int kPages = 64 * kMiB / kPageSize;
  std::vector<std::shared_ptr<TensorTransfer>> puts;
  for (int i = 0; i < kPages; ++i) {
    auto transfer = store_->put(std::to_string(i), "", page);
    ASSERT_TRUE(transfer) << transfer.error().text();
    puts.push_back(*transfer);
  }
  for (const auto& transfer : puts) ASSERT_TRUE(ended(*transfer));
  EXPECT_EQ(put(*store_, "more", page).error().code(), ErrorCode::kNoSpace);
  for (int i = 0; i < kPages; i += 2) ASSERT_TRUE(store_->remove(std::to_string(i)));
  const Tensor holes = someBytes(2 * kMiB + 5, 2);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(put(*store_, "holes", holes));
  EXPECT_TRUE(*get(*store_, "holes") == holes);
  EXPECT_TRUE(*get(*store_, "1") == page);
}

TEST_P(Stores, TrimGivesTheTierBack) {
  ASSERT_TRUE(put(*store_, "a", someBytes(8 * kMiB, 1)));
  ASSERT_TRUE(put(*store_, "b", someBytes(100, 1)));
  ASSERT_TRUE(store_->remove("a"));
  store_->trim();
  const TensorStoreCounts counts = store_->counts();
  EXPECT_EQ(counts.used, Bytes(kPageSize));
  EXPECT_LE(counts.held, Bytes(kGranuleSize));
  EXPECT_EQ(places_.tier().used(), counts.held);
  EXPECT_TRUE(*get(*store_, "b") == someBytes(100, 1));
  store_.reset();
  EXPECT_EQ(places_.tier().used(), Bytes());
}

TEST_P(Stores, TheLimitIsKept) {
  TensorStoreOptions options;
  options.limit = Bytes(4 * kMiB);
  const auto limited = storeIn(places_.tier(), options);
  ASSERT_TRUE(put(*limited, "a", someBytes(3 * kMiB, 1)));
  EXPECT_EQ(put(*limited, "a", someBytes(3 * kMiB, 2)).error().code(), ErrorCode::kNoSpace);
  ASSERT_TRUE(put(*limited, "b", someBytes(kMiB, 3)));
  EXPECT_EQ(put(*limited, "c", someBytes(1, 4)).error().code(), ErrorCode::kNoSpace);
  EXPECT_TRUE(*get(*limited, "a") == someBytes(3 * kMiB, 1));
  EXPECT_LE(limited->counts().held, options.limit);
}

/// Several threads put values of one byte each; a get sees one value, never parts of two.
TEST_P(Stores, ValuesAreWholeWhileManyPutAndGet) {
  constexpr size_t kSize = 3 * kMiB + 77;
  ASSERT_TRUE(put(*store_, "shared", Tensor(kSize, std::byte{1})));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      for (int i = 0; !stop; ++i) {
        const Tensor value(kSize, static_cast<std::byte>(1 + (2 * i + writer) % 200));
        EXPECT_TRUE(put(*store_, "shared", value));
        // It goes for a moment; who has it keeps it.
        if (i % 4 == 3) (void)store_->remove("shared");
      }
    });
  }
  for (int got = 0; got < 40;) {
    const auto tensor = get(*store_, "shared");
    if (!tensor) {
      ASSERT_EQ(tensor.error().code(), ErrorCode::kNotFound);
      std::this_thread::yield();
      continue;
    }
    ++got;
    // Each byte is the one before it.
    ASSERT_EQ(memcmp(tensor->data(), tensor->data() + 1, kSize - 1), 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Stores, AnyOrderOfCallsIsThatOfAMap) {
  EXPECT_TRUE(rc::check("against a map", [&] {
    const auto store = storeIn(places_.tier());
    std::map<std::string, Tensor> model;
    const auto calls = *rc::gen::container<std::vector<std::pair<uint8_t, uint32_t>>>(
        rc::gen::pair(rc::gen::arbitrary<uint8_t>(), rc::gen::inRange<uint32_t>(0, 20'000)));
    for (const auto& [what, size] : calls) {
      const std::string name(1, static_cast<char>('a' + what % 5));
      switch (what / 5 % 4) {
        case 0:
        case 1:
          model[name] = someBytes(size, size + what);
          RC_ASSERT(put(*store, name, model[name]).has_value());
          break;
        case 2:
          RC_ASSERT(store->remove(name).has_value() == (model.erase(name) == 1));
          break;
        default:
          store->trim();
      }
      const auto got = get(*store, name);
      RC_ASSERT(got.has_value() == model.contains(name));
      if (got) RC_ASSERT(*got == model[name]);
    }
    RC_ASSERT(store->names().size() == model.size());
    uint64_t pages = 0;
    for (const auto& [name, tensor] : model) pages += toPages(Bytes(tensor.size())).value();
    RC_ASSERT(store->counts().used == toBytes(PageCount(pages)));
  }));
}

TEST(Store, DamageInFarMemoryIsAnError) {
  Places places(Place::kDirect);
  auto& tier = static_cast<DirectTier&>(places.tier());
  for (const TensorChecksums checksums : {TensorChecksums::kEveryPiece, TensorChecksums::kNone}) {
    TensorStoreOptions options;
    options.checksums = checksums;
    const auto store = storeIn(tier, options);
    ASSERT_TRUE(put(*store, "a", someBytes(2 * kMiB + 9, 1)));
    const FrameRun last = (*store->find("a"))->piece(2).frames;
    *tier.frameMemory(last.first) ^= std::byte{1};
    const auto got = get(*store, "a");
    EXPECT_EQ(got.has_value(), checksums == TensorChecksums::kNone);
    if (got) continue;
    EXPECT_EQ(got.error().code(), ErrorCode::kCorrupt) << got.error().text();
  }
}

TEST(Store, AServerThatGoesAwayIsAnErrorOfEveryTransfer) {
  Places places(Place::kRemote);
  const auto store = storeIn(places.tier());
  const Tensor tensor = someBytes(4 * kMiB, 1);
  ASSERT_TRUE(put(*store, "a", tensor));
  places.stopServer();
  for (int i = 0; i < 3; ++i) {
    const auto got = get(*store, "a");
    ASSERT_FALSE(got);
    EXPECT_TRUE(got.error().code() == ErrorCode::kUnreachable ||
                got.error().code() == ErrorCode::kLost)
        << got.error().text();
    EXPECT_FALSE(put(*store, "b", tensor));
  }
  EXPECT_EQ(store->names(), std::vector<std::string>{"a"});
  EXPECT_EQ(store->counts().used, Bytes(4 * kMiB));
}

}  // namespace
}  // namespace tidepool
