// SPDX-License-Identifier: Apache-2.0
// etcd 3.4 over its JSON gateway: ranges, transactions, leases and watches. Keys and values are
// bytes. A client and a watch belong to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::fabric {

/// As whom an etcd that has users knows this process, and the token that it has given for that: all
/// clients share it, since etcd takes its time to check a password. Thread-safe.
class EtcdLogin {
 public:
  EtcdLogin(std::string its_user, std::string its_password)
      : user(std::move(its_user)), password(std::move(its_password)) {}

  /// Empty: etcd has no users yet, and asks for none. Nothing: there is none, or it has ended.
  std::optional<std::string> token() TP_EXCLUDES(mutex_);
  void took(std::string token) TP_EXCLUDES(mutex_);
  /// It has ended; unless there is another one by now.
  void forget(const std::string& token) TP_EXCLUDES(mutex_);

  const std::string user, password;

 private:
  Mutex mutex_;
  std::optional<std::string> token_ TP_GUARDED_BY(mutex_);
};

/// Where an etcd is, what is shown to it, and where in it a store lies.
struct EtcdTarget {
  std::vector<std::string> endpoints;     // HOST:PORT of its members
  std::string prefix;                     // of every key; begins and ends with a slash
  std::string ca, certificate, key, crl;  // PEM files; without a CA it is plain HTTP
  std::shared_ptr<EtcdLogin> login;       // null: as nobody
  std::string url() const;                // as parseEtcdUrl() takes it
};

bool isEtcdUrl(std::string_view text);
/// Of "etcd://HOST:PORT[,HOST:PORT...]/PREFIX". Errors: kInvalidArgument.
Result<EtcdTarget> parseEtcdUrl(const std::string& url);

struct EtcdPair {
  std::string key, value;
  uint64_t created = 0, modified = 0;  // revisions
};

/// Keys from `from` on, up to and without `to`; only `from` itself if `to` is empty.
struct EtcdRange {
  std::string from, to;
  uint64_t limit = 0;     // 0: all
  uint64_t revision = 0;  // as of which; 0: now
};

struct EtcdFound {
  std::vector<EtcdPair> pairs;
  bool more = false;
  uint64_t revision = 0;  // of the store; range() says it
};

/// All of it, or nothing. What is put must be in none of the ranges that are dropped.
class EtcdTransaction {
 public:
  /// It happens only if the key has this revision; 0: if it is not there.
  void ifCreated(std::string_view key, uint64_t revision) {
    compare("CREATE", "create", key, revision);
  }
  void ifModified(std::string_view key, uint64_t revision) { compare("MOD", "mod", key, revision); }
  void put(std::string_view key, std::string_view value, uint64_t lease = 0);
  /// Only its revision changes. The key has to be there.
  void touch(std::string_view key);
  /// `to` as in EtcdRange.
  void drop(std::string_view from, std::string_view to = {});
  void get(const EtcdRange& range);
  /// What to get when it does not happen.
  void otherwiseGet(const EtcdRange& range);

  /// The body of the request. More operations than etcd takes in a list are nested.
  std::string body() const;

 private:
  void compare(const char* target, const char* field, std::string_view key, uint64_t revision);
  std::string compares_;
  std::vector<std::string> operations_, otherwise_;
};

struct EtcdOutcome {
  bool happened = false;
  uint64_t revision = 0;
  std::vector<EtcdFound> found;  // one for each get
};

class EtcdClient {
 public:
  /// With each member that is asked.
  static constexpr Nanoseconds kPatience{2'000'000'000};

  explicit EtcdClient(EtcdTarget target, Nanoseconds patience = kPatience);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Errors of all: kUnreachable and kTimedOut, after which it may have happened all the same;
  // kNoSpace when etcd has no room or the request is too large; kPermission of certificates, users
  // and rights; kIo for whatever else etcd says.
  Result<EtcdFound> range(const EtcdRange& range);
  /// `body` is an EtcdTransaction's.
  Result<EtcdOutcome> transact(const std::string& body);
  struct Lease {
    uint64_t id = 0;
    Nanoseconds length;  // never less than what was asked for
  };
  Result<Lease> grantLease(Nanoseconds length);
  /// How long it lasts from now on; 0: there is none any more.
  Result<Nanoseconds> keepAlive(uint64_t lease);
  Status revoke(uint64_t lease);
  /// So that the target's login, if it has one, has a token.
  Status logIn();
  /// What this asks, the member first that answered last.
  EtcdTarget target() const;

 private:
  struct Handle;
  struct Document;
  enum class Repeat : uint8_t { kUnheard, kAlways };  // at the next member
  Result<Document> ask(const char* path, const std::string& body, Repeat repeat = Repeat::kUnheard);
  /// As ask(), but what etcd refuses is a document, too. `token`: may be empty.
  Result<Document> askMembers(const char* path, const std::string& body, const std::string& token,
                              Repeat repeat);
  Result<std::string> token();
  bool wasHeard() const;

  const EtcdTarget target_;
  const Nanoseconds patience_;
  std::unique_ptr<Handle> handle_;
  size_t endpoint_ = 0;  // the one that answered last
};

/// What became of a key.
struct EtcdChange {
  std::string key;
  std::optional<std::string> value;  // nothing: it was deleted
  uint64_t revision = 0;
};

/// Is told of every change of a range of keys, in order, by one member at a time.
class EtcdWatch {
 public:
  /// Keys from `from` on, up to and without `to`.
  EtcdWatch(EtcdTarget target, std::string from, std::string to);
  ~EtcdWatch();
  EtcdWatch(const EtcdWatch&) = delete;
  EtcdWatch& operator=(const EtcdWatch&) = delete;

  /// From the first change after `revision` on, whatever came of an earlier begin(); of the next
  /// member.
  void begin(uint64_t revision);
  /// What has come, after a wait of at most `wait` for it; empty: nothing has. After an error
  /// begin() has to be called again. Errors: kStaleEpoch when etcd has dropped changes after the
  /// revision; otherwise EtcdClient's.
  Result<std::vector<EtcdChange>> next(Nanoseconds wait);

 private:
  struct Stream;
  const EtcdTarget target_;
  const std::string from_, to_;
  std::unique_ptr<Stream> stream_;  // null: begin() is due
  size_t endpoint_ = 0;
};

}  // namespace tidepool::fabric
