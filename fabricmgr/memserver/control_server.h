// SPDX-License-Identifier: Apache-2.0
// The port at which a memory server takes orders from the fabric manager: a listener and one thread
// a connection, of which there are few. Who does not have the key is turned away at the first
// frame. start(), stop() and the destructor belong to one thread.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>

#include "fabricmgr/memserver/managed_regions.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::memserver {

class ControlServer {
 public:
  /// `server` is borrowed, and lends by orders alone. Errors: kInvalidArgument, kConflict (address
  /// taken), kPermission.
  static Result<std::unique_ptr<ControlServer>> start(Server& server, const std::string& listen,
                                                      const std::string& key);
  ~ControlServer() { stop(); }
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  uint16_t port() const { return port_; }
  /// Closes every connection and joins the threads. May be called twice.
  void stop() TP_EXCLUDES(mutex_);

 private:
  struct Client {
    int socket = -1;  // for shutting it down; -1 once its thread is done with it
    std::thread thread;
  };

  ControlServer(Server& server, const std::string& key, UniqueFd listener, uint16_t port)
      : regions_(server, key), key_(key), listener_(std::move(listener)), port_(port) {}
  void accept() TP_EXCLUDES(mutex_);
  void serve(UniqueFd socket, Client* client) TP_EXCLUDES(mutex_);
  Status converse(Connection& connection);
  void reap() TP_EXCLUDES(mutex_);

  ManagedRegions regions_;
  const std::string key_;
  UniqueFd listener_;
  UniqueFd wake_;
  const uint16_t port_;
  Mutex mutex_;
  std::list<Client> clients_ TP_GUARDED_BY(mutex_);
  bool stopping_ TP_GUARDED_BY(mutex_) = false;
  std::thread acceptor_;
};

}  // namespace tidepool::memserver
