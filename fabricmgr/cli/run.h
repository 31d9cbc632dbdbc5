// SPDX-License-Identifier: Apache-2.0
// Carrying a command out: asks, shows, waits for what goes on, and turns what went wrong into one
// line on stderr and an exit code.
#pragma once

#include <string>

#include "fabricmgr/cli/request.h"
#include "fabricmgr/cli/verbs.h"
#include "fabricmgr/client/http_client.h"

namespace tidepool::cli {

/// What all commands can be told.
struct Settings {
  client::Target target;
  bool json = false;        // the server's bytes
  std::string output;       // of lists: wide, name, or empty
  bool no_wait = false;     // for operations
  uint64_t timeout_ms = 0;  // to wait for operations; 0: for ever
  std::string key;          // idempotency key; empty: a new one
  uint64_t if_match = 0;
};

/// One line on stderr; returns `code`, to exit with.
int complain(const std::string& text, int code);
bool isGood(const client::Reply& reply);
/// The exit code of a reply that is no success; says why on stderr.
int failed(const client::Reply& reply, const client::Target& target);
int runVerb(const Verb& verb, const Given& given, const Settings& settings);
/// Prints events as they come, until it is interrupted; comes back when the manager was away.
int runWatch(const std::string& host, uint64_t since, bool from_now, const Settings& settings);

}  // namespace tidepool::cli
