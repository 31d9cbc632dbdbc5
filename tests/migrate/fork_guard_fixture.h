// SPDX-License-Identifier: Apache-2.0
// A fork guard over a fake core. Stand-ins for the service threads sleep and park as the real ones
// do.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/migrate/process/fork_guard.h"
#include "runtime/os/streams.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {

/// Sleeps until its doorbell rings, and parks when asked to.
class StandIn {
 public:
  StandIn(Core& core, Doorbell& bell, Parking::Upto self) : core_(core), bell_(bell), self_(self) {}
  ~StandIn() { end(); }
  void start() {
    ending_ = false;
    thread_ = std::thread([this] {
      while (!ending_) {
        if (core_.parking.requested(self_)) {
          if (on_park) on_park();
          ++parks;
          parked = true;
          core_.parking.park(self_);
          parked = false;
        }
        pollfd wait{bell_.fd(), POLLIN, 0};
        // What rings between the look and the sleep is seen here.
        if (!core_.parking.requested(self_) && !ending_) poll(&wait, 1, -1);
        if (wait.revents != 0) bell_.clear();
      }
    });
  }
  void end() {
    ending_ = true;
    bell_.ring();
    if (thread_.joinable()) thread_.join();
  }
  /// In a child, which has none of its parent's threads and shares its doorbell.
  void startInChild() {
    new (&thread_) std::thread;
    EXPECT_TRUE(bell_.open());
    parked = false;
    parks = 0;
    start();
  }
  bool running() const { return thread_.joinable(); }
  void awaitRunning() const {
    while (parked) std::this_thread::yield();
  }
  std::atomic<bool> parked{false};
  std::atomic<int> parks{0};
  std::function<void()> on_park;

 private:
  Core& core_;
  Doorbell& bell_;
  const Parking::Upto self_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

class ForkGuardTest : public FakeCoreTest, public ChildServices {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier();
    guard_ = std::make_unique<ForkGuard>(core_, *policy_, *mover_, *this);
    migrator_.start();
    faults_.start();
  }
  void TearDown() override {
    migrator_.end();
    faults_.end();
  }

  Status startInChild() override {
    calls_ += "services ";
    if (no_services_) return fail(ErrorCode::kNoMemory, "the test says so");
    return {};
  }
  void endThreads() override {
    calls_ += "end ";
    EXPECT_TRUE(migrator_.parked && faults_.parked);
    core_.parking.resume();
    migrator_.end();
    faults_.end();
    if (on_end_) on_end_();
  }
  Status startThreads() override {
    calls_ += "start ";
    starts_.push_back(std::chrono::steady_clock::now());
    if (starts_fail_ > 0 && starts_fail_-- > 0) return fail(ErrorCode::kNoMemory, "not yet");
    migrator_.start();
    faults_.start();
    return {};
  }
  void withdrawUnforked() override { calls_ += "withdraw "; }

  bool detached() const { return core_.fork.detached(); }
  void sayDetached() { core_.fork.setDetached(); }
  bool forked() const { return core_.fork.forked(); }

  /// Whether a thread that does this has to wait; it goes on by itself. Joined by joinAll().
  template <typename Act>
  bool waits(Act act) {
    auto thread = std::make_shared<std::atomic<pid_t>>(0);
    auto done = std::make_shared<std::atomic<bool>>(false);
    threads_.emplace_back([thread, done, act] {
      *thread = static_cast<pid_t>(syscall(SYS_gettid));
      act();
      *done = true;
    });
    while (*thread == 0) std::this_thread::yield();
    const std::string path = "/proc/self/task/" + std::to_string(*thread) + "/stat";
    while (!*done) {
      std::ifstream file(path);
      std::string line;
      std::getline(file, line);
      if (line.find(") S ") != std::string::npos) return !*done;
    }
    return false;
  }
  void joinAll() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  static bool signalsHeld() {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return sigismember(&now, SIGUSR1) == 1 && sigismember(&now, SIGTERM) == 1;
  }
  /// Of the program's own, see SignalsThatTheProgramHoldsStayHeld.
  static bool held(int signal) {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return sigismember(&now, signal) == 1;
  }
  /// Everything that prepare() holds can be taken.
  void takeAll() {
    core_.space->lockAllGranules();
    core_.space->unlockAllGranules();
    for (Mutex* mutex : locks()) MutexLock lock(*mutex);
    os::lockStreams();
    os::unlockStreams();
  }
  std::vector<Mutex*> locks() {
    ManagedSpace& space = *core_.space;
    return {&policy_->mutex(), &space.addresses().mutex(), &space.ranges().mutex(),
            &space.anchored().mutex()};
  }
  static bool readable(uintptr_t address) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    const bool is = ::write(ends[1], reinterpret_cast<void*>(address), 8) == 8;
    close(ends[0]);
    close(ends[1]);
    return is;
  }
  /// A prepared fork whose child runs child(), then `body`; 0: nothing failed there.
  template <typename Body>
  int inChild(ForkKind kind, Body body) {
    guard_->prepare(kind);
    const pid_t pid = fork();
    if (pid == 0) {
      guard_->child();
      endChild(body);
    }
    guard_->parent();
    return exitOf(pid);
  }
  template <typename Body>
  void endChild(Body body) {
    alarm(60);
    body();
    _exit(HasFailure() ? 1 : 0);
  }
  static int exitOf(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  /// Page 0 is local, page 1 far.
  PageIndex begin() {
    const PageIndex first = allocate();
    makeLocal(first, 1);
    makeFar(first + 1, 1);
    return first;
  }
  /// What a child without services finds.
  void expectWithoutFar(PageIndex first, const char* calls) {
    EXPECT_TRUE(detached());
    EXPECT_EQ(calls_, calls);
    EXPECT_TRUE(readable(addressOf(first)));
    EXPECT_EQ(load(first), first.value());
    EXPECT_FALSE(readable(addressOf(first + 1)));
    EXPECT_FALSE(signalsHeld());
    takeAll();
  }

  FakeTier* tier_ = nullptr;
  StandIn migrator_{core_, core_.need_memory, Parking::Upto::kMigrator};
  StandIn faults_{core_, core_.freed_memory, Parking::Upto::kFaults};
  std::unique_ptr<ForkGuard> guard_;
  std::vector<std::thread> threads_;
  std::string calls_;
  bool no_services_ = false;
  int starts_fail_ = 0;
  std::function<void()> on_end_;
  std::vector<std::chrono::steady_clock::time_point> starts_;
};

}  // namespace tidepool
