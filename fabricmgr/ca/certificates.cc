// SPDX-License-Identifier: Apache-2.0
// X.509 by OpenSSL 3: keys, names, extensions, signatures. Every failure of the library is one
// error with its text.
#include "fabricmgr/ca/certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "fabricmgr/key_file.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::ca {
namespace {

struct Deleter {
  void operator()(EVP_PKEY* one) const { EVP_PKEY_free(one); }
  void operator()(X509* one) const { X509_free(one); }
  void operator()(X509_CRL* one) const { X509_CRL_free(one); }
  void operator()(X509_REQ* one) const { X509_REQ_free(one); }
  void operator()(GENERAL_NAMES* one) const { GENERAL_NAMES_free(one); }
  void operator()(X509_REVOKED* one) const { X509_REVOKED_free(one); }
  void operator()(X509_EXTENSION* one) const { X509_EXTENSION_free(one); }
  void operator()(BIO* one) const { BIO_free(one); }
  void operator()(BIGNUM* one) const { BN_free(one); }
  void operator()(ASN1_STRING* one) const { ASN1_STRING_free(one); }  // integers and times are such
  void operator()(char* one) const { OPENSSL_free(one); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

tl::unexpected<Error> failed(const char* what) {
  const unsigned long code = ERR_get_error();
  const char* reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  ERR_clear_error();
  return fail(ErrorCode::kInternal, "cannot %s: %s", what,
              reason != nullptr ? reason : "the library does not say why");
}

constexpr int64_t kClockSkew = 300;  // seconds by which other machines' clocks may be behind

template <typename Write>
std::string pemOf(const Write& write) {
  const Owned<BIO> memory(BIO_new(BIO_s_mem()));
  if (!memory || write(memory.get()) != 1) return {};
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string keyText(EVP_PKEY* key) {
  return pemOf([&](BIO* out) {
    return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

struct Signer {
  Owned<X509> certificate;
  Owned<EVP_PKEY> key;
};

Owned<X509> readX509(const std::string& path) {
  const Owned<BIO> file(BIO_new_file(path.c_str(), "r"));
  return Owned<X509>(file ? PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr) : nullptr);
}

Result<Signer> readSigner(const SignerFiles& files) {
  TP_TRY(checkKeyFile(files.key));
  Signer signer;
  signer.certificate = readX509(files.certificate);
  const Owned<BIO> key_file(BIO_new_file(files.key.c_str(), "r"));
  if (key_file) {
    signer.key.reset(PEM_read_bio_PrivateKey(key_file.get(), nullptr, nullptr, nullptr));
  }
  if (!signer.certificate || !signer.key) return failed("read the authority's certificate and key");
  return signer;
}

/// Says which key of the issuer's it is: several may have one name, from before they did not.
bool addIssuersKey(X509_CRL* crl, X509* issuer) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, nullptr, nullptr, crl, 0);
  const Owned<X509_EXTENSION> extension(
      X509V3_EXT_conf_nid(nullptr, &context, NID_authority_key_identifier, "keyid:always"));
  return extension && X509_CRL_add_ext(crl, extension.get(), -1) == 1;
}

bool addExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

/// 127 random bits: never the same twice, and nobody can foresee it.
bool setSerial(X509* certificate) {
  const Owned<BIGNUM> number(BN_new());
  return number && BN_rand(number.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

std::string serialText(const X509* certificate) {
  const Owned<BIGNUM> number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  const Owned<char> text(BN_bn2hex(number.get()));
  return text ? text.get() : "";
}

std::string timeText(const ASN1_TIME* time) {
  std::tm parts = {};
  char text[40] = "?";
  if (ASN1_TIME_to_tm(time, &parts) == 1) {
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  }
  return text;
}

/// A certificate with key, serial, times and subject, not signed yet.
Owned<X509> newCertificate(EVP_PKEY* key, const std::string& name, int64_t valid_seconds) {
  Owned<X509> certificate(X509_new());
  if (!certificate || X509_set_version(certificate.get(), 2) != 1 ||
      !setSerial(certificate.get()) || X509_set_pubkey(certificate.get(), key) != 1) {
    return nullptr;
  }
  const int64_t from = std::min<int64_t>(-kClockSkew, valid_seconds - kClockSkew);
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  if (X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from) == nullptr ||
      X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_seconds) == nullptr ||
      X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("Tidepool"), -1, -1,
                                 0) != 1 ||
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, text, -1, -1, 0) != 1) {
    return nullptr;
  }
  return certificate;
}

Result<std::string> alternativeNames(const Issue& what) {
  std::string names;
  if (what.kind != "server") names = "URI:urn:tidepool:" + what.kind + ":" + what.name;
  for (const std::string& host : what.hosts) {
    in6_addr address;
    const bool number = inet_pton(AF_INET, host.c_str(), &address) == 1 ||
                        inet_pton(AF_INET6, host.c_str(), &address) == 1;
    // Commas and colons would begin another name.
    if (host.empty() || host.size() > 253 ||
        (!number && host.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                           "0123456789.-*") != std::string::npos)) {
      return fail(ErrorCode::kInvalidArgument, "'%.80s' is neither a DNS name nor an IP address",
                  host.c_str());
    }
    names += (names.empty() ? "" : ",") + std::string(number ? "IP:" : "DNS:") + host;
  }
  return names;
}

Result<PemPair> sign(X509* certificate, EVP_PKEY* signer) {
  if (X509_sign(certificate, signer, EVP_sha256()) == 0) return failed("sign the certificate");
  PemPair pair;
  pair.certificate = pemOf([&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
  pair.serial = serialText(certificate);
  pair.not_after = timeText(X509_get0_notAfter(certificate));
  if (pair.certificate.empty()) return failed("write the certificate");
  return pair;
}

Result<PemPair> withKey(Result<PemPair> pair, EVP_PKEY* key) {
  if (!pair) return pair;
  pair->key = keyText(key);
  if (pair->key.empty()) return failed("write the key");
  return pair;
}

/// For the owner of `key`, of which the public part will do.
Result<PemPair> certify(const SignerFiles& files, EVP_PKEY* key, const Issue& what) {
  auto signer = readSigner(files);
  if (!signer) return tl::unexpected(signer.error());
  const auto names = alternativeNames(what);
  if (!names) return tl::unexpected(names.error());
  const auto one = newCertificate(key, what.name, what.valid_seconds);
  if (!one) return failed("make the certificate");
  X509* const root = signer->certificate.get();
  X509_set_issuer_name(one.get(), X509_get_subject_name(root));
  // A client's certificate must not pass for a server's: another agent would believe it.
  const bool serves = what.kind == "server" || what.kind == "memserver";
  const char* use = serves ? "serverAuth" : "clientAuth";
  if (!addExtension(one.get(), root, NID_basic_constraints, "critical,CA:FALSE") ||
      !addExtension(one.get(), root, NID_key_usage, "critical,digitalSignature") ||
      !addExtension(one.get(), root, NID_ext_key_usage, use) ||
      !addExtension(one.get(), root, NID_subject_alt_name, *names) ||
      !addExtension(one.get(), root, NID_authority_key_identifier, "keyid")) {
    return failed("make the certificate");
  }
  return sign(one.get(), signer->key.get());
}

/// A DNS name or an address; empty for other names.
std::string hostIn(const GENERAL_NAME* name) {
  char text[INET6_ADDRSTRLEN] = {};
  if (name->type == GEN_DNS) {
    return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
            static_cast<size_t>(ASN1_STRING_length(name->d.dNSName))};
  }
  if (name->type != GEN_IPADD) return {};
  const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
  inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof text);
  return text;
}

bool addRevoked(X509_CRL* crl, const std::string& serial, const ASN1_TIME* now) {
  BIGNUM* number = nullptr;
  BN_hex2bn(&number, serial.c_str());
  const Owned<BIGNUM> owned(number);
  const Owned<ASN1_INTEGER> integer(BN_to_ASN1_INTEGER(number, nullptr));
  Owned<X509_REVOKED> revoked(X509_REVOKED_new());
  if (!integer || !revoked || X509_REVOKED_set_serialNumber(revoked.get(), integer.get()) != 1 ||
      X509_REVOKED_set_revocationDate(revoked.get(), const_cast<ASN1_TIME*>(now)) != 1 ||
      X509_CRL_add0_revoked(crl, revoked.get()) != 1) {
    return false;
  }
  (void)revoked.release();
  return true;
}

}  // namespace

Result<PemPair> makeRoot(int64_t valid_seconds) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  uint32_t number = 0;
  if (!key || RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof number) != 1) {
    return failed("make a key");
  }
  const auto root =
      newCertificate(key.get(), fmt::format("Tidepool lab root {:08x}", number), valid_seconds);
  if (!root) return failed("make the root certificate");
  X509_set_issuer_name(root.get(), X509_get_subject_name(root.get()));
  if (!addExtension(root.get(), root.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !addExtension(root.get(), root.get(), NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !addExtension(root.get(), root.get(), NID_subject_key_identifier, "hash")) {
    return failed("make the root certificate");
  }
  return withKey(sign(root.get(), key.get()), key.get());
}

Result<PemPair> makeCertificate(const SignerFiles& signer, const Issue& what) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (!key) return failed("make a key");
  return withKey(certify(signer, key.get(), what), key.get());
}

Result<PemPair> signRequest(const SignerFiles& signer, const std::string& request,
                            const Issue& what) {
  const Owned<BIO> file(BIO_new_file(request.c_str(), "r"));
  const Owned<X509_REQ> parsed(file ? PEM_read_bio_X509_REQ(file.get(), nullptr, nullptr, nullptr)
                                    : nullptr);
  EVP_PKEY* const key = parsed ? X509_REQ_get0_pubkey(parsed.get()) : nullptr;
  // Who sends it has to have the key: another's could be revoked, or blamed, in its place.
  if (key == nullptr || X509_REQ_verify(parsed.get(), key) != 1) {
    ERR_clear_error();
    return fail(ErrorCode::kInvalidArgument,
                "'%s' is no certificate request that is signed with its own key: make one with "
                "`openssl req -new`",
                request.c_str());
  }
  return certify(signer, key, what);
}

Result<PemPair> renewCertificate(const SignerFiles& signer, const std::string& certificate,
                                 const Issue& what) {
  const auto old = readX509(certificate);
  EVP_PKEY* const key = old ? X509_get0_pubkey(old.get()) : nullptr;
  if (key == nullptr) return failed("read the certificate");
  return certify(signer, key, what);
}

Result<CertificateFacts> readCertificate(const std::string& path) {
  const auto certificate = readX509(path);
  if (!certificate) {
    ERR_clear_error();
    return fail(ErrorCode::kInvalidArgument, "'%s' is no certificate", path.c_str());
  }
  CertificateFacts facts;
  facts.serial = serialText(certificate.get());
  facts.not_after = timeText(X509_get0_notAfter(certificate.get()));
  const Owned<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    std::string host = hostIn(sk_GENERAL_NAME_value(names.get(), i));
    if (!host.empty()) facts.hosts.push_back(std::move(host));
  }
  return facts;
}

Result<std::string> readCrlEnd(const std::string& path) {
  const Owned<BIO> file(BIO_new_file(path.c_str(), "r"));
  const Owned<X509_CRL> crl(file ? PEM_read_bio_X509_CRL(file.get(), nullptr, nullptr, nullptr)
                                 : nullptr);
  if (crl && X509_CRL_get0_nextUpdate(crl.get()) != nullptr) {
    return timeText(X509_CRL_get0_nextUpdate(crl.get()));
  }
  ERR_clear_error();
  return fail(ErrorCode::kInvalidArgument, "'%s' is no list of revoked certificates with an end",
              path.c_str());
}

Result<std::string> makeCrl(const SignerFiles& files, const std::vector<std::string>& serials) {
  auto signer = readSigner(files);
  if (!signer) return tl::unexpected(signer.error());
  const Owned<X509_CRL> crl(X509_CRL_new());
  const Owned<ASN1_TIME> now(X509_gmtime_adj(nullptr, 0));
  const Owned<ASN1_TIME> since(X509_gmtime_adj(nullptr, -kClockSkew));
  X509* const root = signer->certificate.get();
  if (!crl || !now || !since || X509_CRL_set_version(crl.get(), 1) != 1 ||
      X509_CRL_set_issuer_name(crl.get(), X509_get_subject_name(root)) != 1 ||
      X509_CRL_set1_lastUpdate(crl.get(), since.get()) != 1 ||
      X509_CRL_set1_nextUpdate(crl.get(), X509_get0_notAfter(root)) != 1 ||
      !addIssuersKey(crl.get(), root)) {
    return failed("make the list of revoked certificates");
  }
  for (const std::string& serial : serials) {
    if (!addRevoked(crl.get(), serial, now.get())) return failed("revoke a certificate");
  }
  X509_CRL_sort(crl.get());
  if (X509_CRL_sign(crl.get(), signer->key.get(), EVP_sha256()) == 0) {
    return failed("sign the list of revoked certificates");
  }
  return pemOf([&](BIO* out) { return PEM_write_bio_X509_CRL(out, crl.get()); });
}

Status writeFile(const std::string& path, const std::string& text, mode_t mode) {
  const std::string partial = path + ".part";
  unlink(partial.c_str());
  UniqueFd file(open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file.valid()) return failErrno(ErrorCode::kPermission, "cannot write '%s'", path.c_str());
  const bool whole =
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fchmod(file.get(), mode) == 0 && fsync(file.get()) == 0;
  if (!whole || rename(partial.c_str(), path.c_str()) != 0) {
    return failErrno(ErrorCode::kIo, "cannot write '%s'", path.c_str());
  }
  return {};
}

}  // namespace tidepool::ca
