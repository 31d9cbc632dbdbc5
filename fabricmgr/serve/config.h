// SPDX-License-Identifier: Apache-2.0
// The configuration of `fabricmgr serve`: one TOML file, every key checked. docs/fabric-api.md has
// them all.
#pragma once

#include <optional>
#include <string>

#include "fabricmgr/api/http_server.h"
#include "fabricmgr/manager/manager.h"
#include "fabricmgr/store/etcd_election.h"
#include "runtime/base/result.h"

namespace tidepool::serve {

struct Config {
  std::string state = "/var/lib/tidepool/fabric.db";
  std::optional<fabric::EtcdTarget> etcd;  // where the store is instead; `state` then only says
                                           // in which folder records of this machine lie
  std::string name;  // as which other managers and people know it; empty: see nameOf()
  Nanoseconds leader_lease = fabric::EtcdElection::kLease;
  std::string log_level = "info";
  std::optional<TlsFiles> memservers;  // what the manager shows them; without it there are none
  std::string cxl_switch;  // program that binds logical devices; empty: there is no switch
  std::string cxl_host = "manager";  // as whose port the switch knows the manager's own machine
  unsigned workers = 2;              // threads that carry operations on
  unsigned hold_percent = 33;        // as fabric::ManagerOptions
  unsigned audit_days = 0;           // how long audit records are kept at least; 0: for ever
  uint64_t audit_records = 0;        // how many are kept at least; see fabric::ManagerOptions
  api::ServerOptions server;
  /// As fabric::ManagerOptions; the command line's alone.
  fabric::TakeOver take_over = fabric::TakeOver::kNo;
};

/// How people find it: its name, the address of its port, or that of its socket on this machine.
std::string nameOf(const Config& config);

/// Errors: kNotFound and kPermission for the file; kInvalidArgument with line and key for what is
/// in it, users and groups that do not exist included.
Result<Config> readConfig(const std::string& path);
/// As readConfig(), of a text; `name` stands in messages.
Result<Config> parseConfig(const std::string& text, const std::string& name);

}  // namespace tidepool::serve
