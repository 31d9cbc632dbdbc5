// SPDX-License-Identifier: Apache-2.0
// Looks at a store and its pools without any of the manager's code: the SQLite file, the grants
// beside the pool files, and the pools' bytes. Shares the schema and the documented formats only.
// To be used while no manager has them open, with all devices there and all work done.
#pragma once

#include <openssl/sha.h>
#include <sqlite3.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace tidepool::checker {

using Fields = std::map<std::string, std::string>;
using Table = std::map<std::string, Fields>;  // "region 17" -> its fields

struct Piece {
  uint64_t start, end;
  std::string region;
  bool operator<(const Piece& other) const { return start < other.start; }
};

class Checker {
 public:
  explicit Checker(const std::string& store) {
    if (sqlite3_open_v2(store.c_str(), &database_, SQLITE_OPEN_READWRITE, nullptr) != SQLITE_OK) {
      complain("cannot open the store");
    }
  }
  ~Checker() { sqlite3_close(database_); }
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  /// Every complaint, one a line; empty: all is well.
  std::string check() {
    readTables();
    checkRest();
    checkExtents();
    checkPools();
    checkAudit();
    compareReplay();
    return complaints_.str();
  }

  /// The tables in one text, for comparing two stores or two moments.
  std::string dump() {
    readTables();
    std::ostringstream text;
    for (const auto& [name, fields] : tables_) {
      text << name;
      for (const auto& [key, value] : fields) text << ' ' << key << '=' << value;
      text << '\n';
    }
    return text.str();
  }

 private:
  static constexpr const char* kStates[] = {"free",  "reserved",  "attached", "draining",
                                            "dirty", "scrubbing", "lost",     "fenced"};

  void complain(const std::string& text) { complaints_ << text << '\n'; }

  std::vector<std::vector<std::string>> rows(const std::string& sql) {
    std::vector<std::vector<std::string>> found;
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(database_, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) {
      complain(sql + ": " + sqlite3_errmsg(database_));
      return found;
    }
    while (sqlite3_step(statement) == SQLITE_ROW) {
      std::vector<std::string> row;
      for (int i = 0; i < sqlite3_column_count(statement); ++i) {
        const auto* data = static_cast<const char*>(sqlite3_column_blob(statement, i));
        row.emplace_back(data == nullptr ? "" : data,
                         static_cast<size_t>(sqlite3_column_bytes(statement, i)));
      }
      found.push_back(row);
    }
    sqlite3_finalize(statement);
    return found;
  }

  void readTables() {
    tables_.clear();
    for (const auto& r : rows("SELECT id, name, class FROM pools")) {
      tables_["pool " + r[0]] = {{"name", r[1]}, {"class", r[2] == "1" ? "cxl" : "remote"}};
    }
    for (const auto& r : rows("SELECT id, pool, name, address, capacity, granularity, heads, state "
                              "FROM devices")) {
      tables_["device " + r[0]] = {{"pool", r[1]},
                                   {"name", r[2]},
                                   {"address", r[3]},
                                   {"capacity", r[4]},
                                   {"granularity", r[5]},
                                   {"heads", r[6]},
                                   {"state", r[7] == "0" ? "online" : "cordoned"}};
    }
    const std::map<std::string, std::string> subjects = {
        {"2", "device"}, {"3", "host"}, {"4", "region"}};
    for (const auto& r : rows("SELECT subject, id, labels FROM labels")) {
      tables_["labels " + subjects.at(r[0]) + " " + r[1]] = {{"labels", r[2]}};
    }
    const char* host_states[] = {"active", "draining", "fenced"};
    for (const auto& r : rows("SELECT id, name, state, lease FROM hosts")) {
      tables_["host " + r[0]] = {
          {"name", r[1]}, {"state", host_states[std::stoi(r[2])]}, {"lease", r[3]}};
    }
    for (const auto& r : rows("SELECT id, name, coalesce(host, 0), state, epoch FROM regions")) {
      tables_["region " + r[0]] = {{"name", r[1].empty() ? "-" : r[1]},
                                   {"host", r[2]},
                                   {"state", kStates[std::stoi(r[3])]},
                                   {"epoch", r[4]},
                                   {"extents", ""}};
    }
    for (const auto& r :
         rows("SELECT region, device, start, length FROM extents ORDER BY region, ordinal")) {
      const auto region = tables_.find("region " + r[0]);
      if (region == tables_.end()) {
        complain("an extent of region " + r[0] + ", which is not there");
        continue;
      }
      std::string& list = region->second["extents"];
      list += (list.empty() ? "" : ",") + r[1] + ":" + r[2] + "+" + r[3];
    }
    for (const auto& r : rows("SELECT region, device, action, epoch, into_region FROM intents")) {
      tables_["intent " + r[0] + " " + r[1]] = {{"action", r[2]}, {"epoch", r[3]}, {"into", r[4]}};
    }
  }

  /// Nothing may be under way once all work is done.
  void checkRest() {
    for (const auto& [name, fields] : tables_) {
      if (name.rfind("intent", 0) == 0) complain("left over: " + name);
      if (name.rfind("region", 0) != 0) continue;
      const std::string& state = fields.at("state");
      if (state != "attached" && state != "draining" && state != "lost") {
        complain(name + " is " + state + ", and nobody works on it");
      }
    }
    for (const auto& r : rows("SELECT actor, key FROM keys WHERE state = 0")) {
      complain("key " + r[1] + " of " + r[0] + " never got an answer");
    }
    for (const auto& r : rows("SELECT id, kind, region FROM operations WHERE state = 0")) {
      const bool waits_for_host = r[1] == "3" || r[1] == "5" || r[1] == "8";  // drains, moves
      if (!waits_for_host) complain("operation " + r[0] + " of kind " + r[1] + " never ended");
    }
    for (const auto& r : rows("SELECT region FROM evidence WHERE nonzero != 0 OR bytes = 0")) {
      complain("evidence of region " + r[0] + " is none");
    }
  }

  static std::vector<std::tuple<std::string, uint64_t, uint64_t>> extentsOf(
      const std::string& list) {
    std::vector<std::tuple<std::string, uint64_t, uint64_t>> found;
    std::istringstream in(list);
    for (std::string one; std::getline(in, one, ',');) {
      const size_t colon = one.find(':'), plus = one.find('+');
      found.emplace_back(one.substr(0, colon), std::stoull(one.substr(colon + 1, plus - colon - 1)),
                         std::stoull(one.substr(plus + 1)));
    }
    return found;
  }

  void checkExtents() {
    for (const auto& [name, fields] : tables_) {
      if (name.rfind("region", 0) != 0) continue;
      for (const auto& [device, start, length] : extentsOf(fields.at("extents"))) {
        const auto on = tables_.find("device " + device);
        if (on == tables_.end()) {
          complain(name + " is on device " + device + ", which is not there");
          continue;
        }
        const uint64_t capacity = std::stoull(on->second.at("capacity"));
        const uint64_t grain = std::stoull(on->second.at("granularity"));
        if (start % grain != 0 || length % grain != 0 || length == 0 || start + length > capacity) {
          complain(name + " has an extent that its device cannot have");
        }
        held_[device].insert({start, start + length, name.substr(7)});
      }
    }
    for (const auto& [device, pieces] : held_) {
      uint64_t end = 0;
      for (const Piece& piece : pieces) {
        if (piece.start < end) complain("held twice: device " + device + " region " + piece.region);
        end = piece.end;
      }
    }
    size_t pieces = 0;
    for (const auto& [device, set] : held_) pieces += set.size();
    if (rows("SELECT 1 FROM extents").size() != pieces) complain("two extents begin at one place");
  }

  struct Grant {
    std::string state, epoch, extents;
  };

  static std::string word(const std::string& line, const std::string& name) {
    const size_t at = line.find(" " + name + "=");
    if (at == std::string::npos) return "";
    const size_t from = at + name.size() + 2;
    return line.substr(from, line.find(' ', from) - from);
  }

  std::map<std::string, Grant> readGrants(const std::string& path) {
    std::map<std::string, Grant> grants;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      uint64_t sum = 0xcbf29ce484222325;
      for (size_t i = 17; i < line.size(); ++i) {
        sum = (sum ^ static_cast<uint8_t>(line[i])) * 0x100000001b3;
      }
      char expected[17];
      snprintf(expected, sizeof expected, "%016llx", static_cast<unsigned long long>(sum));
      if (line.substr(0, 16) != expected) {
        complain(path + ": a torn line");
        break;
      }
      const std::string rest = line.substr(16);
      const std::string region = word(rest, "region");
      const std::string state = rest.substr(1, rest.find(' ', 1) - 1);
      if (state == "fabric") continue;
      if (state == "forget") {
        grants.erase(region);
        continue;
      }
      const Grant grant{state, word(rest, "epoch"), word(rest, "extents")};
      // What is given to somebody else is no scrubbed region's any more.
      std::erase_if(grants, [&](const auto& old) {
        return old.second.state == "scrubbed" && overlap(old.second.extents, grant.extents);
      });
      if (grant.extents.empty()) {
        grants.erase(region);
      } else {
        grants[region] = grant;
      }
    }
    return grants;
  }

  static bool overlap(const std::string& left, const std::string& right) {
    for (const auto& [d1, start1, length1] : extentsOf(left)) {
      for (const auto& [d2, start2, length2] : extentsOf(right)) {
        if (start1 < start2 + length2 && start2 < start1 + length1) return true;
      }
    }
    return false;
  }

  /// Memory servers keep no files.
  void checkPools() {
    for (const auto& [name, fields] : tables_) {
      if (name.rfind("device", 0) != 0) continue;
      if (tables_["pool " + fields.at("pool")]["class"] == "remote") continue;
      checkGrants(name.substr(7), readGrants(fields.at("address") + ".grants"));
      checkBytes(name.substr(7), fields.at("address"));
    }
  }

  void checkGrants(const std::string& device, const std::map<std::string, Grant>& grants) {
    for (const auto& [region, grant] : grants) {
      if (grant.state != "scrubbed" && !tables_.contains("region " + region)) {
        complain("device " + device + " has " + grant.state + " region " + region +
                 ", which is nowhere");
      }
    }
    for (const auto& [name, fields] : tables_) {
      if (name.rfind("region", 0) != 0) continue;
      const std::string& state = fields.at("state");
      if (state != "attached" && state != "draining") continue;
      std::string here;
      for (const auto& [on, start, length] : extentsOf(fields.at("extents"))) {
        if (on != device) continue;
        here += (here.empty() ? "" : ",") + std::to_string(start) + "+" + std::to_string(length);
      }
      const auto grant = grants.find(name.substr(7));
      if (here.empty() && grant == grants.end()) continue;
      if (grant == grants.end() || grant->second.state != "granted" ||
          grant->second.epoch != fields.at("epoch") || grant->second.extents != here) {
        complain("device " + device + " does not hold " + name + " as the store says");
      }
    }
  }

  /// Tests write a byte of the region's own into what they hold: nobody else's may be there, and
  /// nothing at all where nobody holds anything.
  void checkBytes(const std::string& device, const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::string expected(bytes.size(), '\0');
    for (const Piece& piece : held_[device]) {
      const auto own = static_cast<char>(std::stoull(piece.region) % 251 + 1);
      for (uint64_t at = piece.start; at < piece.end && at < bytes.size(); ++at) {
        expected[at] = bytes[at] == own ? own : '\0';
      }
    }
    for (size_t at = 0; at < bytes.size(); ++at) {
      if (bytes[at] == expected[at]) continue;
      complain("device " + device + " offset " + std::to_string(at) + ": somebody else's byte " +
               std::to_string(static_cast<uint8_t>(bytes[at])));
      return;
    }
  }

  void checkAudit() {
    const auto base = rows("SELECT sequence, hash FROM audit_base").at(0);
    uint64_t sequence = std::stoull(base[0]);
    std::string previous = base[1];
    from_the_first_ = sequence == 0;
    for (const auto& r : rows("SELECT sequence, idx, time, actor, verb, subject, id, outcome, "
                              "changes, previous, hash FROM audit ORDER BY sequence")) {
      std::string input = previous;
      for (int i = 0; i < 9; ++i) input += std::to_string(r[i].size()) + ":" + r[i] + ",";
      unsigned char hash[32];
      SHA256(reinterpret_cast<const unsigned char*>(input.data()), input.size(), hash);
      if (r[0] != std::to_string(++sequence) || r[9] != previous ||
          r[10] != std::string(reinterpret_cast<char*>(hash), 32)) {
        complain("audit record " + r[0] + " does not follow");
        return;
      }
      previous = r[10];
      replay(r[8]);
    }
  }

  void replay(const std::string& changes) {
    std::istringstream lines(changes);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string verb, id;
      words >> verb >> id;
      Fields fields;
      for (std::string part; words >> part;) {
        const size_t equals = part.find('=');
        fields[part.substr(0, equals)] = part.substr(equals + 1);
      }
      if (verb == "intent") {
        replayed_["intent " + id + " " + fields["device"]] = fields;
      } else if (verb == "drop-intent") {
        replayed_.erase("intent " + id + " " + fields["device"]);
      } else if (verb == "set-region") {
        for (const auto& [key, value] : fields) replayed_["region " + id][key] = value;
      } else if (verb == "set-labels") {
        const std::string name = "labels " + fields["of"] + " " + id;
        if (fields["labels"] == "-") {
          replayed_.erase(name);
        } else {
          replayed_[name] = {{"labels", fields["labels"]}};
        }
      } else if (verb.rfind("drop-", 0) == 0) {
        replayed_.erase(verb.substr(5) + " " + id);
        replayed_.erase("labels " + verb.substr(5) + " " + id);  // they go with it
      } else if (verb != "operation" && verb != "evidence") {
        replayed_[verb + " " + id] = fields;
      }
    }
  }

  /// Playing the audit's changes from the start gives the tables.
  void compareReplay() {
    if (!from_the_first_) return;
    const std::map<std::string, std::string> actions = {
        {"attach", "1"}, {"revoke", "2"}, {"scrub", "3"}};
    for (auto& [name, fields] : replayed_) {
      if (name.rfind("intent", 0) == 0) fields["action"] = actions.at(fields["action"]);
      const auto real = tables_.find(name);
      if (real == tables_.end()) {
        complain("only the audit has " + name);
        continue;
      }
      for (const auto& [key, value] : real->second) {
        if (fields[key] != value) {
          complain(name + ": " + key + " is " + value + ", by the audit " + fields[key]);
        }
      }
    }
    for (const auto& [name, fields] : tables_) {
      if (!replayed_.contains(name)) complain("the audit does not have " + name);
    }
  }

  bool from_the_first_ = true;  // the audit: nothing of it was removed
  sqlite3* database_ = nullptr;
  Table tables_, replayed_;
  std::map<std::string, std::multiset<Piece>> held_;
  std::ostringstream complaints_;
};

}  // namespace tidepool::checker
