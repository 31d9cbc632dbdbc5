// SPDX-License-Identifier: Apache-2.0
// Contact: heartbeat, watch and list, each of which starts its own next round.
#include "fabricmgr/agent/contact.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fabricmgr/api/json_writer.h"

namespace tidepool::agent {
namespace {

constexpr Nanoseconds kFirstPause(200'000'000);
constexpr Nanoseconds kLongestPause(5'000'000'000);
/// A manager that has died is followed by another one after this, mostly: asked before, nobody has
/// an answer, and the pauses between tries grow for nothing.
constexpr Nanoseconds kFollowed(3'000'000'000);
/// How long one request for events waits: below the client's time-out.
constexpr int kWatchMilliseconds = 25'000;
constexpr int kPage = 10'000;  // of a list
/// The part of a lease that the host does not use: for programs to let go in, which takes some
/// microseconds for each granule that they have mapped, and for clocks that do not run alike.
constexpr uint64_t kMarginPart = 8;
/// How often managers that stand by are asked something: before they take the connection for idle,
/// which would end it, and so that one that was started meanwhile is soon known, too.
constexpr Nanoseconds kOthersEvery(30'000'000'000);

}  // namespace

std::string_view nameOf(Standing standing) {
  static constexpr std::string_view kNames[] = {"unknown", "member",  "away",
                                                "fenced",  "refused", "removed"};
  return kNames[static_cast<size_t>(standing)];
}

Contact::Contact(Setup setup)
    : setup_(std::move(setup)),
      beat_timer_(*setup_.loop, [this](short) { beat(); }),
      watch_timer_(*setup_.loop, [this](short) { watch(); }),
      end_timer_(*setup_.loop, [this](short) { ended(); }),
      pause_(kFirstPause) {}

Nanoseconds Contact::jittered(Nanoseconds time) {
  // Agents that were started together, or lost the manager together, are not to go on in step.
  const uint64_t part = 80 + random_() % 21;
  return time / 100 * part;
}

void Contact::become(Standing standing, const std::string& trouble) {
  trouble_ = trouble;
  if (std::exchange(standing_, standing) == standing) return;
  if (standing == Standing::kMember) {
    setup_.log(LogLevel::kInfo, fmt::format("host {} is known to the manager", setup_.host));
  } else {
    setup_.log(LogLevel::kWarning, trouble);
  }
  setup_.changed();
}

void Contact::beatAfter(Nanoseconds wait) {
  beat_at_ = clock_.now() + wait;
  beat_timer_.after(wait);
}

Nanoseconds Contact::spread() {
  return std::min(kLongestPause, lease_ / 6) / 1000 * (random_() % 1000);
}

void Contact::beatSoon() {
  const Nanoseconds wait = std::min(kFollowed, lease_ / 10) + spread();
  if (!beating_ && clock_.now() + wait < beat_at_) beatAfter(wait);
}

void Contact::beat() {
  if (std::exchange(beating_, true)) return;
  setup_.link->run(
      Lane::kHeart,
      [path = fmt::format("/v1/hosts/{}/heartbeat", setup_.host)](Asker& asker) -> Result<Beaten> {
        const auto answer = asker.post(path, "{}");
        if (!answer) return tl::unexpected(answer.error());
        return Beaten{Nanoseconds(answer->count("lease_left_ms") * 1'000'000),
                      answer->count("modified")};
      },
      [this, asked = clock_.now()](const Result<Beaten>& beaten) {
        beating_ = false;
        onBeat(beaten, asked);
      });
}

/// In the heartbeats' lane, since these are their connections: for a part of the pause between two.
void Contact::keepOthers() {
  const Nanoseconds every = std::min(kOthersEvery, lease_), now = clock_.now();
  const bool first = others_at_ == Nanoseconds();
  if (listing_ || (!first && now < others_at_)) return;  // a list has their connections
  // Not all at the start, when agents that were started together make their first connections.
  others_at_ = now + (first ? every / 1000 * (random_() % 1000) : jittered(every));
  // Where heartbeats are so rare, there is time for new connections.
  if (first || lease_ / 3 > kOthersEvery) return;
  setup_.link->run(
      Lane::kHeart,
      [path = fmt::format("/v1/hosts/{}", setup_.host), time = lease_ / 6](Asker& asker) {
        asker.keepOthers(path, time);
        return true;
      },
      [](bool) {});
}

void Contact::onBeat(const Result<Beaten>& beaten, Nanoseconds asked) {
  if (!beaten) return missed(beaten.error());
  lease_ = std::max(beaten->lease, Nanoseconds(1'000'000));
  // It began to run after the question at the earliest.
  setup_.host_lease->set(asked + (lease_ - lease_ / kMarginPart));
  pause_ = kFirstPause;
  const bool first = !std::exchange(known_, true);
  const bool back = standing_ != Standing::kMember;
  become(Standing::kMember, "");
  // An answer that took long leaves less.
  const Nanoseconds soon = std::max(setup_.host_lease->left() / 2, kFirstPause);
  beatAfter(jittered(std::min(lease_ / 3, soon)));
  setup_.regions->retry();
  const bool changed = std::exchange(modified_, beaten->modified) != beaten->modified;
  const bool due = std::exchange(list_due_, false);
  renewal_due_ = true;
  if (back || changed || due) listNow();
  renew();
  if (!std::exchange(watching_, true)) {
    // Another manager, most likely: all its agents make a new connection each. What happens until
    // then heartbeats tell.
    first ? watch() : watch_timer_.after(spread());
  }
  keepOthers();
}

void Contact::renew() {
  // What was taken from them meanwhile they must hear of first.
  if (listing_ || modified_ == 0 || !setup_.host_lease->runs()) return;
  if (!std::exchange(renewal_due_, false)) return;
  setup_.renewed(lease_);
  end_timer_.after(setup_.host_lease->left());
}

void Contact::ended() {
  if (setup_.host_lease->runs()) return end_timer_.after(setup_.host_lease->left());
  setup_.log(LogLevel::kWarning,
             "the lease of this host is over: until it is renewed programs that touch regions "
             "which they use in place wait");
}

void Contact::missed(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kNotFound:
      if (!known_) return join();
      // An operator's decision: it is not for this agent to undo it.
      cutOff(Standing::kRemoved,
             fmt::format("this host was removed: `fabricmgr host add {}`, or a new start of this "
                         "agent, makes it known again",
                         setup_.host),
             error);
      break;
    case ErrorCode::kStaleEpoch:
      cutOff(Standing::kFenced,
             fmt::format(
                 "this host is fenced: its regions are gone. When all is well again, `fabricmgr "
                 "host resume {}` lets it have new ones",
                 setup_.host),
             error);
      break;
    case ErrorCode::kPermission:
      become(Standing::kRefused,
             fmt::format("the manager does not take this agent for that of host {}: {}",
                         setup_.host, error.text()));
      if (!setup_.host_lease->runs()) setup_.regions->checkGrants();
      break;
    default:
      become(Standing::kAway,
             fmt::format("the manager is away, programs keep what they have: {}", error.text()));
      if (!setup_.host_lease->runs()) setup_.regions->checkGrants();
  }
  list_due_ = false;
  setup_.regions->unlisted(error);
  beatAfter(jittered(pause_));
  const Nanoseconds longest =
      lease_ == Nanoseconds() ? kLongestPause : std::min(kLongestPause, lease_ / 3);
  pause_ = std::min(pause_ * 2, std::max(longest, kFirstPause));
}

void Contact::cutOff(Standing standing, const std::string& trouble, const Error& error) {
  setup_.host_lease->set(Nanoseconds());
  renewal_due_ = false;
  become(standing, trouble);
  setup_.regions->fenced(error);
}

void Contact::join() {
  beating_ = true;
  api::JsonWriter body;
  body.beginObject().field("name", setup_.host);
  if (!setup_.domain.empty()) body.field("domain", setup_.domain);
  if (setup_.lease != Nanoseconds()) body.field("lease_ms", setup_.lease.value() / 1'000'000);
  body.endObject();
  setup_.link->run(
      Lane::kHeart, [text = body.take()](Asker& asker) { return asker.post("/v1/hosts", text); },
      [this](const Result<api::JsonValue>& answer) {
        beating_ = false;
        // A conflict means that it is known by now.
        if (answer || answer.error().code() == ErrorCode::kConflict) return beat();
        if (answer.error().code() == ErrorCode::kNotFound) {
          return missed(Error::make(ErrorCode::kUnreachable, "%s", answer.error().text()));
        }
        missed(answer.error());
      });
}

void Contact::watch() {
  // The first time it asks for the index alone, without waiting.
  const std::string from =
      watched_ == 0 ? "" : fmt::format("&since={}&wait_ms={}", watched_, kWatchMilliseconds);
  setup_.link->run(
      Lane::kWatch,
      [path =
           fmt::format("/v1/events?host={}{}", setup_.host, from)](Asker& asker) -> Result<News> {
        const auto answer = asker.get(path);
        if (!answer) return tl::unexpected(answer.error());
        return News{answer->count("index"), !answer->list("items").empty()};
      },
      [this](const Result<News>& news) { onEvents(news); });
}

void Contact::onEvents(const Result<News>& news) {
  if (news && news->index != 0) {
    // Whatever it was, the list shows what it has led to.
    if (std::exchange(watched_, news->index) == 0 || news->any) relist();
    return watch();
  }
  // The heartbeat finds out what is wrong. Older events than what is kept: begin anew.
  watched_ = 0;
  const bool answered = news || (news.error().code() != ErrorCode::kUnreachable &&
                                 news.error().code() != ErrorCode::kTimedOut);
  if (standing_ != Standing::kMember || !answered) {
    // A heartbeat that is answered goes on with it: thousands of agents that have lost their
    // manager together do not all ask for everything at once.
    watching_ = false;
    if (standing_ == Standing::kMember) beatSoon();
    return;
  }
  relist();
  watch_timer_.after(jittered(kFirstPause * 5));
}

void Contact::relist() {
  if (setup_.host_lease->runs()) return listNow();
  // Nobody may be given anything before the lease is known: who renews it lists.
  list_due_ = true;
  beat();
}

void Contact::listNow() {
  if (std::exchange(listing_, true)) {
    list_again_ = true;
    return;
  }
  list_again_ = false;
  using List = Result<std::vector<SeenRegion>>;
  setup_.link->run(
      Lane::kList,
      [host = setup_.host](Asker& asker) -> List {
        std::vector<SeenRegion> regions;
        uint64_t cursor = 0;
        do {
          const auto page =
              asker.get(fmt::format("/v1/regions?host={}&limit={}&cursor={}", host, kPage, cursor));
          if (!page) return tl::unexpected(page.error());
          const auto next = addRegions(*page, &regions);
          if (!next) return tl::unexpected(next.error());
          cursor = *next;
        } while (cursor != 0);
        return regions;
      },
      [this, moment = setup_.regions->moment()](const List& list) { onList(list, moment); });
}

void Contact::onList(const Result<std::vector<SeenRegion>>& list, uint64_t moment) {
  listing_ = false;
  if (list) {
    setup_.regions->apply(*list, moment);
  } else {
    modified_ = 0;  // the next heartbeat asks for it again
    // That the host is gone, or not let in any more, is the heartbeat's to find out: at once. A
    // manager that takes heartbeats all the same is not to be asked without end.
    const ErrorCode code = list.error().code();
    if (code == ErrorCode::kNotFound) beatAfter(Nanoseconds());
    if (code == ErrorCode::kPermission) beatAfter(kFirstPause);
    setup_.regions->unlisted(list.error());
  }
  if (list_again_) return listNow();
  renew();
}

}  // namespace tidepool::agent
