// SPDX-License-Identifier: Apache-2.0
// The compressed pool beside a plain map of what was put in: any order of putting, releasing,
// moving and freeing, from one thread and with readers beside the owner.
#include "runtime/tier/compressed_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace tidepool {
namespace {

using PageBytes = std::array<std::byte, kPageSize>;
constexpr Bytes kChunk = toBytes(CompressedPool::kChunkPages);

/// A page of which about `random` bytes do not compress.
PageBytes pageOf(uint32_t seed, uint32_t random) {
  PageBytes page{};
  std::mt19937 generator(seed);
  for (uint32_t i = 0; i < std::min<uint32_t>(random, kPageSize); ++i) {
    page[i] = static_cast<std::byte>(generator());
  }
  memcpy(page.data() + kPageSize - sizeof seed, &seed, sizeof seed);
  return page;
}

std::unique_ptr<CompressedPool> poolOf(uint64_t chunks) {
  auto pool = CompressedPool::create(kChunk * chunks);
  EXPECT_TRUE(pool);
  return std::move(*pool);
}

/// Puts a page that compresses, in a new chunk if need be; none if there is none left.
std::optional<FrameIndex> put(CompressedPool& pool, PageIndex page, const PageBytes& bytes) {
  EXPECT_TRUE(pool.pack(bytes.data()));
  if (!pool.packedFits() && !pool.beginNew()) return std::nullopt;
  return pool.put(page);
}

bool holds(CompressedPool& pool, FrameIndex frame, const PageBytes& bytes) {
  PageBytes read;
  return pool.read({frame, PageCount(1)}, read.data()) && read == bytes;
}

TEST(Pool, HasRoomForTwoChunksAtLeast) {
  EXPECT_EQ(CompressedPool::create(kChunk).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(CompressedPool::create(kChunk * 2));
}

TEST(Pool, TakesNoMemoryWhileItIsEmpty) {
  const auto pool = poolOf(8);
  EXPECT_EQ(pool->used(), Bytes());
  EXPECT_EQ(pool->capacity(), kChunk * 8);
  EXPECT_EQ(pool->kind(), TierKind::kCompressed);
  EXPECT_EQ(pool->frames(), nullptr);
  EXPECT_EQ(pool->allocate(PageCount(1)).error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(pool->oldest(), CompressedPool::kNoChunk);
  EXPECT_EQ(pool->emptiest(), CompressedPool::kNoChunk);
}

TEST(Pool, RefusesWhatSavesLessThanAThird) {
  const auto pool = poolOf(2);
  EXPECT_FALSE(pool->pack(pageOf(1, kPageSize).data()));
  EXPECT_FALSE(pool->pack(pageOf(1, kPageSize * 3 / 4).data()));
  EXPECT_TRUE(pool->pack(pageOf(1, kPageSize / 2).data()));
  EXPECT_TRUE(pool->pack(pageOf(1, 0).data()));
}

TEST(Pool, GivesBackWhatWasPut) {
  const auto pool = poolOf(4);
  std::map<uint64_t, std::pair<FrameIndex, PageBytes>> model;
  for (uint32_t i = 0; i < 60; ++i) {
    const PageBytes bytes = pageOf(i, i * 40);
    const auto frame = put(*pool, PageIndex(i), bytes);
    ASSERT_TRUE(frame);
    model[i] = {*frame, bytes};
  }
  for (const auto& [page, entry] : model) EXPECT_TRUE(holds(*pool, entry.first, entry.second));
  EXPECT_EQ(pool->pages(), PageCount(60));
  EXPECT_LE(pool->stored(), pool->used());
}

TEST(Pool, TellsWhenAnEntryWasOverwritten) {
  const auto pool = poolOf(2);
  const auto frame = put(*pool, PageIndex(7), pageOf(1, 1000));
  ASSERT_TRUE(frame);
  const auto second = put(*pool, PageIndex(8), pageOf(2, 1000));
  ASSERT_TRUE(second);
  // No frame begins in the midst of an entry; read as one it must not end in a crash.
  PageBytes read;
  const Status odd = pool->read({*frame + 2, PageCount(1)}, read.data());
  EXPECT_TRUE(odd || odd.error().code() == ErrorCode::kCorrupt);
}

TEST(Pool, FreesChunksThatAreFullAndReleased) {
  const auto pool = poolOf(3);
  std::vector<FrameIndex> frames;
  while (true) {
    const auto frame = put(*pool, PageIndex(frames.size()), pageOf(1, 2500));
    if (!frame) break;
    frames.push_back(*frame);
  }
  EXPECT_EQ(pool->used(), kChunk * 3);
  EXPECT_EQ(pool->freeEmpty(), PageCount());
  for (const FrameIndex frame : frames) pool->release({frame, PageCount(1)});
  EXPECT_EQ(pool->freeEmpty(), CompressedPool::kChunkPages * 2) << "one is being filled";
  EXPECT_EQ(pool->used(), kChunk);
  EXPECT_EQ(pool->pages(), PageCount());
  EXPECT_EQ(pool->stored(), Bytes());
  EXPECT_TRUE(put(*pool, PageIndex(1), pageOf(3, 2500)));
}

TEST(Pool, IsWalkedFromTheOldestOn) {
  const auto pool = poolOf(4);
  std::vector<std::pair<FrameIndex, uint64_t>> put_in;
  for (uint64_t page = 100;; ++page) {
    const auto frame = put(*pool, PageIndex(page), pageOf(1, 1500));
    if (!frame) break;
    put_in.emplace_back(*frame, page);
  }
  size_t at = 0;
  for (uint32_t chunk = pool->oldest(); chunk != CompressedPool::kNoChunk;
       chunk = pool->younger(chunk)) {
    pool->forEntries(chunk, [&](FrameIndex frame, PageIndex page) {
      EXPECT_EQ(put_in[at], std::make_pair(frame, page.value()));
      ++at;
    });
  }
  EXPECT_GT(at, put_in.size() / 2);
  EXPECT_GE(pool->ageOf(put_in.front().first), CompressedPool::kOldest - 1);
  EXPECT_LE(pool->ageOf(put_in.back().first), CompressedPool::kOldest / 2);
}

TEST(Pool, MovedEntriesKeepTheirBytesAndTheirAge) {
  const auto pool = poolOf(5);
  std::vector<FrameIndex> frames;
  for (uint32_t i = 0; pool->used() < kChunk * 3 || pool->packedFits(); ++i) {
    frames.push_back(*put(*pool, PageIndex(i), pageOf(i, 2000)));
  }
  const uint32_t chunk = pool->oldest();
  for (uint32_t i = 0; i < frames.size(); i += 2) pool->release({frames[i], PageCount(1)});
  ASSERT_TRUE(pool->beginMoved(chunk));
  uint64_t moved = 0;
  pool->forEntries(chunk, [&](FrameIndex frame, PageIndex page) {
    if (page.value() % 2 == 0) return;
    ASSERT_TRUE(pool->moveFits(frame));
    const FrameIndex to = pool->move(frame);
    pool->release({frame, PageCount(1)});
    frames[page.value()] = to;
    ++moved;
  });
  EXPECT_GT(moved, 5u);
  EXPECT_EQ(pool->freeEmpty(), CompressedPool::kChunkPages);
  for (uint32_t i = 1; i < frames.size(); i += 2) {
    EXPECT_TRUE(holds(*pool, frames[i], pageOf(i, 2000))) << i;
  }
  EXPECT_EQ(pool->ageOf(frames[1]), CompressedPool::kOldest);
}

/// What is in a pool, as a map.
struct Model {
  std::unique_ptr<CompressedPool> pool = poolOf(12);
  std::map<uint64_t, std::pair<uint64_t, PageBytes>> at;  // frame -> page, bytes
  uint64_t next_page = 0;

  void putOne(uint32_t seed, uint32_t random) {
    const PageBytes bytes = pageOf(seed, random);
    const auto frame = put(*pool, PageIndex(next_page), bytes);
    if (!frame) return;
    RC_ASSERT(!at.contains(frame->value()));
    at[frame->value()] = {next_page++, bytes};
  }
  void releaseOne(uint64_t which) {
    if (at.empty()) return;
    const auto found = std::next(at.begin(), static_cast<ptrdiff_t>(which % at.size()));
    pool->release({FrameIndex(found->first), PageCount(1)});
    at.erase(found);
  }
  void moveAll() {
    const uint32_t chunk = pool->emptiest();
    if (chunk == CompressedPool::kNoChunk) return;
    bool room = true;
    pool->forEntries(chunk, [&](FrameIndex frame, PageIndex page) {
      const auto found = at.find(frame.value());
      if (found == at.end() || found->second.first != page.value()) return;
      room = room && (pool->moveFits(frame) || pool->beginMoved(chunk));
      if (!room) return;
      const FrameIndex to = pool->move(frame);
      pool->release({frame, PageCount(1)});
      auto entry = at.extract(found);
      entry.key() = to.value();
      RC_ASSERT(at.insert(std::move(entry)).inserted);
    });
  }
  void check() const {
    RC_ASSERT(pool->pages().value() == at.size());
    RC_ASSERT(pool->stored() <= pool->used());
    for (const auto& [frame, entry] : at) {
      RC_ASSERT(holds(*pool, FrameIndex(frame), entry.second));
    }
  }
};

TEST(Pool, DoesAsTheModelDoes) {
  EXPECT_TRUE(rc::check("put, release, move and free in any order", [] {
    Model model;
    const auto steps =
        *rc::gen::container<std::vector<uint32_t>>(500, rc::gen::arbitrary<uint32_t>());
    for (const uint32_t step : steps) {
      switch (step % 8) {
        case 0:
        case 1:
        case 2:
        case 3:
          model.putOne(step, step / 8 % 2600);
          break;
        case 4:
        case 5:
          model.releaseOne(step / 8);
          break;
        case 6:
          model.moveAll();
          break;
        default:
          model.pool->freeEmpty();
      }
    }
    model.check();
    while (!model.at.empty()) model.releaseOne(0);
    model.pool->freeEmpty();
    // What is being filled is not freed before it is full.
    RC_ASSERT(model.pool->used() <= kChunk * 2);
    RC_ASSERT(model.pool->stored() == Bytes());
  }));
}

TEST(Pool, IsReadAndReleasedBesideItsOwner) {
  const auto pool = poolOf(16);
  struct Shared {
    std::mutex mutex;
    std::vector<std::pair<FrameIndex, uint32_t>> entries;
  } shared;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> wrong{0}, taken{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&, i] {
      std::mt19937 random(static_cast<uint32_t>(i));
      while (true) {
        std::pair<FrameIndex, uint32_t> entry;
        {
          const std::lock_guard lock(shared.mutex);
          if (shared.entries.empty()) {
            if (done) return;
            continue;
          }
          std::swap(shared.entries[random() % shared.entries.size()], shared.entries.back());
          entry = shared.entries.back();
          shared.entries.pop_back();
        }
        wrong += holds(*pool, entry.first, pageOf(entry.second, entry.second % 2500)) ? 0 : 1;
        pool->release({entry.first, PageCount(1)});
        ++taken;
      }
    });
  }
  uint32_t put_in = 0;
  while (put_in < 5000) {
    pool->freeEmpty();
    const auto frame = put(*pool, PageIndex(put_in), pageOf(put_in, put_in % 2500));
    if (!frame) continue;
    const std::lock_guard lock(shared.mutex);
    shared.entries.emplace_back(*frame, put_in++);
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(taken, 5000u);
  pool->freeEmpty();
  EXPECT_EQ(pool->used(), kChunk);
}

}  // namespace
}  // namespace tidepool
