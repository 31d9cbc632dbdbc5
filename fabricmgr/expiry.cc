// SPDX-License-Identifier: Apache-2.0
// Ends of certificates by OpenSSL, and ExpiryBook.
#include "fabricmgr/expiry.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

namespace tidepool {
namespace {

constexpr std::time_t kMinute = 60;
constexpr std::time_t kHour = 60 * kMinute;
constexpr std::time_t kDay = 24 * kHour;
constexpr std::time_t kMonth = 30 * kDay;
constexpr size_t kLongestName = 100;
constexpr size_t kNamed = 5;  // in one line of the log

struct Deleter {
  void operator()(GENERAL_NAMES* one) const { GENERAL_NAMES_free(one); }
  void operator()(BIO* one) const { BIO_free(one); }
  void operator()(STACK_OF(X509_INFO) * all) const { sk_X509_INFO_pop_free(all, X509_INFO_free); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

std::string printable(std::string name) {
  name.resize(std::min(name.size(), kLongestName));
  for (char& c : name) c = c > ' ' && c < 0x7f && c != '"' && c != '\\' ? c : '?';
  return name;
}

std::string subjectText(const X509_NAME* name) {
  char text[256] = {};
  if (X509_NAME_get_text_by_NID(const_cast<X509_NAME*>(name), NID_commonName, text, sizeof text) <
      0) {
    X509_NAME_oneline(name, text, sizeof text);
  }
  std::string whole = text;
  std::replace(whole.begin(), whole.end(), ' ', '_');
  return printable(std::move(whole));
}

std::time_t timeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  return time != nullptr && ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

std::string countOf(std::time_t count, const char* unit) {
  return fmt::format("{} {}{}", count, unit, count == 1 ? "" : "s");
}

/// In the largest unit of which there are two, at least; a day is the largest.
std::string lengthText(std::time_t seconds) {
  if (seconds >= 2 * kDay) return countOf(seconds / kDay, "day");
  if (seconds >= 2 * kHour) return countOf(seconds / kHour, "hour");
  if (seconds >= 2 * kMinute) return countOf(seconds / kMinute, "minute");
  return countOf(seconds, "second");
}

}  // namespace

Left leftOf(std::time_t end, std::time_t now) {
  if (end <= now) return Left::kNone;
  return end - now <= kMonth ? Left::kSoon : Left::kEnough;
}

std::string endText(std::time_t end, std::time_t now) {
  return end <= now ? "expired " + lengthText(now - end) + " ago"
                    : "ends in " + lengthText(end - now);
}

std::string certificateOf(std::string_view actor) {
  const size_t colon = actor.find(':');
  if (colon == std::string_view::npos) return fmt::format("the certificate of {}", actor);
  const std::string_view role = actor.substr(0, colon);
  return fmt::format("the certificate of {} {}",
                     role == "host"        ? "agent"
                     : role == "memserver" ? "memory server"
                                           : role,
                     actor.substr(colon + 1));
}

std::string whatIs(const CertificateExpiry& expiry) {
  if (expiry.kind == "server") return fmt::format("the manager's certificate ({})", expiry.name);
  if (expiry.kind == "ca") return fmt::format("the CA's certificate ({})", expiry.name);
  if (expiry.kind == "crl") {
    return fmt::format("the list of revoked certificates ({})", expiry.name);
  }
  return certificateOf(expiry.name);
}

std::string ownerOf(const X509* certificate) {
  const Owned<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    std::string uri(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.ia5)),
                    static_cast<size_t>(ASN1_STRING_length(name->d.ia5)));
    static constexpr std::string_view kOurs = "urn:tidepool:";
    return printable(uri.starts_with(kOurs) ? uri.substr(kOurs.size()) : std::move(uri));
  }
  return subjectText(X509_get_subject_name(certificate));
}

std::time_t endOf(const X509* certificate) { return timeOf(X509_get0_notAfter(certificate)); }

std::time_t endOf(const X509_CRL* crl) { return timeOf(X509_CRL_get0_nextUpdate(crl)); }

Result<std::vector<CertificateExpiry>> expiriesIn(const std::string& path, std::string_view kind) {
  const Owned<BIO> file(BIO_new_file(path.c_str(), "r"));
  const Owned<STACK_OF(X509_INFO)> all(
      file ? PEM_X509_INFO_read_bio(file.get(), nullptr, nullptr, nullptr) : nullptr);
  ERR_clear_error();
  std::vector<CertificateExpiry> found;
  for (int i = 0; i < sk_X509_INFO_num(all.get()); ++i) {
    const X509_INFO* info = sk_X509_INFO_value(all.get(), i);
    if (info->x509 != nullptr) {
      found.push_back({std::string(kind), ownerOf(info->x509), endOf(info->x509)});
    }
    if (info->crl != nullptr && endOf(info->crl) != 0) {
      found.push_back({"crl", subjectText(X509_CRL_get_issuer(info->crl)), endOf(info->crl)});
    }
  }
  if (found.empty()) {
    return fail(ErrorCode::kInvalidArgument, "there is no certificate in '%.200s'", path.c_str());
  }
  return found;
}

std::string expiredAmong(const std::string& certificate, const std::string& ca, std::time_t now) {
  const auto over = [&](const CertificateExpiry& one) {
    return leftOf(one.end, now) == Left::kNone;
  };
  const auto text = [&](const CertificateExpiry& one, const std::string& path) {
    return fmt::format("{} ({}) {}", whatIs(one), path, endText(one.end, now));
  };
  if (const auto own = expiriesIn(certificate, "client")) {
    const auto ended = std::find_if(own->begin(), own->end(), over);
    if (ended != own->end()) return text(*ended, certificate);
  }
  // One that is good will do: while a root is replaced there are two.
  const auto roots = expiriesIn(ca, "ca");
  if (roots && std::all_of(roots->begin(), roots->end(), over)) return text(roots->front(), ca);
  return "";
}

void ExpiryBook::setOwn(std::vector<CertificateExpiry> own) {
  const MutexLock lock(mutex_);
  own_ = std::move(own);
}

void ExpiryBook::forgetClients() {
  const MutexLock lock(mutex_);
  clients_.clear();
}

void ExpiryBook::saw(const std::string& actor, std::time_t end, std::time_t now) {
  const MutexLock lock(mutex_);
  std::time_t& known = clients_[actor];
  // Somebody may go on showing what its owner has replaced: that one still gets in.
  if (end > now || known <= now) known = end;
}

std::vector<CertificateExpiry> ExpiryBook::all(std::time_t now) {
  std::vector<CertificateExpiry> found;
  {
    const MutexLock lock(mutex_);
    std::erase_if(clients_, [&](const auto& client) { return client.second + kMonth < now; });
    found = own_;
    for (const auto& [actor, end] : clients_) {
      found.push_back({actor.starts_with("memserver:") ? "memserver" : "client", actor, end});
    }
  }
  std::stable_sort(
      found.begin(), found.end(),
      [](const CertificateExpiry& a, const CertificateExpiry& b) { return a.end < b.end; });
  return found;
}

std::optional<ExpiryBook::Line> ExpiryBook::lineDue(std::time_t now) {
  std::vector<CertificateExpiry> ending = all(now);
  std::erase_if(
      ending, [&](const CertificateExpiry& one) { return leftOf(one.end, now) == Left::kEnough; });
  const Left left = ending.empty() ? Left::kEnough : leftOf(ending.front().end, now);
  {
    const MutexLock lock(mutex_);
    const bool worse = left > said_left_;
    said_left_ = left;
    if (left == Left::kEnough || (!worse && now >= said_ && now - said_ < kDay)) return {};
    said_ = now;
  }
  std::string text;
  for (size_t i = 0; i < std::min(ending.size(), kNamed); ++i) {
    text +=
        fmt::format("{}{} {}", i == 0 ? "" : "; ", whatIs(ending[i]), endText(ending[i].end, now));
  }
  if (ending.size() > kNamed) text += fmt::format("; and {} more", ending.size() - kNamed);
  return Line{left, std::move(text)};
}

}  // namespace tidepool
