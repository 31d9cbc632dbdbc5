// SPDX-License-Identifier: Apache-2.0
// HttpClient over libcurl's easy interface.
#include "fabricmgr/client/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "fabricmgr/error_table.h"

namespace tidepool::client {
namespace {

constexpr long kConnectMilliseconds = 10'000;
constexpr long kPassMilliseconds = 3'000;
constexpr size_t kConnections = 5;  // that libcurl keeps, if nothing is said
/// Managers that stand by do not answer this, but say so.
constexpr char kOfWhoLeads[] = "Cache-Control: no-cache";

size_t append(char* data, size_t size, size_t count, void* to) {
  static_cast<std::string*>(to)->append(data, size * count);
  return size * count;
}

struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

/// libcurl asks about once a second; anything but 0 ends the request. Relaxed: a flag, no more.
int isCancelled(void* flag, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const std::atomic<bool>*>(flag)->load(std::memory_order_relaxed) ? 1 : 0;
}

/// Cuts a stream of server-sent events into their data.
struct EventReader {
  const std::function<bool(const std::string&)>* take;
  CURL* handle;
  std::string waiting;
  std::string refusal;  // the body, when it is no stream

  bool feed(std::string_view more) {
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) {
      refusal.append(more);
      return true;
    }
    waiting.append(more);
    for (size_t end; (end = waiting.find("\n\n")) != std::string::npos;) {
      const std::string event = waiting.substr(0, end);
      waiting.erase(0, end + 2);
      const size_t data = event.find("data: ");
      if (data != std::string::npos && !(*take)(event.substr(data + 6))) return false;
    }
    return true;
  }
  static size_t onData(char* data, size_t size, size_t count, void* self) {
    return static_cast<EventReader*>(self)->feed({data, size * count}) ? size * count : 0;
  }
};

std::string randomKey() {
  std::random_device source;
  std::string key = "cli-";
  for (int i = 0; i < 4; ++i) key += fmt::format("{:08x}", source());
  return key;
}

bool mayBeRepeated(CURLcode code) {
  return code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR || code == CURLE_GOT_NOTHING ||
         code == CURLE_PARTIAL_FILE;
}

/// Of the answer; empty if it has none of that name.
std::string headerOf(CURL* curl, const char* name) {
  curl_header* found = nullptr;
  return curl_easy_header(curl, name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK ? found->value : "";
}

/// With TLS 1.3 a client learns after its own handshake what the server thinks of its certificate,
/// by an alert, which libcurl hands on as OpenSSL's text.
bool tellsOfCertificate(const std::string& error) {
  return error.find("alert") != std::string::npos &&
         (error.find("certificate") != std::string::npos ||
          error.find("unknown ca") != std::string::npos);
}

/// What libcurl and OpenSSL say of certificates, in words; empty if it is something else.
std::string_view inWords(std::string_view error) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"alert certificate expired", "the manager says that this certificate has expired"},
      {"alert certificate revoked", "the manager says that this certificate is revoked"},
      {"alert unknown ca", "the manager does not know the authority of this certificate"},
      {"alert certificate required", "the manager wants a certificate: --cert and --key"},
      {"alert unsupported certificate", "this certificate is not one for clients"},
      {"alert bad certificate", "the manager does not accept this certificate"},
      {"certificate has expired", "the manager's certificate, or its authority's, has expired"},
      {"certificate is not yet valid",
       "the manager's certificate is not valid yet: are the clocks "
       "right, here and where it was made?"},
      {"issuer certificate", "the manager's certificate is not of the authority in --ca"},
      {"self-signed certificate", "the manager's certificate is not of the authority in --ca"},
      {"no alternative certificate subject name",
       "the manager's certificate is for other names than this one"}};
  for (const auto& [part, words] : kWords) {
    if (error.find(part) != std::string_view::npos) return words;
  }
  return "";
}

/// `why`: the handle's error buffer.
void setError(CURLcode code, const char* why, Reply* reply) {
  reply->error = why[0] != '\0' ? why : curl_easy_strerror(code);
  reply->refused = tellsOfCertificate(reply->error);
  const std::string_view words = inWords(reply->error);
  reply->of_certificates = !words.empty();
  if (!words.empty()) reply->error = fmt::format("{} ({})", words, reply->error);
}

/// libcurl names "localhost port 80" where it cannot connect to a Unix socket.
void nameSocketError(CURL* curl, CURLcode code, Reply* reply) {
  long number = 0;
  curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &number);
  if (code != CURLE_COULDNT_CONNECT || number == 0) return;
  reply->error = fmt::format("cannot connect to it: {}", strerror(static_cast<int>(number)));
}

bool standsBy(const Reply& reply) {
  return reply.status == 503 && reply.body.find(kStandingBy) != std::string::npos;
}

}  // namespace

struct HttpClient::Handle {
  CURL* curl = curl_easy_init();
  CURLcode last = CURLE_OK;
  ~Handle() { curl_easy_cleanup(curl); }
};

HttpClient::Place HttpClient::placeOf(const std::string& address) {
  if (address.starts_with("unix:") && address.size() > 5) {
    return {address, address.substr(5), "http://localhost"};
  }
  if (address.starts_with("https://") && address.size() > 8) {
    return {address, "", address.substr(0, address.find_last_not_of('/') + 1)};
  }
  throw std::invalid_argument(fmt::format(
      "'{}' is not where a fabric manager is: unix:PATH or https://HOST:PORT, or several of these "
      "with commas between them",
      address));
}

HttpClient::HttpClient(const Target& target)
    : target_(target),
      manner_{target.timeout_seconds * 1000, target.stays},
      handle_(std::make_unique<Handle>()) {
  CURL* curl = handle_->curl;
  if (curl == nullptr) throw std::runtime_error("libcurl cannot be used");
  for (size_t from = 0, end = 0; end != std::string::npos; from = end + 1) {
    end = target.address.find(',', from);
    places_.push_back(placeOf(target.address.substr(from, end - from)));
  }
  if (!target_.place) target_.place = std::make_shared<std::atomic<size_t>>(0);
  if (!target.ca.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, target.ca.c_str());
  if (!target.certificate.empty()) {
    curl_easy_setopt(curl, CURLOPT_SSLCERT, target.certificate.c_str());
    curl_easy_setopt(curl, CURLOPT_SSLKEY, target.key.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  // Where there is another one, a machine that is away is not waited for at length.
  const long patience = places_.size() == 1 ? kConnectMilliseconds : kPassMilliseconds;
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, patience);
  curl_easy_setopt(curl, CURLOPT_MAXCONNECTS,
                   static_cast<long>(std::max(kConnections, places_.size())));
  if (target.cancelled == nullptr) return;
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, isCancelled);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, target.cancelled);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
}

HttpClient::~HttpClient() = default;

Reply HttpClient::perform(const std::string& path, const std::string& method,
                          const std::string& body, const std::vector<std::string>& headers) {
  CURL* curl = handle_->curl;
  Reply reply;
  char why[CURL_ERROR_SIZE] = {};
  std::unique_ptr<curl_slist, ListDeleter> list;
  const std::vector<std::string> none;
  const Place& place = places_[place_];
  for (const auto* some :
       {&std::as_const(target_.headers),
        place.socket.empty() ? &none : &std::as_const(target_.unix_headers), &headers}) {
    for (const std::string& header : *some) {
      list.reset(curl_slist_append(list.release(), header.c_str()));
    }
  }
  if (!target_.stale) list.reset(curl_slist_append(list.release(), kOfWhoLeads));
  goTo(place, path);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list.get());
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, manner_.timeout_milliseconds);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &reply.body);
  curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
  if (!body.empty()) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method.empty() ? nullptr : method.c_str());
  handle_->last = curl_easy_perform(curl);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, nullptr);
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, nullptr);
  reply.status = static_cast<int>(status);
  reply.fabric = headerOf(curl, "Tidepool-Fabric");
  reply.index = headerOf(curl, "Tidepool-Index");
  reply.age = headerOf(curl, "Age");
  const std::string term = headerOf(curl, "Tidepool-Term");
  std::from_chars(term.data(), term.data() + term.size(), reply.term);
  if (handle_->last == CURLE_OK) return reply;
  reply.timed_out = handle_->last == CURLE_OPERATION_TIMEDOUT;
  setError(handle_->last, why, &reply);
  if (!place.socket.empty()) nameSocketError(curl, handle_->last, &reply);
  return reply;
}

void HttpClient::goTo(const Place& place, const std::string& path) {
  curl_easy_setopt(handle_->curl, CURLOPT_URL, (place.base + path).c_str());
  curl_easy_setopt(handle_->curl, CURLOPT_UNIX_SOCKET_PATH,
                   place.socket.empty() ? nullptr : place.socket.c_str());
}

template <typename Ask>
Reply HttpClient::askInTurn(Ask ask) {
  std::string tried;
  bool refused = false, of_certificates = false, timed_out = true;
  place_ = target_.place->load(std::memory_order_relaxed) % places_.size();
  for (size_t i = 0;; ++i) {
    Reply reply = ask();
    const bool cancelled =
        target_.cancelled != nullptr && target_.cancelled->load(std::memory_order_relaxed);
    const bool stands_by = reply.error.empty() && standsBy(reply);
    const bool useless = stands_by || (!reply.error.empty() && !cancelled);
    if (!useless || places_.size() == 1 || manner_.stays) return reply;
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", places_[place_].address,
                         stands_by ? "it stands by" : reply.error);
    refused = refused || reply.refused;
    of_certificates = of_certificates || reply.of_certificates;
    timed_out = timed_out && reply.timed_out;
    passOver();
    if (i + 1 < places_.size()) continue;
    Reply none;
    none.error = tried;
    none.refused = refused;
    none.of_certificates = of_certificates;
    none.timed_out = timed_out;
    return none;
  }
}

void HttpClient::passOver() {
  size_t useless = place_;
  place_ = (place_ + 1) % places_.size();
  // Unless somebody else has found another one by now.
  target_.place->compare_exchange_strong(useless, place_, std::memory_order_relaxed);
}

void HttpClient::keepOthers(const std::string& path, long milliseconds) {
  if (places_.size() == 1) return;
  const size_t present = place_;
  const long each = std::max(1L, milliseconds / static_cast<long>(places_.size() - 1));
  const Manner manner = std::exchange(manner_, {each, true});
  for (size_t i = 1; i < places_.size(); ++i) {
    place_ = (present + i) % places_.size();
    (void)perform(path, "", "", {});
  }
  place_ = present;
  manner_ = manner;
}

Reply HttpClient::get(const std::string& path) {
  return askInTurn([&] { return perform(path, "", "", {}); });
}

Reply HttpClient::post(const std::string& path, const std::string& body,
                       std::vector<std::string> headers) {
  return send("POST", path, body, std::move(headers));
}

Reply HttpClient::send(const std::string& method, const std::string& path, const std::string& body,
                       std::vector<std::string> headers) {
  if (!body.empty()) headers.emplace_back("Content-Type: application/json");
  headers.emplace_back("Expect:");
  bool keyed = false;
  for (const std::string& header : headers) keyed = keyed || header.starts_with("Idempotency-Key:");
  if (!keyed) headers.push_back("Idempotency-Key: " + randomKey());
  return askInTurn([&] {
    Reply reply = perform(path, method, body, headers);
    if (reply.error.empty() || !mayBeRepeated(handle_->last)) return reply;
    return perform(path, method, body, headers);
  });
}

Reply HttpClient::stream(const std::string& path,
                         const std::function<bool(const std::string&)>& take) {
  return askInTurn([&] { return streamOnce(path, take); });
}

Reply HttpClient::streamOnce(const std::string& path,
                             const std::function<bool(const std::string&)>& take) {
  CURL* curl = handle_->curl;
  EventReader reader = {&take, curl, {}, {}};
  std::unique_ptr<curl_slist, ListDeleter> list(
      curl_slist_append(nullptr, "Accept: text/event-stream"));
  if (!target_.stale) list.reset(curl_slist_append(list.release(), kOfWhoLeads));
  goTo(places_[place_], path);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list.get());
  curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 0L);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, EventReader::onData);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &reader);
  char why[CURL_ERROR_SIZE] = {};
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, nullptr);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  Reply reply;
  reply.status = static_cast<int>(status);
  reply.body = reader.refusal;
  if (status == 0 && code != CURLE_OK) {
    setError(code, why, &reply);
    if (!places_[place_].socket.empty()) nameSocketError(curl, code, &reply);
  }
  return reply;
}

std::string HttpClient::escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace tidepool::client
