// SPDX-License-Identifier: Apache-2.0
// Worker: the epoll loop. Level-triggered, so a session may stop reading at any point and be called
// again; a session that is not done with its turn is called again without waiting.
#include "fabricmgr/memserver/worker.h"

#include <fmt/format.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/time_slice.h"
#include "runtime/transport/peer_address.h"

namespace tidepool::memserver {
namespace {

constexpr size_t kLeastEvents = 64;
constexpr Nanoseconds kTick = Nanoseconds(250'000'000);
constexpr int kTickMilliseconds = 250;
/// Accepted before those who are there have their turn: who shakes hands is no newcomer any more.
constexpr int kAcceptedAtOnce = 16;
constexpr uint64_t kFollowEvery = 8;  // turns of sessions between looks at where requests arrive
// Bytes a turn from which on there is enough to do for two processors at once.
constexpr uint64_t kBulkTurn = 128 * kKiB;

}  // namespace

Result<std::unique_ptr<Worker>> Worker::create(Server& server, UniqueFd listener) {
  std::unique_ptr<Worker> worker(new Worker(server, std::move(listener)));
  TP_TRY(worker->setUp());
  return worker;
}

void Worker::launch() {
  thread_ = std::thread([this] { run(); });
}

Status Worker::setUp() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_.valid()) return failErrno(ErrorCode::kIo, "cannot set up epoll");
  watch(wake_.get(), &wake_, EPOLLIN, EPOLL_CTL_ADD);
  if (listener_.valid()) {
    watch(listener_.get(), &listener_, EPOLLIN, EPOLL_CTL_ADD);
    accepting_ = true;
  }
  last_tick_ = server_.clock_.now();
  return {};
}

void Worker::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void Worker::watch(int fd, void* data, uint32_t events, int operation) {
  epoll_event event = {};
  event.events = events;
  event.data.ptr = data;
  TP_CHECK_OP(epoll_ctl(epoll_.get(), operation, fd, &event), ==, 0);
}

void Worker::wake() {
  const uint64_t one = 1;
  // A full counter already wakes the loop.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void Worker::hand(UniqueFd socket, std::string peer) {
  {
    MutexLock lock(mutex_);
    inbox_.push_back({std::move(socket), std::move(peer)});
  }
  wake();
}

void Worker::quiesce() {
  MutexLock lock(mutex_);
  const uint64_t ticket = ++quiesce_wanted_;
  wake();
  while (quiesce_done_ < ticket && !stopping_) quiesced_.wait(mutex_);
}

/// Between two rounds of sessions: takes what others left here. False: the loop must end.
bool Worker::takeInbox() {
  std::vector<Arrival> arrivals;
  bool stopping;
  {
    MutexLock lock(mutex_);
    arrivals.swap(inbox_);
    stopping = stopping_;
    if (quiesce_done_ != quiesce_wanted_) {
      quiesce_done_ = quiesce_wanted_;
      quiesced_.notifyAll();
    }
  }
  for (Arrival& arrival : arrivals) add(std::move(arrival));
  return !stopping;
}

void Worker::run() {
  // A request is a few microseconds of work that somebody waits for.
  askShortSlice();
  if (sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
  std::vector<epoll_event> events;
  while (takeInbox()) {
    // Room for all that are watched: the inbox and the listener, too. So each look tells
    // everything, and what has ended is seen however busy the others are.
    events.resize(std::max(kLeastEvents, sessions_.size() + 2));
    const Nanoseconds began = server_.clock_.now();
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), kTickMilliseconds);
    for (int i = 0; i < count; ++i) {
      void* data = events[static_cast<size_t>(i)].data.ptr;
      if (data == &wake_) {
        uint64_t ignored;
        [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof ignored);
      } else if (data == &listener_) {
        accept();
      } else {
        Session& session = *static_cast<Session*>(data);
        if (++served_ % kFollowEvery == 0) followTraffic(session);
        serve(session);
      }
    }
    caught_up_to_.store(began.value());
    if (server_.clock_.now() - last_tick_ >= kTick) tick();
  }
  sessions_.clear();
  listener_ = UniqueFd();  // or newcomers would wait in its backlog for a server that has ended
}

/// Runs where the requests of the busiest connection arrive: the reply then needs no wake-up of
/// another processor, which on an idle one costs more than all the rest of a page read. But a
/// client that streams is busy with what it receives: then the two had better run side by side.
void Worker::followTraffic(const Session& session) {
  const uint64_t moved = std::exchange(moved_, 0);
  if (moved >= kFollowEvery * kBulkTurn) return unbind();
  int cpu = -1;
  socklen_t size = sizeof cpu;
  if (getsockopt(session.fd(), SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) != 0 || cpu < 0) return;
  // Two sightings in a row, so that connections on several processors do not toss it about.
  const bool again = cpu == arrival_cpu_;
  arrival_cpu_ = cpu;
  if (!again || cpu == home_cpu_ || cpu >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  // Refused (outside the process's cpuset) only means that it stays where it is.
  if (sched_setaffinity(0, sizeof set, &set) == 0) home_cpu_ = cpu;
}

void Worker::unbind() {
  arrival_cpu_ = -1;
  if (home_cpu_ >= 0 && sched_setaffinity(0, sizeof allowed_, &allowed_) == 0) home_cpu_ = -1;
}

void Worker::accept() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    if (server_.counters_.connections.load() >= server_.most_connections_) {
      return stopAccepting("all connections are taken");
    }
    sockaddr_storage from = {};
    socklen_t size = sizeof from;
    UniqueFd socket(
        accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
    if (socket.valid()) {
      if (server_.newcomers_.enter(socket.get(), networkOf(from)) == Newcomers::Place::kOfAnother) {
        server_.log_.warn("a connection was ended to make room: it had not shaken hands yet");
      }
      server_.nextWorker().hand(std::move(socket), peerText(from));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    return stopAccepting(strerror(errno));
  }
}

/// Until the next tick, by when somebody may have left, instead of spinning.
void Worker::stopAccepting(const std::string& why) {
  server_.log_.warn(fmt::format("cannot accept a connection: {}", why));
  watch(listener_.get(), nullptr, 0, EPOLL_CTL_DEL);
  accepting_ = false;
}

void Worker::add(Arrival arrival) {
  const int fd = arrival.socket.get();
  auto session = std::make_unique<Session>(
      adoptTcp(std::move(arrival.socket)), std::move(arrival.peer),
      SessionShared{server_.regions_, server_.counters_, server_.connections_, server_.lanes_.get(),
                    &server_.populator_},
      server_.clock_.now());
  watch(fd, session.get(), EPOLLIN, EPOLL_CTL_ADD);
  sessions_.emplace(fd, std::move(session));
}

void Worker::serve(Session& session) {
  const uint64_t before = session.moved();
  const Next next = session.advance();
  moved_ += session.moved() - before;
  if (session.newcomer && session.greeted()) {
    server_.newcomers_.leave(session.fd());
    session.newcomer = false;
  }
  if (next == Next::kClose) return remove(session);
  // What is left to do may have been received already: waiting for room to send ends at once.
  const Next wanted = next == Next::kAgain ? Next::kWritable : next;
  if (wanted == session.waiting_for) return;
  session.waiting_for = wanted;
  watch(session.fd(), &session, wanted == Next::kReadable ? EPOLLIN : EPOLLOUT, EPOLL_CTL_MOD);
}

void Worker::remove(Session& session) {
  if (!session.reason().empty()) {
    server_.log_.warn(
        fmt::format("connection from {} closed: {}", session.peer(), session.reason()));
  }
  const int fd = session.fd();
  watch(fd, nullptr, 0, EPOLL_CTL_DEL);
  if (session.newcomer) server_.newcomers_.leave(fd);
  sessions_.erase(fd);
}

/// Four times a second: what is due by time.
void Worker::tick() {
  const Nanoseconds now = server_.clock_.now();
  last_tick_ = now;
  const Nanoseconds caught_up_to = server_.caughtUpTo();
  std::vector<Session*> waiting;
  for (const auto& [fd, session] : sessions_) {
    if (!session->greeted() || session->awaitsLane()) waiting.push_back(session.get());
  }
  for (Session* session : waiting) {
    if (session->greeted()) {
      serve(*session);
    } else if (now - session->since() > server_.options_.handshake_limit) {
      server_.log_.warn(
          fmt::format("connection from {} closed: no handshake in time", session->peer()));
      remove(*session);
    } else {
      if (caught_up_to > session->since()) session->departuresDone();
      serve(*session);
    }
  }
  if (!listener_.valid()) return;
  server_.log_.sayRest();
  if (!accepting_) {
    watch(listener_.get(), &listener_, EPOLLIN, EPOLL_CTL_ADD);
    accepting_ = true;
  }
  if (const size_t freed = server_.regions_.sweep()) {
    spdlog::info("freed {} region(s) whose clients have gone", freed);
  }
}

}  // namespace tidepool::memserver
