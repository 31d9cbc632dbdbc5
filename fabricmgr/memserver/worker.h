// SPDX-License-Identifier: Apache-2.0
// One thread of the memory server: an epoll loop over its sessions, and for the first worker the
// listener and the sweep of regions. Sessions are owned and touched by the worker's thread only;
// other threads hand sockets over through the inbox.
#pragma once

#include <sched.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fabricmgr/memserver/server.h"
#include "fabricmgr/memserver/session.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::memserver {

class Worker {
 public:
  /// `listener` is invalid for all but the accepting worker. Errors: kIo.
  static Result<std::unique_ptr<Worker>> create(Server& server, UniqueFd listener);
  /// Starts the thread, once. Apart from create(), so that every worker exists before any runs.
  void launch();
  /// Stops the loop, closes the sessions and joins. May be called twice.
  void stop() TP_EXCLUDES(mutex_);
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Gives the worker an accepted socket. Any thread.
  void hand(UniqueFd socket, std::string peer) TP_EXCLUDES(mutex_);
  /// Returns once the worker has been between two sessions: what any session did before has ended.
  void quiesce() TP_EXCLUDES(mutex_);
  /// What had happened on its connections by then has been dealt with. Any thread.
  Nanoseconds caughtUpTo() const { return Nanoseconds(caught_up_to_.load()); }

 private:
  struct Arrival {
    UniqueFd socket;
    std::string peer;
  };

  Worker(Server& server, UniqueFd listener) : server_(server), listener_(std::move(listener)) {}
  Status setUp();
  void run();
  bool takeInbox() TP_EXCLUDES(mutex_);
  void wake();
  void followTraffic(const Session& session);
  void unbind();
  void accept();
  void stopAccepting(const std::string& why);
  void add(Arrival arrival);
  void serve(Session& session);
  void remove(Session& session);
  void tick();
  void watch(int fd, void* data, uint32_t events, int operation);

  Server& server_;
  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd wake_;
  bool accepting_ = false;  // the listener is in epoll
  Nanoseconds last_tick_;
  std::atomic<uint64_t> caught_up_to_{0};
  uint64_t served_ = 0;
  int arrival_cpu_ = -1;  // of the last look
  int home_cpu_ = -1;     // bound to; -1: to none
  cpu_set_t allowed_;     // before it bound itself
  uint64_t moved_ = 0;    // bytes since the last look
  std::unordered_map<int, std::unique_ptr<Session>> sessions_;

  Mutex mutex_;
  CondVar quiesced_;
  std::vector<Arrival> inbox_ TP_GUARDED_BY(mutex_);
  bool stopping_ TP_GUARDED_BY(mutex_) = false;
  uint64_t quiesce_wanted_ TP_GUARDED_BY(mutex_) = 0;
  uint64_t quiesce_done_ TP_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tidepool::memserver
