// SPDX-License-Identifier: Apache-2.0
// Every entry is changed under the account's lock and in an order that leaves it whole if the
// process is killed there: who takes the lock from a dead holder has nothing to mend.
#include "runtime/migrate/core/tree_account.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/file_size.h"
#include "runtime/os/inherited.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

constexpr uint64_t kMagic = 0x3230'7463'6341'7054;  // "TpAcct02", of this layout
constexpr uint64_t kGainUnit = 1000;                // ns in what an entry says a gain in

}  // namespace

class TreeAccount::Locked {
 public:
  explicit Locked(TreeAccount& account) : mutex_(account.header().mutex) { mutex_.lock(); }
  ~Locked() { mutex_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  RobustMutex& mutex_;
};

TreeAccount::TreeAccount(UniqueFd fd, Mapping shared)
    : fd_(std::move(fd)),
      shared_(std::move(shared)),
      entries_(static_cast<uint32_t>((shared_.size().value() - kPageSize) / sizeof(Entry))) {
  // The programs that we execute find it open.
  if (fd_.valid()) raw::fcntl(fd_.get(), F_SETFD, 0);
}

uint32_t TreeAccount::entriesEnd() const {
  return std::min(header().entries_end.load(std::memory_order_relaxed), entries_);
}

Result<std::unique_ptr<TreeAccount>> TreeAccount::open() {
  const int fd = os::inheritedAccount();
  if (fd >= 0) {
    if (auto joined = join(UniqueFd(fd))) return joined;
  }
  return create();
}

Result<std::unique_ptr<TreeAccount>> TreeAccount::create() {
  // Room for fewer where files may not be so large; for what is forked alone where none may be.
  const Bytes wanted(kPageSize + roundUp(os::mostProcesses() * sizeof(Entry), kPageSize));
  const Bytes most(roundDown(os::largestFile().value(), kPageSize));
  const bool as_file = most >= Bytes(2 * kPageSize);
  const Bytes size = as_file ? std::min(wanted, most) : wanted;
  auto fd =
      as_file ? os::createSealedMemfd(os::kAccountMemfdName, size) : Result<UniqueFd>(UniqueFd());
  if (!fd) return tl::unexpected(fd.error());
  auto shared =
      as_file ? Mapping::sharedFile(fd->get(), Bytes(), size) : Mapping::sharedAnonymous(size);
  if (!shared) return tl::unexpected(shared.error());
  Header& header = *reinterpret_cast<Header*>(shared->data());
  header.mutex.init();
  header.magic.store(kMagic, std::memory_order_release);
  return std::unique_ptr<TreeAccount>(new TreeAccount(std::move(*fd), std::move(*shared)));
}

std::unique_ptr<TreeAccount> TreeAccount::join(UniqueFd fd) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat file;
  if (raw::fstat(fd.get(), &file) != 0 ||
      (raw::fcntl(fd.get(), F_GET_SEALS) & kNeeded) != kNeeded ||
      file.st_size < static_cast<off_t>(kPageSize + sizeof(Entry))) {
    return nullptr;
  }
  auto shared = Mapping::sharedFile(fd.get(), Bytes(), Bytes(static_cast<uint64_t>(file.st_size)));
  if (!shared) return nullptr;
  const Header& header = *reinterpret_cast<const Header*>(shared->data());
  if (header.magic.load(std::memory_order_acquire) != kMagic) return nullptr;
  fd.keep();
  return std::unique_ptr<TreeAccount>(new TreeAccount(std::move(fd), std::move(*shared)));
}

bool TreeAccount::enter() {
  TP_CHECK(own_ == kNoEntry);
  Locked locked(*this);
  // Never waits for a life: one that is taken though its entry is not used belongs to a process
  // that is about to be dead.
  const auto take = [](Entry& one) { return one.life.tryLock() != RobustMutex::Taken::kBusy; };
  uint32_t index = 0;
  const uint32_t end = entriesEnd();
  while (index < end && (entry(index).used.load() || !take(entry(index)))) ++index;
  if (index == entries_) return false;
  Entry& mine = entry(index);
  if (index == end) {
    mine.life.init();
    header().entries_end.store(end + 1);
    TP_CHECK(take(mine));
  }
  for (std::atomic<uint64_t>* one : {&mine.held, &mine.yields}) one->store(0);
  mine.gain.store(0);
  mine.used.store(true);
  own_ = index;
  return true;
}

void TreeAccount::leave() {
  if (own_ == kNoEntry) return;
  Locked locked(*this);
  Entry& mine = entry(std::exchange(own_, kNoEntry));
  mine.life.unlock();
  mine.used.store(false);
}

void TreeAccount::publish(const TreeShare::Holding& mine) {
  if (own_ == kNoEntry) return;
  Entry& entry = this->entry(own_);
  const uint64_t gain = mine.gain / kGainUnit;
  entry.held.store(mine.held.value(), std::memory_order_relaxed);
  entry.yields.store(mine.yields.value(), std::memory_order_relaxed);
  entry.gain.store(static_cast<uint32_t>(std::min<uint64_t>(gain, UINT32_MAX)),
                   std::memory_order_relaxed);
}

TreeShare::Others TreeAccount::others() {
  TreeShare::Others others;
  Locked locked(*this);
  for (uint32_t index = 0, end = entriesEnd(); index < end; ++index) {
    Entry& other = entry(index);
    if (index == own_ || !other.used.load()) continue;
    if (other.life.tryLock() != RobustMutex::Taken::kBusy) {  // it has died, or called exec
      other.life.unlock();
      other.used.store(false);
      continue;
    }
    others.add({.held = Bytes(other.held.load(std::memory_order_relaxed)),
                .yields = Bytes(other.yields.load(std::memory_order_relaxed)),
                .gain = other.gain.load(std::memory_order_relaxed) * kGainUnit});
  }
  return others;
}

}  // namespace tidepool
