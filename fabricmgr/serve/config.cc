// SPDX-License-Identifier: Apache-2.0
// Reading the TOML file key by key: what is left over at the end is unknown, and refused.
#include "fabricmgr/serve/config.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <memory>
#include <sstream>

#include "fabricmgr/key_file.h"
#include "runtime/base/nearest.h"

namespace tidepool::serve {
namespace {

/// The first thing that is wrong ends the reading.
struct Wrong {
  Error error;
};

[[noreturn]] void wrong(const std::string& file, const toml::source_region& where,
                        const std::string& what) {
  throw Wrong{Error::make(ErrorCode::kInvalidArgument, "%s:%u: %s", file.c_str(),
                          static_cast<unsigned>(where.begin.line), what.c_str())};
}

/// One table of the file. Remembers which keys were asked for.
class Section {
 public:
  Section(const std::string& file, const toml::table* table, std::string name)
      : file_(file), table_(table), name_(std::move(name)) {}

  bool given() const { return table_ != nullptr; }
  Section section(const char* key) {
    const toml::node* node = find(key);
    if (node != nullptr && !node->is_table()) {
      wrong(file_, node->source(), fmt::format("'{}' has to be a section: [{}]", key, key));
    }
    return {file_, node == nullptr ? nullptr : node->as_table(), key};
  }
  void read(const char* key, std::string* into) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<std::string>();
    if (!value) refuse(*node, key, "a text");
    *into = *value;
  }
  /// A text, handed to `take`, which says what is wrong with it, if anything.
  template <typename Take>
  void readWith(const char* key, Take take) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<std::string>();
    if (!value) refuse(*node, key, "a text");
    if (const std::string problem = take(*value); !problem.empty()) {
      wrong(file_, node->source(), fmt::format("{}: {}", key, problem));
    }
  }
  /// One of these texts.
  void read(const char* key, std::string* into, std::initializer_list<std::string_view> choices) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<std::string>();
    if (!value || std::find(choices.begin(), choices.end(), *value) == choices.end()) {
      refuse(*node, key, fmt::format("one of \"{}\"", fmt::join(choices, "\", \"")));
    }
    *into = *value;
  }
  /// A whole number from `least` to `most`.
  template <typename T>
  void read(const char* key, T* into, uint64_t least, uint64_t most) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < 0 || static_cast<uint64_t>(*value) < least ||
        static_cast<uint64_t>(*value) > most) {
      refuse(*node, key, fmt::format("a whole number from {} to {}", least, most));
    }
    *into = static_cast<T>(*value);
  }
  /// Each text of a list, handed to `take`, which says what is wrong with it, if anything.
  template <typename Take>
  void readList(const char* key, Take take) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    if (!node->is_array()) refuse(*node, key, "a list of texts");
    for (const toml::node& item : *node->as_array()) {
      const auto value = item.value_exact<std::string>();
      if (!value) refuse(item, key, "a list of texts");
      if (const std::string problem = take(*value); !problem.empty()) {
        wrong(file_, item.source(), fmt::format("{}: {}", key, problem));
      }
    }
  }
  bool has(const char* key) { return find(key) != nullptr; }
  void mustHave(const char* key, const std::string& value) {
    if (value.empty() && table_ != nullptr) {
      wrong(file_, table_->source(), fmt::format("[{}] needs '{}'", name_, key));
    }
  }
  /// To be called last: refuses what nobody asked for.
  void finish() const {
    if (table_ == nullptr) return;
    for (const auto& [key, node] : *table_) {
      if (std::find(known_.begin(), known_.end(), key.str()) != known_.end()) continue;
      wrong(file_, key.source(),
            fmt::format("unknown key '{}'{}: did you mean '{}'?", key.str(),
                        name_.empty() ? "" : fmt::format(" in [{}]", name_),
                        nearestWord(key.str(), known_)));
    }
  }

 private:
  const toml::node* find(const char* key) {
    known_.emplace_back(key);
    return table_ == nullptr ? nullptr : table_->get(key);
  }
  [[noreturn]] void refuse(const toml::node& node, const char* key, const std::string& expected) {
    wrong(file_, node.source(), fmt::format("'{}' has to be {}", key, expected));
  }

  const std::string& file_;
  const toml::table* table_;
  std::string name_;
  std::vector<std::string_view> known_;
};

/// Takes a number, or a name that `lookUp` knows.
template <typename LookUp>
std::string addId(std::vector<uint32_t>* ids, const std::string& name, const char* kind,
                  LookUp lookUp) {
  uint32_t number = 0;
  const char* end = name.data() + name.size();
  if (std::from_chars(name.data(), end, number) != std::from_chars_result{end, std::errc()} ||
      name.empty()) {
    const auto* entry = lookUp(name.c_str());
    if (entry == nullptr) return fmt::format("there is no {} '{}'", kind, name);
    if constexpr (requires { entry->pw_uid; }) {
      number = entry->pw_uid;
    } else {
      number = entry->gr_gid;
    }
  }
  ids->push_back(number);
  return "";
}

void readUnix(Section section, Config* config) {
  api::UnixListener listener;
  listener.path = "/run/tidepool/fabric.sock";
  // The user who runs the server, and root, could do everything anyway.
  listener.rules.rules.push_back({api::Role::kAdmin, {0, geteuid()}, {}});
  section.read("path", &listener.path);
  for (const api::Role role : {api::Role::kViewer, api::Role::kOperator, api::Role::kAdmin}) {
    api::PeerRule rule;
    rule.role = role;
    static const char* const kKeys[][2] = {{"viewer_users", "viewer_groups"},
                                           {"operator_users", "operator_groups"},
                                           {"admin_users", "admin_groups"}};
    const auto* keys = kKeys[role == api::Role::kViewer ? 0 : role == api::Role::kOperator ? 1 : 2];
    section.readList(keys[0], [&](const std::string& name) {
      return addId(&rule.users, name, "user", getpwnam);
    });
    section.readList(keys[1], [&](const std::string& name) {
      return addId(&rule.groups, name, "group", getgrnam);
    });
    listener.rules.rules.push_back(std::move(rule));
  }
  std::string others = "none";
  section.read("others", &others, {"none", "viewer"});
  if (others == "viewer") listener.rules.others = api::Role::kViewer;
  section.finish();
  if (!listener.path.empty()) config->server.unix_socket = std::move(listener);
}

TlsFiles readTls(Section& section) {
  TlsFiles files;
  section.read("certificate", &files.certificate);
  section.read("key", &files.key);
  section.read("ca", &files.ca);
  section.read("crl", &files.crl);
  section.mustHave("certificate", files.certificate);
  section.mustHave("key", files.key);
  section.mustHave("ca", files.ca);
  return files;
}

void readTcp(Section section, Config* config) {
  if (!section.given()) return;
  api::TcpListener listener;
  section.read("listen", &listener.address);
  section.mustHave("listen", listener.address);
  listener.tls = readTls(section);
  section.finish();
  config->server.tcp = std::move(listener);
}

void readMemservers(Section section, Config* config) {
  if (!section.given()) return;
  config->memservers = readTls(section);
  section.finish();
}

/// Its first line.
Result<std::string> passwordIn(const std::string& path) {
  TP_TRY(checkKeyFile(path, "password"));
  std::ifstream file(path);
  std::string password;
  if (!std::getline(file, password) || password.empty()) {
    return fail(ErrorCode::kInvalidArgument, "cannot read a password from '%.200s'", path.c_str());
  }
  return password;
}

void readEtcdUser(Section* section, Config* config) {
  std::string user, file;
  section->read("user", &user);
  section->read("password_file", &file);
  if (user.empty() && file.empty()) return;
  section->mustHave("user", user);
  section->mustHave("password_file", file);
  auto password = passwordIn(file);
  if (!password) throw Wrong{password.error()};
  if (config->etcd) {
    config->etcd->login = std::make_shared<fabric::EtcdLogin>(user, std::move(*password));
  }
}

/// Where the etcd is stands in `store`: what is said here goes with that.
void readEtcd(Section section, Config* config) {
  uint64_t seconds = config->leader_lease.value() / 1'000'000'000;
  section.read("name", &config->name);
  section.read("lease_seconds", &seconds, 2, 60);
  config->leader_lease = Nanoseconds(seconds * 1'000'000'000);
  if (section.has("ca") || section.has("certificate") || section.has("key")) {
    const TlsFiles files = readTls(section);
    if (config->etcd) {
      config->etcd->ca = files.ca;
      config->etcd->certificate = files.certificate;
      config->etcd->key = files.key;
      config->etcd->crl = files.crl;
    }
  }
  readEtcdUser(&section, config);
  section.finish();
}

void readLimits(Section section, Config* config) {
  api::ServerOptions& server = config->server;
  section.read("body_bytes", &server.limits.body, 1024, 16 << 20);
  section.read("requests_per_second", &server.rate.per_second, 1, 1'000'000);
  section.read("burst", &server.rate.burst, 1, 1'000'000);
  section.read("connections", &server.connections, 1, 1'000'000);
  section.read("connections_per_principal", &server.connections_of_one, 1, 1'000'000);
  section.read("handshakes", &server.handshakes, 1, 1'000'000);
  section.read("handshakes_per_address", &server.handshakes_of_one, 1, 1'000'000);
  section.read("local_connections", &server.local_connections, 4, 1'000'000);
  section.read("quick_threads", &server.quick_threads, 1, 64);
  section.read("slow_threads", &server.slow_threads, 1, 1024);
  section.finish();
}

void readLeases(Section section, Config* config) {
  section.read("hold_percent", &config->hold_percent, 1, 100);
  section.finish();
}

void readAudit(Section section, Config* config) {
  section.read("keep_days", &config->audit_days, 0, 36'500);
  section.read("keep_records", &config->audit_records, 0, 1'000'000'000'000);
  section.finish();
}

Config configOf(const toml::table& table, const std::string& name) {
  Config config;
  Section whole(name, &table, "");
  if (const toml::node* gone = table.get("memserver_key")) {
    wrong(name, gone->source(),
          "'memserver_key' is gone: give the manager a certificate for memory servers "
          "(`fabricmgr ca issue manager`), in [memservers], and each of them one of its own");
  }
  whole.read("state", &config.state);
  whole.readWith("store", [&config](const std::string& url) -> std::string {
    auto target = fabric::parseEtcdUrl(url);
    if (!target) return target.error().text();
    config.etcd = std::move(*target);
    return "";
  });
  readEtcd(whole.section("etcd"), &config);
  whole.read("cxl_switch", &config.cxl_switch);
  whole.read("cxl_host", &config.cxl_host);
  whole.read("log_level", &config.log_level, {"debug", "info", "warning", "error"});
  whole.read("workers", &config.workers, 1, 64);
  readUnix(whole.section("unix"), &config);
  readTcp(whole.section("tcp"), &config);
  readMemservers(whole.section("memservers"), &config);
  readLimits(whole.section("limits"), &config);
  readLeases(whole.section("leases"), &config);
  readAudit(whole.section("audit"), &config);
  whole.finish();
  return config;
}

}  // namespace

std::string nameOf(const Config& config) {
  if (!config.name.empty()) return config.name;
  char host[256] = "localhost";
  (void)gethostname(host, sizeof host - 1);
  if (config.server.tcp) {
    const std::string& listen = config.server.tcp->address;
    return fmt::format("https://{}{}", host, listen.substr(listen.rfind(':')));
  }
  return fmt::format("{}:{}", host,
                     config.server.unix_socket ? config.server.unix_socket->path : "");
}

Result<Config> parseConfig(const std::string& text, const std::string& name) {
  try {
    Config config = configOf(toml::parse(text, name), name);
    if (config.etcd) TP_TRY(checkKeyFile(config.etcd->key));  // libcurl reads it, and does not ask
    return config;
  } catch (const toml::parse_error& error) {
    return fail(ErrorCode::kInvalidArgument, "%s:%u: %s", name.c_str(),
                static_cast<unsigned>(error.source().begin.line),
                std::string(error.description()).c_str());
  } catch (const Wrong& what) {
    return tl::unexpected(what.error);
  }
}

Result<Config> readConfig(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return failErrno(errno == EACCES ? ErrorCode::kPermission : ErrorCode::kNotFound,
                     "cannot read the configuration '%s'", path.c_str());
  }
  std::ostringstream text;
  text << file.rdbuf();
  return parseConfig(text.str(), path);
}

}  // namespace tidepool::serve
