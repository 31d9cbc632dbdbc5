// SPDX-License-Identifier: Apache-2.0
// WatchHub: a thread, an eventfd, a list.
#include "fabricmgr/api/watch_hub.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "fabricmgr/api/call_tools.h"
#include "fabricmgr/api/problem.h"
#include "runtime/base/check.h"

namespace tidepool::api {
namespace {

constexpr int kSweepMilliseconds = 100;
constexpr Nanoseconds kPingEvery(15'000'000'000);  // so that dead peers are noticed
constexpr uint32_t kBatch = 10'000;

}  // namespace

std::string eventsJson(std::span<const fabric::Event> events, fabric::Index index,
                       const fabric::Names& names) {
  JsonWriter out;
  out.beginObject().beginList("items");
  for (const fabric::Event& event : events) render(out, event, names);
  out.endList().field("next", uint64_t{0}).field("index", index.value()).endObject();
  return out.take() + "\n";
}

std::string eventsStream(std::span<const fabric::Event> events, const fabric::Names& names) {
  std::string text;
  for (size_t i = 0; i < events.size();) {
    const fabric::Index index = events[i].index;
    // All of an index in one: a reader that resumes after its id has missed nothing of it.
    JsonWriter out;
    out.beginObject().beginList("items");
    for (; i < events.size() && events[i].index == index; ++i) render(out, events[i], names);
    out.endList().endObject();
    text += fmt::format("id: {}\ndata: {}\n\n", index.value(), out.text());
  }
  return text;
}

WatchHub::WatchHub(fabric::Manager& manager, const Clock& clock)
    : manager_(manager),
      clock_(clock),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      seen_(manager.index()) {
  TP_CHECK_OP(wake_.get(), >=, 0);
  thread_ = std::thread([this] { run(); });
}

WatchHub::~WatchHub() { stop(); }

void WatchHub::stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  wake();
  thread_.join();
  const MutexLock lock(mutex_);
  for (Watcher& watcher : watchers_) give(&watcher, {}, watcher.since, {});
  watchers_.clear();
}

void WatchHub::wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);  // full means: it is awake already
}

bool WatchHub::park(Watcher watcher) {
  const MutexLock lock(mutex_);
  if (seen_ > watcher.since) return false;
  if (stopping_) {
    give(&watcher, {}, watcher.since, {});
    return true;
  }
  watchers_.push_back(std::move(watcher));
  count_.store(watchers_.size(), std::memory_order_relaxed);
  return true;
}

void WatchHub::run() {
  while (!stopping_) {
    pollfd waiting = {wake_.get(), POLLIN, 0};
    if (poll(&waiting, 1, kSweepMilliseconds) > 0) {
      uint64_t count;
      (void)!read(wake_.get(), &count, sizeof count);
    }
    handOut();
    sweep();
  }
}

void WatchHub::handOut() {
  fabric::Index from;
  {
    const MutexLock lock(mutex_);
    from = seen_;
  }
  if (manager_.index() <= from) return;
  // Without the lock: it reads the store. Only this thread moves seen_ on.
  const auto news = manager_.eventsSince(from, kBatch, "");
  fabric::Names names;
  if (news) {
    for (const fabric::Event& event : news->events) collect(event, &names);
    manager_.nameAll(&names);
  }
  const MutexLock lock(mutex_);
  if (!news) {
    // What was missed has been dropped by now: everyone has to list anew.
    for (Watcher& watcher : watchers_) {
      if (watcher.kind == Watch::kOnce) watcher.exchange->reply(problem(news.error()));
      watcher.exchange->endStream();
    }
    watchers_.clear();
    count_.store(0, std::memory_order_relaxed);
    seen_ = manager_.index();
    return;
  }
  seen_ = std::max(seen_, news->index);
  std::unordered_map<uint64_t, std::vector<fabric::Event>> by_host;
  for (const fabric::Event& event : news->events) by_host[event.host.value()].push_back(event);
  static const std::vector<fabric::Event> kNone;
  std::vector<Watcher> staying;
  for (Watcher& watcher : watchers_) {
    const std::vector<fabric::Event>* mine = &news->events;
    if (watcher.host.value() != 0) {
      const auto found = by_host.find(watcher.host.value());
      mine = found == by_host.end() ? &kNone : &found->second;
    }
    if (!handTo(&watcher, *mine, names)) staying.push_back(std::move(watcher));
  }
  watchers_.swap(staying);
  count_.store(watchers_.size(), std::memory_order_relaxed);
  if (news->events.size() >= kBatch) wake();  // there may be more
}

void WatchHub::give(Watcher* watcher, std::span<const fabric::Event> events, fabric::Index index,
                    const fabric::Names& names) {
  watcher->since = index;
  if (watcher->kind == Watch::kOnce) {
    Response response = {200, "application/json", {}, eventsJson(events, index, names)};
    addIndex(manager_, &response.headers);
    watcher->exchange->reply(std::move(response));
  } else {
    watcher->exchange->write(eventsStream(events, names));
  }
}

bool WatchHub::handTo(Watcher* watcher, std::span<const fabric::Event> news,
                      const fabric::Names& names) {
  const auto is_new = [&](const fabric::Event& event) { return event.index > watcher->since; };
  const auto first = std::find_if(news.begin(), news.end(), is_new);
  if (first == news.end()) {
    watcher->since = std::max(watcher->since, seen_);
    return false;
  }
  give(watcher, {first, news.end()}, seen_, names);
  return watcher->kind == Watch::kOnce;
}

void WatchHub::sweep() {
  const MutexLock lock(mutex_);
  const Nanoseconds now = clock_.now();
  const bool ping = now - last_ping_ >= kPingEvery;
  if (ping) last_ping_ = now;
  std::vector<Watcher> staying;
  for (Watcher& watcher : watchers_) {
    if (!sweepOne(&watcher, now, ping)) staying.push_back(std::move(watcher));
  }
  watchers_.swap(staying);
  count_.store(watchers_.size(), std::memory_order_relaxed);
}

bool WatchHub::sweepOne(Watcher* watcher, Nanoseconds now, bool ping) {
  if (watcher->exchange->gone()) return true;
  if (watcher->kind == Watch::kStream) {
    if (ping) watcher->exchange->write(": ping\n\n");
    return false;
  }
  if (now < watcher->until) return false;
  give(watcher, {}, watcher->since, {});
  return true;
}

}  // namespace tidepool::api
