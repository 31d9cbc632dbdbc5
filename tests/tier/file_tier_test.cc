// SPDX-License-Identifier: Apache-2.0
// A file on a disk as a tier: what every tier must do, with an io_uring, without one, and through
// the page cache; any order of writes, reads, releases and returns of space against a model; pages
// that were tampered with, full disks, filters, forks, and that nothing is left of it.
#include "runtime/tier/file_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <numeric>
#include <random>

#include "runtime/runtime.h"
#include "runtime/tier/far_kind.h"
#include "tests/migrate/in_process.h"
#include "tests/scratch_folder.h"
#include "tests/tier/tier_conformance.h"

namespace tidepool {
namespace {

constexpr uint64_t kSegmentPages = PageFile::kSegment.value();

std::unique_ptr<FileTier> openTier(const std::string& path, PageCount pages,
                                   const char* rest = "") {
  const auto spec =
      parseFarSpec("file:" + path + ":" + std::to_string(toBytes(pages).value()) + rest);
  EXPECT_TRUE(spec) << spec.error().text();
  auto tier = FileTier::open(*spec, Nanoseconds());
  EXPECT_TRUE(tier) << tier.error().text();
  return std::unique_ptr<FileTier>(tier ? static_cast<FileTier*>(tier->release()) : nullptr);
}

std::unique_ptr<FileTier> onDisk(PageCount pages) { return openTier("/var/tmp", pages, ":direct"); }
std::unique_ptr<FileTier> withoutRing(PageCount pages) {
  auto tier = onDisk(pages);
  tier->expectFilter();
  return tier;
}
std::unique_ptr<FileTier> cached(PageCount pages) { return openTier("/dev/shm", pages); }

const TierCase kWays[] = {{"ring", onDisk}, {"blocking", withoutRing}, {"cached", cached}};
// On a disk: far_kinds_test.cc.
INSTANTIATE_TEST_SUITE_P(Cached, TierConformance, testing::Values(kWays[2]));
INSTANTIATE_TEST_SUITE_P(Cached, FetchTierConformance, testing::Values(kWays[2]));

/// Memory as the fault service and the evictor lend it.
class Pages {
 public:
  explicit Pages(uint64_t count)
      : bytes_(static_cast<std::byte*>(aligned_alloc(kPageSize, count * kPageSize)), free) {}
  std::byte* data() const { return bytes_.get(); }
  void fill(uint64_t page, uint64_t word) const { std::iota(words(page), words(page + 1), word); }
  bool has(uint64_t page, uint64_t word) const {
    return std::all_of(words(page), words(page + 1), [&](uint64_t is) { return is == word++; });
  }

 private:
  uint64_t* words(uint64_t page) const {
    return reinterpret_cast<uint64_t*>(data() + page * kPageSize);
  }
  std::unique_ptr<std::byte, void (*)(void*)> bytes_;
};

/// Until `count` requests have ended, or one that did not go well.
ErrorCode endAll(FetchChannel& channel, size_t count) {
  ErrorCode worst{};
  while (count > 0) {
    FetchCompletion done;
    if (channel.poll({&done, 1}) == 0) {
      pollfd waiting = {channel.fd(), channel.events(), 0};
      EXPECT_GE(poll(&waiting, 1, 20000), 0);
      continue;
    }
    if (!done.ok()) worst = done.error;
    --count;
  }
  return worst;
}

/// How a request ends that was queued.
ErrorCode outcome(FetchChannel& channel, const Status& queued) {
  EXPECT_TRUE(queued) << queued.error().text();
  EXPECT_TRUE(channel.flush());
  return endAll(channel, 1);
}

ErrorCode readByChannel(FetchChannel& channel, FrameIndex frame, std::byte* to) {
  return outcome(channel, channel.submitRead(1, {frame, PageCount(1)}, to));
}

/// A tier and what should be in it. Several requests are under way at a time, of different frames.
class Model {
 public:
  Model(FileTier& tier, uint64_t seed)
      : tier_(tier), channel_(std::move(*tier.openChannel())), random_(seed) {}

  bool run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      const uint64_t what = random_() % 4;
      if (what == 0) take(1 + random_() % 600);
      if (what == 1) letGo();
      if (what > 1 && !readBack()) return false;
    }
    while (!content_.empty()) letGo();
    return true;
  }

 private:
  /// Writes new frames in a few requests, by runs or scattered.
  void take(uint64_t wanted) {
    std::vector<FrameIndex> frames;
    while (frames.size() < wanted) {
      const auto run = tier_.allocate(PageCount(std::min<uint64_t>(wanted - frames.size(), 100)));
      if (!run) break;
      for (uint64_t i = 0; i < run->count.value(); ++i) frames.push_back(run->first + i);
    }
    if (random_() % 2 == 0) std::shuffle(frames.begin(), frames.end(), random_);
    const Pages pages(std::max<uint64_t>(frames.size(), 1));
    for (uint64_t i = 0; i < frames.size(); ++i) {
      pages.fill(i, content_[frames[i]] = random_());
    }
    move(frames, pages, true);
  }
  void letGo() {
    for (uint64_t count = 1 + random_() % 300; count > 0 && !content_.empty(); --count) {
      const auto one = content_.lower_bound(FrameIndex(random_() % (2 * content_.size())));
      const auto which = one == content_.end() ? content_.begin() : one;
      tier_.release({which->first, PageCount(1)});
      content_.erase(which);
    }
  }
  bool readBack() {
    std::vector<FrameIndex> frames;
    const uint64_t share = 1 + random_() % 4;
    for (const auto& [frame, word] : content_) {
      if (random_() % share == 0) frames.push_back(frame);
    }
    const Pages pages(std::max<uint64_t>(frames.size(), 1));
    move(frames, pages, false);
    for (uint64_t i = 0; i < frames.size(); ++i) {
      if (!pages.has(i, content_[frames[i]])) return false;
    }
    return true;
  }
  void move(const std::vector<FrameIndex>& frames, const Pages& pages, bool writes) {
    size_t requests = 0;
    for (size_t at = 0; at < frames.size(); ++requests) {
      const size_t count = std::min<size_t>(1 + random_() % 200, frames.size() - at);
      const std::span<const FrameIndex> some(&frames[at], count);
      std::byte* const memory = pages.data() + at * kPageSize;
      const Status queued = writes ? channel_->submitWriteScattered(at, some, memory)
                                   : channel_->submitReadScattered(at, some, memory);
      ASSERT_TRUE(queued) << queued.error().text();
      at += count;
    }
    ASSERT_TRUE(channel_->flush());
    EXPECT_EQ(endAll(*channel_, requests), ErrorCode{});
  }

  FileTier& tier_;
  std::unique_ptr<FetchChannel> channel_;
  std::map<FrameIndex, uint64_t> content_;
  std::mt19937_64 random_;
};

class FileTierWays : public testing::TestWithParam<TierCase> {
 protected:
  FileTier& open(uint64_t segments) {
    made_ = GetParam().make(PageCount(segments * kSegmentPages));
    auto& tier = static_cast<FileTier&>(*made_);
    channel_ = std::move(*tier.openChannel());
    return tier;
  }
  /// All of the space there is.
  static std::vector<FrameRun> takeAll(FileTier& tier) {
    std::vector<FrameRun> runs;
    while (const auto run = tier.allocate(PageCount(kSegmentPages))) runs.push_back(*run);
    return runs;
  }

  std::unique_ptr<Tier> made_;
  std::unique_ptr<FetchChannel> channel_;
};
INSTANTIATE_TEST_SUITE_P(File, FileTierWays, testing::ValuesIn(kWays),
                         [](const auto& one) { return one.param.name; });

TEST_P(FileTierWays, ThreadsThatDoAsTheyLikeReadWhatTheyWrote) {
  FileTier& tier = open(64);
  for (const FrameRun& run : takeAll(tier)) tier.release(run);  // as after much use
  const uint64_t before = tier.file().reservedSegments();
  std::atomic<int> wrong{0};
  std::atomic<bool> stop{false};
  // As the migrator does, beside the others.
  std::thread tender([&] {
    while (!stop) tier.tend();
  });
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    threads.emplace_back([&, seed] {
      Model model(tier, seed);
      if (!model.run(40)) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  tender.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(tier.used(), Bytes());
  EXPECT_LT(tier.file().reservedSegments(), before);
}

TEST_P(FileTierWays, MoreRequestsThanTheRingHoldsAllEnd) {
  FileTier& tier = open(4);
  const auto run = tier.allocate(PageCount(1500));
  ASSERT_TRUE(run);
  ASSERT_EQ(run->count.value(), 1500u);
  const Pages pages(1500);
  uint64_t taken = 0;
  for (; taken < 1500; ++taken) {
    pages.fill(taken, taken);
    const std::byte* const page = pages.data() + taken * kPageSize;
    if (!channel_->submitWrite(taken, {run->first + taken, PageCount(1)}, page)) break;
  }
  EXPECT_EQ(taken, 1024u);
  EXPECT_EQ(channel_->inFlight(), taken);
  ASSERT_TRUE(channel_->flush());
  EXPECT_EQ(endAll(*channel_, taken), ErrorCode{});
  EXPECT_EQ(channel_->inFlight(), 0u);
  const Pages back(1);
  for (uint64_t i = 0; i < taken; ++i) {
    ASSERT_EQ(readByChannel(*channel_, run->first + i, back.data()), ErrorCode{});
    ASSERT_TRUE(back.has(0, i)) << i;
  }
}

TEST_P(FileTierWays, AFrameThatIsWrittenTwiceInARequestKeepsTheLaterPage) {
  FileTier& tier = open(1);
  constexpr uint64_t kCount = FetchChannel::kMostScattered;
  const auto run = tier.allocate(PageCount(2));
  ASSERT_TRUE(run);
  const Pages pages(kCount), back(1);
  // One after the other, always, so that none is adjacent.
  std::vector<FrameIndex> frames;
  for (uint64_t i = 0; i < kCount; ++i) frames.push_back(run->first + (1 - i % 2));
  for (uint64_t round = 0; round < 30; ++round) {
    for (uint64_t i = 0; i < kCount; ++i) pages.fill(i, round * kCount + i);
    ASSERT_EQ(outcome(*channel_, channel_->submitWriteScattered(7, frames, pages.data())),
              ErrorCode{});
    for (uint64_t i = kCount - 2; i < kCount; ++i) {
      ASSERT_EQ(readByChannel(*channel_, frames[i], back.data()), ErrorCode{});
      ASSERT_TRUE(back.has(0, round * kCount + i));
    }
  }
}

/// The file as somebody else would change it.
class Intruder {
 public:
  explicit Intruder(const FileTier& tier)
      : fd_(open(("/proc/self/fd/" + std::to_string(tier.file().fd())).c_str(), O_RDWR)) {
    EXPECT_TRUE(fd_.valid());
  }
  std::vector<char> page(FrameIndex frame) const {
    std::vector<char> bytes(kPageSize);
    EXPECT_EQ(pread(fd_.get(), bytes.data(), kPageSize, at(frame)), ssize_t{kPageSize});
    return bytes;
  }
  void put(FrameIndex frame, const std::vector<char>& bytes) const {
    EXPECT_EQ(pwrite(fd_.get(), bytes.data(), kPageSize, at(frame)), ssize_t{kPageSize});
    EXPECT_EQ(fsync(fd_.get()), 0);
  }
  void cutAt(FrameIndex frame) const { EXPECT_EQ(ftruncate(fd_.get(), at(frame)), 0); }

 private:
  static off_t at(FrameIndex frame) { return static_cast<off_t>(frame.value() * kPageSize); }
  UniqueFd fd_;
};

TEST_P(FileTierWays, APageThatIsNotTheLastOneWrittenIsLost) {
  FileTier& tier = open(1);
  const auto run = tier.allocate(PageCount(8));
  ASSERT_TRUE(run);
  const Pages pages(8), back(1);
  const Intruder intruder(tier);
  for (uint64_t i = 0; i < 8; ++i) pages.fill(i, 100 + i);
  ASSERT_TRUE(tier.write(*run, pages.data()));
  const FrameIndex first = run->first;
  const std::vector<char> older = intruder.page(first);
  pages.fill(0, 200);
  ASSERT_TRUE(tier.write({first, PageCount(1)}, pages.data()));
  const std::vector<char> newer = intruder.page(first);
  const auto refused = [&](FrameIndex frame) {
    EXPECT_EQ(readByChannel(*channel_, frame, back.data()), ErrorCode::kLost);
    const Status read = tier.read({frame, PageCount(1)}, back.data());
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::kLost);
  };
  intruder.put(first, older);
  refused(first);
  intruder.put(first, intruder.page(first + 1));
  refused(first);
  std::mt19937_64 random(1);
  for (int i = 0; i < 50; ++i) {
    std::vector<char> flipped = newer;
    flipped[random() % kPageSize] ^= static_cast<char>(1u << random() % 8);
    intruder.put(first, flipped);
    refused(first);
  }
  intruder.put(first, newer);
  EXPECT_EQ(readByChannel(*channel_, first, back.data()), ErrorCode{});
  EXPECT_TRUE(back.has(0, 200));
  // Of a request, one such page is enough.
  intruder.put(first + 3, newer);
  EXPECT_EQ(outcome(*channel_, channel_->submitRead(1, *run, pages.data())), ErrorCode::kLost);
  intruder.cutAt(first + 5);
  refused(first + 5);
  refused(first + 7);
  EXPECT_EQ(readByChannel(*channel_, first + 4, back.data()), ErrorCode{});
}

TEST_P(FileTierWays, SpaceOfFreedSegmentsGoesBackToTheDiskAndWhatIsUsedStays) {
  FileTier& tier = open(64);
  const auto taken = [&] {
    struct stat about {};
    EXPECT_EQ(fstat(tier.file().fd(), &about), 0);
    return static_cast<uint64_t>(about.st_blocks) * 512;
  };
  const uint64_t at_first = taken();
  const std::vector<FrameRun> runs = takeAll(tier);
  const uint64_t full = taken();
  EXPECT_GE(full, 64 * kGranuleSize);
  EXPECT_LT(at_first, full / 8);
  const Pages pages(2);
  pages.fill(0, 1);
  pages.fill(1, 2);
  const FrameIndex kept = FrameIndex(20 * kSegmentPages + 17);
  ASSERT_TRUE(tier.write({kept, PageCount(2)}, pages.data()));
  for (const FrameRun& run : runs) tier.release(run);
  // Somebody took these again.
  ASSERT_TRUE(tier.frames()->takeFree({kept, PageCount(2)}));
  for (int i = 0; i < 200; ++i) tier.tend();
  EXPECT_LT(taken(), full / 4 * 3);
  EXPECT_LE(tier.file().reservedSegments(), 34u);
  const Pages back(2);
  ASSERT_TRUE(tier.read({kept, PageCount(2)}, back.data()));
  EXPECT_TRUE(back.has(0, 1) && back.has(1, 2));
}

TEST(FileTier, NothingIsLeftOfItHoweverItEnds) {
  const ScratchFolder folder("/var/tmp");
  auto tier = openTier(folder.path(), PageCount(kSegmentPages));
  EXPECT_TRUE(folder.isEmpty());
  // A name that is new is not used.
  auto other = openTier(folder.path() + "/swap", PageCount(kSegmentPages));
  EXPECT_TRUE(folder.isEmpty());
  const Ended killed = inProcess([&] {
    const auto third = openTier(folder.path(), PageCount(kSegmentPages));
    return third != nullptr && folder.isEmpty() ? raise(SIGKILL) : 1;
  });
  EXPECT_EQ(killed.status, -SIGKILL);
  EXPECT_TRUE(folder.isEmpty());
}

/// The filter answers calls of io_uring so; others pass.
bool filterRing(uint32_t answer) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // the call's number comes first in seccomp_data
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, answer), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(FileTier, WhereIoUringIsRefusedPagesComeAndGoAllTheSame) {
  const Ended child = inProcess([] {
    if (!filterRing(SECCOMP_RET_ERRNO | EPERM)) return 1;
    const auto tier = onDisk(PageCount(8 * kSegmentPages));
    if (tier->ring()) return 2;
    if (strstr(tier->ring().error().text(), "seccomp") == nullptr) return 3;
    const auto spec = parseFarSpec("file:/var/tmp:64K");
    const auto report = spec->kind->check(*spec, {.depth = CheckDepth::kTry});
    if (!report || strstr(report->detail, "seccomp") == nullptr) return 4;
    Model model(*tier, 1);
    return model.run(20) ? 0 : 5;
  });
  EXPECT_EQ(child.status, 0) << child.said;
}

TEST(FileTier, OnceAFilterMayComeNoRingIsUsed) {
  const Ended child = inProcess([] {
    const auto tier = onDisk(PageCount(8 * kSegmentPages));
    if (!tier->ring()) return 2;
    Model before(*tier, 1);
    if (!before.run(5)) return 3;
    tier->expectFilter();
    if (!filterRing(SECCOMP_RET_KILL_PROCESS)) return 1;
    Model after(*tier, 2);
    return before.run(10) && after.run(10) ? 0 : 5;
  });
  EXPECT_EQ(child.status, 0) << child.said;
}

TEST(FileTier, AFullDiskIsNoSpaceAndNothingIsLost) {
  const ScratchFolder folder("/var/tmp");
  const Ended child = inProcess([&] {
    const int user = geteuid() == 0 ? 0 : CLONE_NEWUSER;
    if (unshare(CLONE_NEWNS | user) != 0) return 1;
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 2;
    if (mount("t", folder.path().c_str(), "tmpfs", 0, "size=7m") != 0) return 3;
    const auto tier = openTier(folder.path(), PageCount(64 * kSegmentPages));
    std::vector<FrameRun> runs;
    const Pages pages(kSegmentPages);
    for (;;) {
      const auto run = tier->allocate(PageCount(300));
      if (!run && run.error().code() != ErrorCode::kNoSpace) return 4;
      if (!run) break;
      for (uint64_t i = 0; i < run->count.value(); ++i) {
        pages.fill(i, run->first.value() + i);
      }
      if (!tier->write(*run, pages.data())) return 5;
      runs.push_back(*run);
    }
    if (tier->used().value() < 4 * kMiB || tier->used().value() > 7 * kMiB) return 6;
    for (const FrameRun& run : runs) {
      if (!tier->read(run, pages.data())) return 7;
      for (uint64_t i = 0; i < run.count.value(); ++i) {
        if (!pages.has(i, run.first.value() + i)) return 8;
      }
    }
    tier->release(runs.front());
    return tier->allocate(PageCount(1)) ? 0 : 9;
  });
  EXPECT_EQ(child.status, 0) << child.said;
}

TEST(FileTier, AWriteThatFailsIsNotALoss) {
  const Ended child = inProcess([] {
    const auto tier = onDisk(PageCount(4 * kSegmentPages));
    const auto run = tier->allocate(PageCount(2 * kSegmentPages));
    const Pages pages(2 * kSegmentPages);
    auto channel = tier->openChannel();
    // As in the service threads.
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    const rlimit limit{kGranuleSize, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    if (!(*channel)->submitWrite(1, *run, pages.data())) return 2;
    if (!(*channel)->flush()) return 3;
    if (endAll(**channel, 1) != ErrorCode::kIo) return 4;
    const Status written = tier->write(*run, pages.data());
    if (written || written.error().code() != ErrorCode::kIo) return 5;
    // A file cannot be made any more that would be too large.
    const auto spec = parseFarSpec("file:/var/tmp:8M");
    const auto larger = FileTier::open(*spec, Nanoseconds());
    return !larger && strstr(larger.error().text(), "ulimit -f") != nullptr ? 0 : 6;
  });
  EXPECT_EQ(child.status, 0) << child.said;
}

TEST(FileTier, AChildReadsWhatItsParentHadThere) {
  constexpr size_t kSize = 24 * kMiB;
  const auto options =
      parseOptions("dram:4M,far:file:/var/tmp:64M,compress:off,budget_scope:managed,space:64G",
                   [](const char*) { FAIL(); });
  ASSERT_TRUE(options) << options.error().text();
  auto runtime = Runtime::start(*options);
  ASSERT_TRUE(runtime) << runtime.error().text();
  const auto memory = (*runtime)->allocate(Bytes(kSize), Bytes(kPageSize), RangeUse::kHeap);
  ASSERT_TRUE(memory) << memory.error().text();
  auto* const bytes = static_cast<std::byte*>(*memory);
  const auto fill = [&](uint64_t seed) {
    for (uint64_t page = 0; page < kSize / kPageSize; ++page) {
      memset(bytes + page * kPageSize, static_cast<int>(seed + page % 251), kPageSize);
    }
  };
  const auto wrong = [&](uint64_t seed) {
    int found = 0;
    for (uint64_t page = 0; page < kSize / kPageSize; ++page) {
      const auto wanted = static_cast<std::byte>(seed + page % 251);
      found +=
          bytes[page * kPageSize] == wanted && bytes[page * kPageSize + 4095] == wanted ? 0 : 1;
    }
    return found;
  };
  fill(1);
  EXPECT_EQ(wrong(1), 0);
  // The child reads and changes what it has, and forks; the parent changes its own meanwhile.
  const pid_t child = fork();
  if (child == 0) {
    if (wrong(1) != 0) _exit(1);
    fill(2);
    if (wrong(2) != 0) _exit(2);
    _exit(inProcess([&] { return wrong(2) == 0 ? 0 : 3; }).status);
  }
  fill(3);
  EXPECT_EQ(wrong(3), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(wrong(3), 0);
  (*runtime)->refreshStats();
  const StatsPage& stats = (*runtime)->stats();
  EXPECT_STREQ(stats.tiers[1].name, "file:/var/tmp");
  EXPECT_GT(stats.tiers[1].writes_bytes, kSize / 2);
  EXPECT_GT(stats.tiers[1].reads_bytes, kSize / 2);
}

}  // namespace
}  // namespace tidepool
