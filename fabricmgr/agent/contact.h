// SPDX-License-Identifier: Apache-2.0
// Staying in touch with the manager: makes the host known, renews its lease at a third of its
// length, and fetches the host's regions whenever they have changed, which a watch or the answer to
// a heartbeat tells. Goes on for ever, whether the manager is there or not. Belongs to the loop's
// thread.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "fabricmgr/agent/lease.h"
#include "fabricmgr/agent/manager_link.h"
#include "fabricmgr/agent/regions.h"

namespace tidepool::agent {

enum class Standing : uint8_t {
  kUnknown = 0,  // not heard of the manager since the start
  kMember = 1,
  kAway = 2,     // the manager does not answer
  kFenced = 3,   // the host is cut off
  kRefused = 4,  // the manager does not take this agent for its host's
  kRemoved = 5   // the host was known, and is not any more
};
std::string_view nameOf(Standing standing);

class Contact {
 public:
  struct Setup {
    EventLoop* loop;
    ManagerLink* link;
    Regions* regions;
    std::string host;
    std::string domain;
    Nanoseconds lease;  // that the host is made known with; 0: the manager's own
    Log log;
    /// Called when the standing has changed.
    std::function<void()> changed;
    /// The lease was renewed: programs may use what they have until its end, `length` away at most.
    std::function<void(Nanoseconds length)> renewed;
    Lease* host_lease;  // set here
  };
  explicit Contact(Setup setup);

  void start() { beat(); }
  /// Has the list of the host's regions fetched and carried out; Regions::unlisted() if that fails.
  void relist();

  Standing standing() const { return standing_; }
  /// Why it is no member; empty if it is one.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Beaten {
    Nanoseconds lease;
    uint64_t modified = 0;
  };
  struct News {
    uint64_t index = 0;  // ask on from here
    bool any = false;
  };
  void beat();
  void beatAfter(Nanoseconds wait);
  /// The manager may have gone, for all its agents in the same moment.
  void beatSoon();
  /// A part of the time over which agents that have lost it together spread what they do.
  Nanoseconds spread();
  /// Now and then: a connection to each of the managers that stand by.
  void keepOthers();
  void join();
  /// The host has nothing any more.
  void cutOff(Standing standing, const std::string& trouble, const Error& error);
  void onBeat(const Result<Beaten>& beaten, Nanoseconds asked);
  void missed(const Error& error);
  void listNow();
  void watch();
  void onEvents(const Result<News>& news);
  void onList(const Result<std::vector<SeenRegion>>& list, uint64_t moment);
  void become(Standing standing, const std::string& trouble);
  /// Tells programs, unless a list has yet to say what they have.
  void renew();
  void ended();
  Nanoseconds jittered(Nanoseconds time);

  const Setup setup_;
  BootClock clock_;
  std::minstd_rand random_{std::random_device()()};
  Trigger beat_timer_;
  Trigger watch_timer_;
  Trigger end_timer_;
  Standing standing_ = Standing::kUnknown;
  std::string trouble_;
  Nanoseconds lease_;      // its length; 0: not known yet
  Nanoseconds pause_;      // before the next try, when the last one failed
  Nanoseconds beat_at_;    // the next one is due
  Nanoseconds others_at_;  // the managers that stand by are asked next; 0: not known yet
  uint64_t modified_ = 0;  // as of the last heartbeat that led to a list
  uint64_t watched_ = 0;   // the index up to which events are known; 0: begin anew
  bool known_ = false;     // to the manager, at some time since the start
  bool beating_ = false;   // or making the host known
  bool list_due_ = false;  // once there is a lease
  bool watching_ = false;
  bool listing_ = false;
  bool list_again_ = false;
  bool renewal_due_ = false;  // programs have yet to hear of it
};

}  // namespace tidepool::agent
