// SPDX-License-Identifier: Apache-2.0
// The agent's Unix socket: takes programs in, by the user that the kernel says they are; reads
// their requests; sends notices with descriptors. What breaks the protocol is cut off. Belongs to
// the loop's thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/agent/event_loop.h"
#include "fabricmgr/agent/programs.h"

namespace tidepool::agent {

/// Who may have memory.
struct Allowed {
  std::vector<uid_t> users;
  std::vector<gid_t> groups;
  bool everybody = false;
};

class LocalServer final : public Programs {
 public:
  struct Setup {
    EventLoop* loop;
    std::string path;
    std::string host;  // told to whoever connects
    Allowed allowed;
    size_t programs = 4096;          // at most
    size_t programs_of_user = 1024;  // so that one cannot keep the others out
    std::function<void(ProgramId, const agent_wire::Request&)> request;
    /// A connection has ended by itself, or was cut off.
    std::function<void(ProgramId)> gone;
    std::function<void(ProgramId)> cut_off;
    /// Worth a line in the log.
    std::function<void(const std::string&)> refused;
  };
  explicit LocalServer(Setup setup);
  ~LocalServer() override;
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  /// Errors: kConflict when another agent listens there, kPermission, kInvalidArgument.
  Status listen();
  size_t size() const { return programs_.size(); }
  /// Tells all programs, and those that come, how long they may use regions in place.
  void renewLease(Nanoseconds until, Nanoseconds length);

  const Peer* find(ProgramId program) override;
  void tell(ProgramId program, agent_wire::Notice notice, const Attached* attached) override;

 private:
  /// One message that waits to be sent.
  struct Outgoing {
    std::vector<std::byte> bytes;
    Files files;
  };
  struct Program {
    UniqueFd socket;
    Peer peer;
    bool greeted = false;
    bool lease_waits = false;  // what waits last is a lease, which a later one replaces
    std::deque<Outgoing> outgoing;
    std::unique_ptr<Trigger> readable;
    std::unique_ptr<Trigger> writable;  // while something waits
  };
  enum class Ending : uint8_t { kByItself, kCutOff };

  void accept();
  void takeIn(UniqueFd socket);
  /// Says why, and closes.
  void turnAway(UniqueFd socket, const Error& why);
  bool mayHaveMemory(int socket, const Peer& peer) const;
  void read(ProgramId id);
  /// False if the connection has ended, or there is nothing more to read.
  bool readOne(ProgramId id);
  void breach(ProgramId id, const Error& error);
  void write(ProgramId id);
  void end(ProgramId id, Ending ending);
  /// As end(), but not now: somebody is still at work on it.
  void endSoon(ProgramId id);

  const Setup setup_;
  UniqueFd listener_;
  std::unique_ptr<Trigger> acceptable_;
  std::unique_ptr<Trigger> accept_again_;
  agent_wire::Notice lease_;  // the last one
  ProgramId next_ = 1;
  std::map<ProgramId, Program> programs_;
  std::map<uid_t, size_t> of_user_;
};

}  // namespace tidepool::agent
