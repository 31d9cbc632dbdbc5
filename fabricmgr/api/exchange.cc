// SPDX-License-Identifier: Apache-2.0
// Mailbox and Exchange. Thread-safe.
#include "fabricmgr/api/exchange.h"

#include <sys/eventfd.h>

#include <utility>

#include "runtime/base/check.h"

namespace tidepool::api {

Mailbox::Mailbox() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TP_CHECK_OP(wake_.get(), >=, 0);
}

void Mailbox::post(Message message) {
  {
    const MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);  // full means: it is readable already
}

std::vector<Message> Mailbox::take() {
  uint64_t count;
  (void)!read(wake_.get(), &count, sizeof count);
  const MutexLock lock(mutex_);
  return std::exchange(messages_, {});
}

Exchange::Exchange(ConnectionKey connection, std::shared_ptr<Mailbox> mailbox, Request the_request,
                   Principal the_principal, std::string the_peer)
    : request(std::move(the_request)),
      principal(std::move(the_principal)),
      peer(std::move(the_peer)),
      connection_(connection),
      mailbox_(std::move(mailbox)) {}

Exchange::~Exchange() {
  if (streaming_) {
    mailbox_->post({Message::Kind::kEndStream, connection_, {}});
  } else if (!answered_) {
    reply({500, "text/plain", {}, "the request was dropped\n"});
  }
}

void Exchange::reply(Response response) {
  if (answered_.exchange(true)) return;
  status_ = response.status;
  sent_ = response.body.size();
  mailbox_->post({Message::Kind::kReply, connection_, std::move(response)});
}

void Exchange::openStream(Response head) {
  if (answered_.exchange(true)) return;
  streaming_ = true;
  status_ = head.status;
  mailbox_->post({Message::Kind::kOpenStream, connection_, std::move(head)});
}

void Exchange::write(std::string part) {
  if (!streaming_ || part.empty()) return;
  sent_ += part.size();
  Response response;
  response.body = std::move(part);
  mailbox_->post({Message::Kind::kChunk, connection_, std::move(response)});
}

void Exchange::endStream() {
  if (streaming_.exchange(false)) mailbox_->post({Message::Kind::kEndStream, connection_, {}});
}

}  // namespace tidepool::api
