// SPDX-License-Identifier: Apache-2.0
// Processes that read what another publishes as fast as it can, and check each row they get against
// what it was in that generation; some are killed. And a process that publishes is killed at every
// page that it reads, and at random moments: readers have the generation before, and the next
// process goes on. TIDEPOOL_KILLS sets how many random ones (25).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>
#include <set>

#include "tests/publish/publish_fixture.h"

namespace tidepool {
namespace {

constexpr RowNumber kUsers = 4000, kItems = 900;
constexpr uint32_t kUserDim = 8, kItemDim = 4;
// Enough of each generation that a good part of the time is that of publishing.
constexpr uint64_t kEvery = 3;

uint64_t mixed(uint64_t row, uint64_t generation) { return mixId(row * 1'000'003 + generation); }
int64_t itemId(RowNumber item) { return static_cast<int64_t>(item * 0x9E3779B97F4A7C15ull); }

TableOptions optionsOf(const char* name, IdKind ids, RowNumber rows, uint32_t dim) {
  TableOptions options;
  options.name = name;
  options.rows = rows;
  options.format = {ElementType::kFloat32, Optimizer::kAdagrad, dim};
  options.ids = ids;
  options.initializer = {Initializer::Kind::kUniform, -1, 0, 7};
  return options;
}

// What becomes of a row in a generation, from the second on: written, or an item removed.
bool written(RowNumber row, uint64_t generation) {
  return generation == 1 || mixed(row, generation) % kEvery == 0;
}
bool removed(RowNumber item, uint64_t generation) {
  return generation > 1 && mixed(item, generation) % kEvery == 1;
}

/// The row as it is in a generation.
std::vector<float> userAt(RowNumber user, uint64_t generation) {
  while (!written(user, generation)) --generation;
  std::vector<float> row;
  for (uint32_t i = 0; i < kUserDim; ++i) {
    row.push_back(static_cast<float>(generation * 5000 + user) + static_cast<float>(i) / 8);
  }
  return row;
}

/// The newest generation in which something became of the item.
uint64_t lastOf(RowNumber item, uint64_t generation) {
  while (!written(item, generation) && !removed(item, generation)) --generation;
  return generation;
}

std::vector<float> itemAt(RowNumber item, uint64_t generation) {
  const uint64_t last = lastOf(item, generation);
  if (!removed(item, last)) {
    return std::vector<float>(kItemDim, static_cast<float>(last * 5000 + item));
  }
  std::vector<float> row(kItemDim);
  optionsOf("", IdKind::kHashed, 1, 1).initializer.fill(static_cast<uint64_t>(itemId(item)), row);
  return row;
}

/// The tables of a process that publishes.
class Trainer {
 public:
  explicit Trainer(const std::string& path) {
    const TableOptions users = optionsOf("users", IdKind::kDense, kUsers, kUserDim);
    auto backing = valueOrDie(BackingStore::inLocalMemory(users.format, users.rows));
    rows_ = backing->memory();
    users_ = valueOrDie(EmbeddingTable::create(users, std::move(backing), workers_));
    const TableOptions items = optionsOf("items", IdKind::kHashed, kItems, kItemDim);
    items_ = valueOrDie(EmbeddingTable::create(
        items, valueOrDie(BackingStore::inLocalMemory(items.format, items.rows)), workers_));
    publisher_ = publisherOf({users_.get(), items_.get()}, path);
  }

  /// As if trained from the beginning on.
  void goOnFrom(uint64_t generation) {
    if (generation == 0) return;
    std::vector<RowNumber> users, items;
    for (RowNumber user = 0; user < kUsers; ++user) users.push_back(user);
    for (RowNumber item = 0; item < kItems; ++item) {
      if (!removed(item, lastOf(item, generation))) items.push_back(item);
    }
    write(users, items, generation);
  }
  void train(uint64_t generation) {
    std::vector<RowNumber> users, items;
    std::vector<int64_t> gone;
    for (RowNumber user = 0; user < kUsers; ++user) {
      if (written(user, generation)) users.push_back(user);
    }
    for (RowNumber item = 0; item < kItems; ++item) {
      if (written(item, generation)) items.push_back(item);
      if (removed(item, generation)) gone.push_back(itemId(item));
    }
    TP_CHECK(items_->removeIds(gone).has_value());
    write(users, items, generation);
  }
  uint64_t publish() { return valueOrDie(publisher_->publish()); }
  /// Whoever reads this page of the users' rows dies of it.
  void poison(uint64_t page) {
    TP_CHECK(mprotect(rows_ + page * kPageSize, kPageSize, PROT_NONE) == 0);
  }
  static constexpr uint64_t kPages = kUsers * (2 * kUserDim * sizeof(float)) / kPageSize;

 private:
  void write(const std::vector<RowNumber>& users, const std::vector<RowNumber>& items,
             uint64_t generation) {
    std::vector<int64_t> ids;
    std::vector<float> rows;
    const auto add = [&](int64_t id, const std::vector<float>& row) {
      ids.push_back(id);
      rows.insert(rows.end(), row.begin(), row.end());
    };
    for (const RowNumber user : users) {
      add(static_cast<int64_t>(user), userAt(user, generation));
    }
    TP_CHECK(users_->writeRows(ids, rows.data()).has_value());
    ids.clear();
    rows.clear();
    for (const RowNumber item : items) add(itemId(item), itemAt(item, generation));
    TP_CHECK(items_->writeRows(ids, rows.data()).has_value());
  }

  Workers workers_{1, 0};
  std::byte* rows_ = nullptr;
  std::unique_ptr<EmbeddingTable> users_, items_;
  std::unique_ptr<Publisher> publisher_;
};

/// Looks rows of both tables up in one call; whether all are as they were in the generation that it
/// says, which it returns. 0: one was not.
uint64_t checkSome(const Published& published, std::mt19937_64& random) {
  // Many, so that generations come while they are looked up.
  const size_t ids = 1 + random() % 20'000;
  std::vector<int64_t> users, items;
  std::vector<RowNumber> item_rows;
  for (size_t i = 0; i < ids; ++i) {
    users.push_back(static_cast<int64_t>(random() % kUsers));
    item_rows.push_back(random() % kItems);
    items.push_back(itemId(item_rows.back()));
  }
  const std::vector<int64_t> offsets = singles(ids);
  std::vector<float> user_out(ids * kUserDim), item_out(ids * kItemDim);
  const Published::BagCall calls[] = {{0, {users, offsets}, user_out.data(), kUserDim},
                                      {1, {items, offsets}, item_out.data(), kItemDim}};
  const uint64_t generation = valueOrDie(published.bags(calls));
  for (size_t i = 0; i < ids; ++i) {
    const auto user = userAt(static_cast<RowNumber>(users[i]), generation);
    const auto item = itemAt(item_rows[i], generation);
    if (!std::equal(user.begin(), user.end(), user_out.begin() + i * kUserDim) ||
        !std::equal(item.begin(), item.end(), item_out.begin() + i * kItemDim)) {
      fprintf(stderr, "generation %llu: user %lld has %f and not %f, item %lld %f and not %f\n",
              static_cast<unsigned long long>(generation), static_cast<long long>(users[i]),
              user_out[i * kUserDim], user[0], static_cast<long long>(item_rows[i]),
              item_out[i * kItemDim], item[0]);
      return 0;
    }
  }
  return generation;
}

void expectAll(const Published& published, uint64_t generation) {
  std::vector<int64_t> users(kUsers), items(kItems);
  std::vector<float> user_rows, item_rows;
  for (RowNumber user = 0; user < kUsers; ++user) {
    users[user] = static_cast<int64_t>(user);
    const auto row = userAt(user, generation);
    user_rows.insert(user_rows.end(), row.begin(), row.end());
  }
  for (RowNumber item = 0; item < kItems; ++item) {
    items[item] = itemId(item);
    const auto row = itemAt(item, generation);
    item_rows.insert(item_rows.end(), row.begin(), row.end());
  }
  expectSameRows(lookedUp(published, 0, users, generation), user_rows);
  expectSameRows(lookedUp(published, 1, items, generation), item_rows);
}

/// Both ends of a pipe on which a child says, a byte each, how far it is.
struct Progress {
  Progress() { TP_CHECK(pipe2(ends, O_CLOEXEC) == 0); }
  ~Progress() {
    close(ends[0]);
    close(ends[1]);
  }
  void tell() const { TP_CHECK(write(ends[1], "", 1) == 1); }
  /// False: it has ended before.
  bool await(uint64_t times) {
    close(ends[1]);
    ends[1] = -1;
    char byte;
    while (times > 0 && read(ends[0], &byte, 1) == 1) --times;
    return times == 0;
  }
  int ends[2];
};

template <typename Act>
pid_t inChild(Act act) {
  const pid_t test = getpid(), child = fork();
  TP_CHECK(child >= 0);
  if (child > 0) return child;
  // A test that fails leaves nobody behind.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != test) _exit(4);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  act();
  _exit(0);
}

void train(const std::string& path, uint64_t generation, const Progress* progress) {
  Trainer trainer(path);
  trainer.goOnFrom(generation);
  for (;;) {
    trainer.train(++generation);
    if (trainer.publish() != generation) _exit(3);
    if (progress != nullptr) progress->tell();
  }
}

int endOf(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

void killNow(pid_t child) {
  ASSERT_EQ(kill(child, SIGKILL), 0);
  const int status = endOf(child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it had ended by itself: " << WEXITSTATUS(status);
}

TEST(PublishingProcesses, ReadersCheckEveryRowWhileGenerationsCome) {
  const ScratchFolder folder(ScratchFolder::inMemory());
  const std::string path = folder / "tables";
  constexpr size_t kReaders = 3, kGenerations = 20, kLookups = 40;
  Progress first;
  const pid_t trainer = inChild([&] {
    Trainer made(path);
    for (uint64_t generation = 1;; ++generation) {
      made.train(generation);
      if (made.publish() != generation) _exit(3);
      if (generation == 1) first.tell();
    }
  });
  ASSERT_TRUE(first.await(1));
  const auto read = [&](uint64_t seed, const Progress* progress) {
    const auto published = valueOrDie(Published::open(path));
    std::mt19937_64 random(seed);
    std::set<uint64_t> seen;
    uint64_t last = 0;
    for (size_t i = 0; i < kLookups || seen.size() < kGenerations; ++i) {
      const uint64_t generation = checkSome(*published, random);
      if (generation == 0 || generation < last) _exit(1);
      if (i == 5'000'000) _exit(2);  // nobody publishes any more
      last = generation;
      seen.insert(generation);
      if (progress != nullptr && i < 20) progress->tell();
    }
  };
  Progress killed;
  const pid_t victim = inChild([&] { read(99, &killed), pause(); });
  std::vector<pid_t> readers;
  for (uint64_t seed = 0; seed < kReaders; ++seed) {
    readers.push_back(inChild([&] { read(seed, nullptr); }));
  }
  ASSERT_TRUE(killed.await(20));
  killNow(victim);
  for (const pid_t reader : readers) EXPECT_EQ(endOf(reader), 0);
  killNow(trainer);
  const auto published = valueOrDie(Published::open(path));
  expectAll(*published, published->generation());
}

TEST(PublishingProcesses, KilledAtEveryPageThatIsRead) {
  const ScratchFolder folder(ScratchFolder::inMemory());
  const std::string path = folder / "tables";
  std::unique_ptr<Published> published;
  for (uint64_t page = 0; page <= Trainer::kPages; ++page) {
    const uint64_t before = published ? published->generation() : 0;
    const pid_t child = inChild([&] {
      Trainer trainer(path);
      trainer.goOnFrom(before);
      trainer.train(before + 1);
      if (page > 0) trainer.poison(page - 1);
      trainer.publish();
    });
    const int status = endOf(child);
    if (page == 0) {
      ASSERT_EQ(status, 0);
      published = valueOrDie(Published::open(path));
    } else {
      ASSERT_NE(status, 0) << "it did not read page " << page - 1;
    }
    ASSERT_EQ(published->generation(), std::max<uint64_t>(before, 1));
    expectAll(*published, published->generation());
    if (page % 8 == 7) {  // and what was left half way is gone on with
      const pid_t next = inChild([&] {
        Trainer trainer(path);
        trainer.goOnFrom(before);
        trainer.train(before + 1);
        if (trainer.publish() != before + 1) _exit(3);
      });
      ASSERT_EQ(endOf(next), 0);
      expectAll(*published, before + 1);
    }
  }
}

TEST(PublishingProcesses, KilledAtAnyMoment) {
  const char* const wanted = getenv("TIDEPOOL_KILLS");
  const int kills = wanted == nullptr ? 25 : atoi(wanted);
  const ScratchFolder folder(ScratchFolder::inMemory());
  const std::string path = folder / "tables";
  const auto seed = static_cast<uint64_t>(getpid());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::unique_ptr<Published> published;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    const uint64_t before = published ? published->generation() : 0;
    Progress progress;
    const pid_t child = inChild([&] { train(path, before, &progress); });
    ASSERT_TRUE(progress.await(1 + random() % 4)) << "it has ended: " << endOf(child);
    for (volatile uint64_t i = random() % 3'000'000; i > 0;) i = i - 1;
    killNow(child);
    if (!published) published = valueOrDie(Published::open(path));
    const uint64_t now = published->generation();
    ASSERT_GT(now, before);
    expectAll(*published, now);
  }
}

}  // namespace
}  // namespace tidepool
