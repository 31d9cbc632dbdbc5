// SPDX-License-Identifier: Apache-2.0
// EtcdClient over libcurl's easy interface, EtcdWatch over its multi interface. 64-bit numbers are
// texts in etcd's JSON.
#include "fabricmgr/store/etcd_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/base/clock.h"

namespace tidepool::fabric {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kScheme = "etcd://";
/// etcd takes 128 operations in a list; those of a list within a list are counted anew, together
/// with the outer list's.
constexpr size_t kNested = 64;
/// At most; also no more than a member's share of the patience, so that one that is gone without a
/// word leaves time for the others.
constexpr long kConnectMilliseconds = 1000;

std::string encoded(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

std::string decoded(const std::string& text) {
  std::string bytes(text.size() / 4 * 3 + 1, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  bytes.resize(length < 0 ? 0 : static_cast<size_t>(length) - padding);
  return bytes;
}

std::string rangeText(const EtcdRange& range) {
  std::string text = fmt::format(R"({{"key":"{}")", encoded(range.from));
  if (!range.to.empty()) text += fmt::format(R"(,"range_end":"{}")", encoded(range.to));
  if (range.limit != 0) text += fmt::format(R"(,"limit":"{}")", range.limit);
  if (range.revision != 0) text += fmt::format(R"(,"revision":"{}")", range.revision);
  return text + "}";
}

/// Null if there is none: what etcd leaves out is 0, false or empty.
const Json& memberOf(const Json& object, const char* name) {
  static const Json kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

uint64_t numberIn(const Json& object, const char* name) {
  const Json& member = memberOf(object, name);
  if (!member.is_string()) return 0;
  const auto& text = member.get_ref<const std::string&>();
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::string bytesIn(const Json& object, const char* name) {
  const Json& member = memberOf(object, name);
  return member.is_string() ? decoded(member.get_ref<const std::string&>()) : "";
}

EtcdFound foundIn(const Json& answer) {
  EtcdFound found;
  found.more = memberOf(answer, "more") == true;
  found.revision = numberIn(memberOf(answer, "header"), "revision");
  for (const Json& pair : memberOf(answer, "kvs")) {
    found.pairs.push_back({bytesIn(pair, "key"), bytesIn(pair, "value"),
                           numberIn(pair, "create_revision"), numberIn(pair, "mod_revision")});
  }
  return found;
}

void collectFound(const Json& answer, std::vector<EtcdFound>* found) {
  for (const Json& one : memberOf(answer, "responses")) {
    if (const auto range = one.find("response_range"); range != one.end()) {
      found->push_back(foundIn(*range));
    } else {
      collectFound(memberOf(one, "response_txn"), found);
    }
  }
}

// What etcd says of users, in words: its codes do not tell them apart.
constexpr const char* kRefused = "invalid user ID or password";
constexpr const char* kNoUsers = "authentication is not enabled";
constexpr const char* kTokenEnded[] = {"invalid auth token", "revision of auth store is old",
                                       "user name is empty"};

bool saysTokenEnded(const std::string& text) {
  return std::any_of(std::begin(kTokenEnded), std::end(kTokenEnded),
                     [&text](const char* words) { return text.find(words) != std::string::npos; });
}

/// What gRPC's codes, which etcd's errors have, mean here.
ErrorCode codeOf(int grpc, const std::string& text) {
  const auto says = [&text](const char* part) { return text.find(part) != std::string::npos; };
  if (says("too large") || says("database space exceeded")) return ErrorCode::kNoSpace;
  if (grpc == 7 || grpc == 16 || says(kRefused) || saysTokenEnded(text)) {
    return ErrorCode::kPermission;
  }
  if (grpc == 4 || says("timed out")) return ErrorCode::kTimedOut;
  return grpc == 14 || grpc == 1 ? ErrorCode::kUnreachable : ErrorCode::kIo;
}

size_t append(char* data, size_t size, size_t count, void* to) {
  static_cast<std::string*>(to)->append(data, size * count);
  return size * count;
}

std::string listOf(const std::vector<std::string>& operations) {
  if (operations.size() <= kNested) return fmt::format("[{}]", fmt::join(operations, ","));
  std::string text = "[";
  for (size_t at = 0; at < operations.size(); at += kNested) {
    const auto first = operations.begin() + static_cast<ptrdiff_t>(at);
    const auto last = first + static_cast<ptrdiff_t>(std::min(kNested, operations.size() - at));
    text += fmt::format(R"({}{{"request_txn":{{"success":[{}]}}}})", at == 0 ? "" : ",",
                        fmt::join(first, last, ","));
  }
  return text + "]";
}

/// What all requests to `target` have in common; their answers are appended to a string.
void setUp(CURL* curl, const EtcdTarget& target) {
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, kConnectMilliseconds);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
  if (target.ca.empty()) return;
  curl_easy_setopt(curl, CURLOPT_CAINFO, target.ca.c_str());
  curl_easy_setopt(curl, CURLOPT_SSLCERT, target.certificate.c_str());
  curl_easy_setopt(curl, CURLOPT_SSLKEY, target.key.c_str());
  if (!target.crl.empty()) curl_easy_setopt(curl, CURLOPT_CRLFILE, target.crl.c_str());
}

std::string urlOf(const EtcdTarget& target, size_t endpoint, const char* path) {
  return fmt::format("{}://{}/v3{}", target.ca.empty() ? "http" : "https",
                     target.endpoints[endpoint], path);
}

tl::unexpected<Error> away(const EtcdTarget& target, const char* why, int code) {
  const bool late = code == CURLE_OPERATION_TIMEDOUT;
  return fail(late ? ErrorCode::kTimedOut : ErrorCode::kUnreachable,
              "etcd at %.60s does not answer (%.80s): see that most of its members run and can be "
              "reached",
              fmt::format("{}", fmt::join(target.endpoints, ",")).c_str(), why);
}

/// Of an answer that has one; else empty.
std::string errorIn(const Json& answer) {
  const Json& error = memberOf(answer, "error");
  return error.is_string() ? error.get<std::string>() : error.is_null() ? "" : error.dump();
}

/// Of an answer that has an error.
tl::unexpected<Error> refusalIn(const Json& answer, const EtcdTarget& target) {
  const std::string text = errorIn(answer);
  const Json& number = memberOf(answer, "code");
  const int grpc = number.is_number_integer() ? number.get<int>() : 0;
  const ErrorCode code = codeOf(grpc, text);
  const std::string as = target.login ? fmt::format(", as user '{}'", target.login->user) : "";
  const bool of_users = code == ErrorCode::kPermission;
  return fail(code, "etcd at %.60s%.60s: %.120s%s", target.endpoints[0].c_str(),
              of_users ? as.c_str() : "", text.c_str(),
              of_users ? ": see 'user' and 'password_file' in [etcd]" : "");
}

/// The header that shows a token; null without one.
using Headers = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;
Headers headersOf(const std::string& token) {
  const std::string line = "Authorization: " + token;
  return {token.empty() ? nullptr : curl_slist_append(nullptr, line.c_str()), curl_slist_free_all};
}

bool isEndpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data() + colon + 1, end, port) ==
             std::from_chars_result{end, std::errc()} &&
         port != 0 && text.find_first_of(" \t@?#\\") == std::string_view::npos;
}

}  // namespace

std::optional<std::string> EtcdLogin::token() {
  const MutexLock lock(mutex_);
  return token_;
}

void EtcdLogin::took(std::string token) {
  const MutexLock lock(mutex_);
  token_ = std::move(token);
}

void EtcdLogin::forget(const std::string& token) {
  const MutexLock lock(mutex_);
  if (token_ == token) token_.reset();
}

std::string EtcdTarget::url() const {
  return fmt::format("{}{}{}", kScheme, fmt::join(endpoints, ","),
                     prefix.substr(0, prefix.size() - 1));
}

bool isEtcdUrl(std::string_view text) { return text.starts_with(kScheme); }

Result<EtcdTarget> parseEtcdUrl(const std::string& url) {
  const auto wrong = [&url](const char* what) {
    return fail(ErrorCode::kInvalidArgument, "'%.100s': %s (etcd://HOST:PORT[,HOST:PORT...]/NAME)",
                url.c_str(), what);
  };
  if (!isEtcdUrl(url)) return wrong("that is not where an etcd is");
  const std::string rest = url.substr(kScheme.size());
  const size_t slash = rest.find('/');
  EtcdTarget target;
  for (size_t at = 0, end = 0; end != std::string::npos && at <= slash; at = end + 1) {
    end = rest.substr(0, slash).find(',', at);
    target.endpoints.push_back(rest.substr(at, std::min(end, std::min(slash, rest.size())) - at));
    if (!isEndpoint(target.endpoints.back())) return wrong("each member is HOST:PORT");
  }
  if (slash == std::string::npos || rest.size() == slash + 1) return wrong("a name has to follow");
  target.prefix = rest.substr(slash) + (rest.ends_with('/') ? "" : "/");
  return target;
}

void EtcdTransaction::compare(const char* target, const char* field, std::string_view key,
                              uint64_t revision) {
  compares_ += fmt::format(R"({}{{"target":"{}","result":"EQUAL","key":"{}","{}_revision":"{}"}})",
                           compares_.empty() ? "" : ",", target, encoded(key), field, revision);
}

void EtcdTransaction::put(std::string_view key, std::string_view value, uint64_t lease) {
  operations_.push_back(fmt::format(R"({{"request_put":{{"key":"{}","value":"{}","lease":"{}"}}}})",
                                    encoded(key), encoded(value), lease));
}

void EtcdTransaction::touch(std::string_view key) {
  operations_.push_back(
      fmt::format(R"({{"request_put":{{"key":"{}","ignore_value":true}}}})", encoded(key)));
}

void EtcdTransaction::drop(std::string_view from, std::string_view to) {
  operations_.push_back(fmt::format(R"({{"request_delete_range":{}}})",
                                    rangeText({std::string(from), std::string(to), 0, 0})));
}

void EtcdTransaction::get(const EtcdRange& range) {
  operations_.push_back(fmt::format(R"({{"request_range":{}}})", rangeText(range)));
}

void EtcdTransaction::otherwiseGet(const EtcdRange& range) {
  otherwise_.push_back(fmt::format(R"({{"request_range":{}}})", rangeText(range)));
}

std::string EtcdTransaction::body() const {
  return fmt::format(R"({{"compare":[{}],"success":{},"failure":{}}})", compares_,
                     listOf(operations_), listOf(otherwise_));
}

struct EtcdClient::Handle {
  CURL* curl = curl_easy_init();
  ~Handle() { curl_easy_cleanup(curl); }
};

struct EtcdClient::Document {
  Json json;
};

EtcdClient::EtcdClient(EtcdTarget target, Nanoseconds patience)
    : target_(std::move(target)), patience_(patience), handle_(std::make_unique<Handle>()) {
  if (handle_->curl == nullptr) return;  // ask() says so
  setUp(handle_->curl, target_);
  const auto share = static_cast<long>(patience_.value() / 1'000'000 /
                                       std::max<size_t>(target_.endpoints.size(), 1));
  curl_easy_setopt(handle_->curl, CURLOPT_CONNECTTIMEOUT_MS,
                   std::clamp(share, 1L, kConnectMilliseconds));
}

EtcdClient::~EtcdClient() = default;

EtcdTarget EtcdClient::target() const {
  EtcdTarget target = target_;
  const auto last = target.endpoints.begin() + static_cast<ptrdiff_t>(endpoint_);
  std::rotate(target.endpoints.begin(), last, target.endpoints.end());
  return target;
}

/// Whether anything of the last request was sent.
bool EtcdClient::wasHeard() const {
  long sent = 0;
  curl_easy_getinfo(handle_->curl, CURLINFO_REQUEST_SIZE, &sent);
  return sent != 0;
}

/// Asks the members in turn while they surely have not heard of it, or if that is no matter.
Result<EtcdClient::Document> EtcdClient::askMembers(const char* path, const std::string& body,
                                                    const std::string& token, Repeat repeat) {
  CURL* const curl = handle_->curl;
  if (curl == nullptr) return fail(ErrorCode::kNoMemory, "libcurl cannot be used");
  char why[CURL_ERROR_SIZE] = {};
  std::string answer;
  CURLcode code = CURLE_OK;
  const Headers headers = headersOf(token);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  for (size_t tried = 0; tried < target_.endpoints.size(); ++tried) {
    const std::string url = urlOf(target_, endpoint_, path);
    answer.clear();
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(patience_.value() / 1'000'000));
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
    code = curl_easy_perform(curl);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
    if (code == CURLE_OK) break;
    endpoint_ = (endpoint_ + 1) % target_.endpoints.size();
    if (repeat == Repeat::kUnheard && wasHeard()) break;
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, nullptr);
  if (code != CURLE_OK) {
    return away(target_, why[0] != '\0' ? why : curl_easy_strerror(code), code);
  }
  Document document{Json::parse(answer, nullptr, false)};
  if (document.json.is_object()) return document;
  endpoint_ = (endpoint_ + 1) % target_.endpoints.size();
  return fail(ErrorCode::kIo, "%s: that is no etcd of version 3.4 or later: it says '%.60s'",
              target_.url().c_str(), answer.c_str());
}

/// A token that has ended is renewed, once: what was refused for that has not happened.
Result<EtcdClient::Document> EtcdClient::ask(const char* path, const std::string& body,
                                             Repeat repeat) {
  for (bool again = target_.login != nullptr;; again = false) {
    std::string shown;
    if (target_.login) {
      auto token = this->token();
      if (!token) return tl::unexpected(token.error());
      shown = std::move(*token);
    }
    auto document = askMembers(path, body, shown, repeat);
    if (!document || !document->json.contains("error")) return document;
    if (again && saysTokenEnded(errorIn(document->json))) {  // with a new one it would do it
      target_.login->forget(shown);
      continue;
    }
    endpoint_ = (endpoint_ + 1) % target_.endpoints.size();
    return refusalIn(document->json, target_);
  }
}

Result<std::string> EtcdClient::token() {
  if (auto token = target_.login->token()) return std::move(*token);
  const Json body = {{"name", target_.login->user}, {"password", target_.login->password}};
  const auto text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto answer = askMembers("/auth/authenticate", text, "", Repeat::kAlways);
  if (!answer) return tl::unexpected(answer.error());
  std::string token;
  if (const Json& given = memberOf(answer->json, "token"); given.is_string()) {
    token = given.get<std::string>();
  } else if (errorIn(answer->json).find(kNoUsers) == std::string::npos) {
    return refusalIn(answer->json, target_);
  }
  target_.login->took(token);
  return token;
}

Status EtcdClient::logIn() {
  if (!target_.login) return {};
  const auto token = this->token();
  return token ? Status() : tl::unexpected(token.error());
}

Result<EtcdFound> EtcdClient::range(const EtcdRange& range) {
  const auto answer = ask("/kv/range", rangeText(range), Repeat::kAlways);
  if (!answer) return tl::unexpected(answer.error());
  return foundIn(answer->json);
}

Result<EtcdOutcome> EtcdClient::transact(const std::string& body) {
  const auto answer = ask("/kv/txn", body);
  if (!answer) return tl::unexpected(answer.error());
  EtcdOutcome outcome;
  outcome.happened = memberOf(answer->json, "succeeded") == true;
  outcome.revision = numberIn(memberOf(answer->json, "header"), "revision");
  collectFound(answer->json, &outcome.found);
  return outcome;
}

Result<EtcdClient::Lease> EtcdClient::grantLease(Nanoseconds length) {
  const auto answer =
      ask("/lease/grant", fmt::format(R"({{"TTL":"{}"}})", length.value() / 1'000'000'000));
  if (!answer) return tl::unexpected(answer.error());
  return Lease{numberIn(answer->json, "ID"),
               Nanoseconds(numberIn(answer->json, "TTL") * 1'000'000'000)};
}

Result<Nanoseconds> EtcdClient::keepAlive(uint64_t lease) {
  const auto answer = ask("/lease/keepalive", fmt::format(R"({{"ID":"{}"}})", lease));
  if (!answer) return tl::unexpected(answer.error());
  return Nanoseconds(numberIn(memberOf(answer->json, "result"), "TTL") * 1'000'000'000);
}

Status EtcdClient::revoke(uint64_t lease) {
  const auto answer = ask("/lease/revoke", fmt::format(R"({{"ID":"{}"}})", lease));
  if (!answer) return tl::unexpected(answer.error());
  return {};
}

/// A request whose answer has no end: a document a line.
struct EtcdWatch::Stream {
  CURLM* multi = curl_multi_init();
  CURL* curl = curl_easy_init();
  std::string body, answer, token;
  Headers headers = headersOf("");
  char why[CURL_ERROR_SIZE] = {};

  ~Stream() {
    if (multi != nullptr && curl != nullptr) curl_multi_remove_handle(multi, curl);
    curl_easy_cleanup(curl);
    curl_multi_cleanup(multi);
  }
  bool usable() const { return multi != nullptr && curl != nullptr; }
  void begin(const EtcdTarget& target, size_t endpoint) {
    setUp(curl, target);
    curl_easy_setopt(curl, CURLOPT_URL, urlOf(target, endpoint, "/watch").c_str());
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    headers = headersOf(token);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
    curl_multi_add_handle(multi, curl);
  }
  /// What can be done without waiting. Errors: the request has ended.
  Status advance(const EtcdTarget& target) {
    int running = 0;
    curl_multi_perform(multi, &running);
    if (running != 0 || answer.find('\n') != std::string::npos) return {};
    int left = 0;
    const CURLMsg* const done = curl_multi_info_read(multi, &left);
    const CURLcode code = done == nullptr ? CURLE_RECV_ERROR : done->data.result;
    if (code != CURLE_OK) return away(target, why[0] ? why : curl_easy_strerror(code), code);
    return away(target, answer.empty() ? "the watch has ended" : answer.c_str(), code);
  }
  /// The next document that is here as a whole.
  std::optional<Json> take() {
    const size_t end = answer.find('\n');
    if (end == std::string::npos) return std::nullopt;
    Json document = Json::parse(answer.substr(0, end), nullptr, false);
    answer.erase(0, end + 1);
    return document;
  }
};

EtcdWatch::EtcdWatch(EtcdTarget target, std::string from, std::string to)
    : target_(std::move(target)), from_(std::move(from)), to_(std::move(to)) {}

EtcdWatch::~EtcdWatch() = default;

void EtcdWatch::begin(uint64_t revision) {
  endpoint_ = (endpoint_ + 1) % target_.endpoints.size();
  stream_ = std::make_unique<Stream>();
  // What is large comes in fragments: gRPC takes no message above 4 MB.
  stream_->body = fmt::format(R"({{"create_request":{{"key":"{}","range_end":"{}",)"
                              R"("start_revision":"{}","fragment":true}}}})",
                              encoded(from_), encoded(to_), revision + 1);
  if (target_.login) {
    (void)EtcdClient(target_).logIn();  // or etcd says what is wrong
    stream_->token = target_.login->token().value_or("");
  }
  if (stream_->usable()) stream_->begin(target_, endpoint_);
}

Result<std::vector<EtcdChange>> EtcdWatch::next(Nanoseconds wait) {
  if (stream_ == nullptr || !stream_->usable()) {
    return fail(ErrorCode::kUnreachable, "etcd is not watched");
  }
  const auto failed = [this](const Error& error) {
    // etcd says of a token that has ended no more than of rights that are missing.
    if (target_.login && error.code() == ErrorCode::kPermission) {
      target_.login->forget(stream_->token);
    }
    stream_.reset();
    return tl::unexpected(error);
  };
  for (const int patience : {static_cast<int>(wait.value() / 1'000'000), 0}) {
    if (const Status good = stream_->advance(target_); !good) return failed(good.error());
    if (patience == 0 || stream_->answer.find('\n') != std::string::npos) break;
    curl_multi_poll(stream_->multi, nullptr, 0, patience, nullptr);
  }
  std::vector<EtcdChange> changes;
  while (const auto document = stream_->take()) {
    if (!document->is_object()) return failed(Error::make(ErrorCode::kIo, "etcd's watch is torn"));
    if (document->contains("error")) return failed(refusalIn(*document, target_).value());
    const Json& result = memberOf(*document, "result");
    if (memberOf(result, "canceled") == true) {
      const Json& reason = memberOf(result, "cancel_reason");
      const bool denied = reason.is_string() &&
                          reason.get_ref<const std::string&>().find("denied") != std::string::npos;
      return failed(Error::make(
          numberIn(result, "compact_revision") != 0 ? ErrorCode::kStaleEpoch
          : denied                                  ? ErrorCode::kPermission
                                                    : ErrorCode::kUnreachable,
          denied ? "etcd does not let this manager watch the store" : "etcd has ended the watch"));
    }
    for (const Json& event : memberOf(result, "events")) {
      const Json& pair = memberOf(event, "kv");
      const bool deleted = memberOf(event, "type") == "DELETE";
      changes.push_back({bytesIn(pair, "key"),
                         deleted ? std::nullopt : std::optional(bytesIn(pair, "value")),
                         numberIn(pair, "mod_revision")});
    }
  }
  return changes;
}

}  // namespace tidepool::fabric
