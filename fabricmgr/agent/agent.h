// SPDX-License-Identifier: Apache-2.0
// The agent of a host as a whole: the programs' socket, the journal, the regions, and the contact
// to the manager, in one loop. start() and run() belong to one thread; stop() to any.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/agent/contact.h"
#include "fabricmgr/agent/local_server.h"
#include "fabricmgr/agent/regions.h"
#include "fabricmgr/client/http_client.h"
#include "fabricmgr/expiry.h"
#include "runtime/base/result.h"

namespace tidepool::agent {

struct Options {
  std::string host;
  std::string domain;      // its failure domain; may be empty
  Nanoseconds lease;       // that it is made known with; 0: the manager's own
  client::Target manager;  // where it is, and what is shown to it
  std::string socket;      // for programs
  std::string journal;
  Allowed allowed;
};

class Agent {
 public:
  /// Listens; the manager may be away. Errors: kInvalidArgument, kConflict when there is an agent
  /// already, kPermission, kCorrupt (journal).
  static Result<std::unique_ptr<Agent>> start(Options options, Log log);
  ~Agent();
  /// Returns after stop(). Programs keep what they have: the next agent goes on.
  void run();
  void stop() { loop_.stop(); }

 private:
  Agent(Options options, Log log) : options_(std::move(options)), log_(std::move(log)) {}
  Status setUp();
  void onRequest(ProgramId program, const agent_wire::Request& request);
  /// One line of JSON: how things are.
  std::string status();
  /// Reads the agent's own certificate and the CA's again, and says once a day if they end soon:
  /// whoever replaces the files need not tell.
  void lookAtCertificates();
  /// The same for the service manager, when there is one.
  void notify();

  const Options options_;
  const Log log_;
  MonotonicClock clock_;
  ExpiryBook expiries_;
  Lease lease_;
  // What is used by what follows: the loop goes last.
  EventLoop loop_;
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<LocalServer> server_;
  std::unique_ptr<Regions> regions_;
  std::unique_ptr<Contact> contact_;
  std::unique_ptr<FabricPin> pin_;
  std::unique_ptr<ManagerLink> link_;  // its threads end before anything that they use
  std::unique_ptr<Trigger> notify_timer_;
};

}  // namespace tidepool::agent
