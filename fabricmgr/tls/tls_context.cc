// SPDX-License-Identifier: Apache-2.0
// TLS contexts by OpenSSL: 1.2 and 1.3, certificates of both sides required and verified in the
// handshake.
#include "fabricmgr/tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "fabricmgr/key_file.h"

namespace tidepool {
namespace {

constexpr std::string_view kOurUrns = "urn:tidepool:";

struct NamesDeleter {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

Status wrongFile(const char* what, const std::string& path) {
  const std::string why = takeSslError();
  // OpenSSL does not always say that a file is not there.
  if (access(path.c_str(), R_OK) != 0) {
    return failErrno(ErrorCode::kInvalidArgument, "cannot use %s '%s'", what, path.c_str());
  }
  return fail(ErrorCode::kInvalidArgument, "cannot use %s '%s': %s", what, path.c_str(),
              why.c_str());
}

Status loadFiles(SSL_CTX* context, const TlsFiles& files) {
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return wrongFile("the certificate", files.certificate);
  }
  TP_TRY(checkKeyFile(files.key));
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return wrongFile("the key", files.key);
  }
  if (SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1) {
    return wrongFile("the CA's certificate", files.ca);
  }
  if (files.crl.empty()) return {};
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  X509_LOOKUP* lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
  if (lookup == nullptr || X509_load_crl_file(lookup, files.crl.c_str(), X509_FILETYPE_PEM) < 1) {
    return wrongFile("the list of revoked certificates", files.crl);
  }
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
  return {};
}

void dropRefused(void*, void* refused, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<RefusedPeer*>(refused);
}

/// Where a connection keeps why its peer was not accepted.
int refusedSlot() {
  static const int slot = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, dropRefused);
  return slot;
}

/// Where it keeps who the peer has to be.
int wantedSlot() {
  static const int slot = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return slot;
}

Result<PeerCertificate> peerIn(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, NamesDeleter> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string urn;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (!urn.empty()) return fail(ErrorCode::kPermission, "the certificate names two roles");
    urn.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.ia5)),
               static_cast<size_t>(ASN1_STRING_length(name->d.ia5)));
  }
  const std::time_t end = endOf(certificate);
  if (end == 0) return fail(ErrorCode::kPermission, "the certificate has no end");
  return PeerCertificate{std::move(urn), end};
}

/// What a check ended with. In words where it is one of time: those are what an operator meets.
std::string wordsFor(X509_STORE_CTX* check) {
  const int error = X509_STORE_CTX_get_error(check);
  const X509* const current = X509_STORE_CTX_get_current_cert(check);
  const X509_CRL* const crl = X509_STORE_CTX_get0_current_crl(check);
  const std::time_t now = std::time(nullptr);
  if (error == X509_V_ERR_CERT_HAS_EXPIRED && current != nullptr) {
    const std::string owner = ownerOf(current);
    const bool of_peer = X509_STORE_CTX_get_error_depth(check) == 0;
    return (of_peer ? certificateOf(owner) : whatIs({"ca", owner, 0})) + " " +
           endText(endOf(current), now);
  }
  if (error == X509_V_ERR_CERT_NOT_YET_VALID && current != nullptr) {
    return certificateOf(ownerOf(current)) +
           " is not valid yet: is the clock right, here and where it was made?";
  }
  if (error == X509_V_ERR_CRL_HAS_EXPIRED && crl != nullptr) {
    return "the list of revoked certificates " + endText(endOf(crl), now) +
           ": nobody gets in until there is a new one";
  }
  return X509_verify_cert_error_string(error);
}

/// What is wrong with whose certificate this is; empty if nothing is.
std::string notWanted(SSL* ssl, X509* peer) {
  const auto* wanted = static_cast<const std::string*>(SSL_get_ex_data(ssl, wantedSlot()));
  if (wanted == nullptr) return "";
  const auto who = peerIn(peer);
  if (!who) return who.error().text();
  if (wanted->ends_with(':') ? who->urn.starts_with(*wanted) : who->urn == *wanted) return "";
  return "it has to be for " + *wanted + (wanted->ends_with(':') ? "NAME" : "");
}

/// Called by OpenSSL for each step of its check of the peer's certificate. A peer that is not
/// accepted is remembered, with the reason.
int check(int good, X509_STORE_CTX* store) {
  X509* const peer = X509_STORE_CTX_get0_cert(store);
  auto* const ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  if (peer == nullptr || ssl == nullptr || refusedPeer(ssl) != nullptr) return good;
  std::string why = good == 1 ? notWanted(ssl, peer) : wordsFor(store);
  if (good == 1 && why.empty()) return good;
  // The alert that the peer gets for it: its certificate is for something else.
  if (good == 1) X509_STORE_CTX_set_error(store, X509_V_ERR_INVALID_PURPOSE);
  auto refused = std::make_unique<RefusedPeer>();
  refused->why = std::move(why);
  // OpenSSL looks at the time last, the authority's first: chain, revocation and signature are good
  // by then, and the name is the peer's own.
  const bool ended = X509_STORE_CTX_get_error(store) == X509_V_ERR_CERT_HAS_EXPIRED &&
                     X509_STORE_CTX_get_error_depth(store) == 0;
  if (ended) {
    if (auto who = peerIn(peer)) refused->ended = std::move(*who);
  } else {
    refused->why += " (it says it is " + ownerOf(peer) + ")";
  }
  if (SSL_set_ex_data(ssl, refusedSlot(), refused.get()) == 1) (void)refused.release();
  return 0;
}

void configure(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // Idle connections give their buffers back: that is most of what thousands of agents cost.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  // A resumed session would skip the look at the certificate and at who is revoked.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, check);
}

}  // namespace

const RefusedPeer* refusedPeer(SSL* ssl) {
  return static_cast<const RefusedPeer*>(SSL_get_ex_data(ssl, refusedSlot()));
}

std::string takeSslError() {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_get_error(); code != 0) {
    const char* reason = ERR_reason_error_string(code);
    snprintf(text, sizeof text, "%s", reason != nullptr ? reason : "unknown error");
  }
  ERR_clear_error();
  return text;
}

Result<std::shared_ptr<TlsContext>> TlsContext::load(const TlsFiles& files) {
  ERR_clear_error();
  SslPointer<SSL_CTX> context(SSL_CTX_new(TLS_method()));
  if (!context) return fail(ErrorCode::kNoMemory, "cannot make a TLS context");
  configure(context.get());
  TP_TRY(loadFiles(context.get(), files));
  std::vector<CertificateExpiry> expiries;
  for (const auto& [path, kind] : {std::pair(&files.certificate, "server"),
                                   std::pair(&files.ca, "ca"), std::pair(&files.crl, "crl")}) {
    if (path->empty()) continue;
    const auto some = expiriesIn(*path, kind);
    // A list without an end is none of these; the files were read already.
    if (some) expiries.insert(expiries.end(), some->begin(), some->end());
  }
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(context), std::move(expiries)));
}

SslPointer<SSL> TlsContext::newConnection(const std::string* peer) const {
  SslPointer<SSL> ssl(SSL_new(context_.get()));
  if (ssl && peer != nullptr &&
      SSL_set_ex_data(ssl.get(), wantedSlot(), const_cast<std::string*>(peer)) != 1) {
    return nullptr;
  }
  return ssl;
}

Status TlsContext::recheck(SSL* ssl) const {
  const SslPointer<X509> peer(SSL_get1_peer_certificate(ssl));
  X509_STORE_CTX* check = X509_STORE_CTX_new();
  if (!peer || check == nullptr ||
      X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(context_.get()), peer.get(),
                          SSL_get_peer_cert_chain(ssl)) != 1) {
    X509_STORE_CTX_free(check);
    return fail(ErrorCode::kPermission, "there is no certificate to check");
  }
  X509_STORE_CTX_set_default(check, SSL_is_server(ssl) == 1 ? "ssl_client" : "ssl_server");
  const bool good = X509_verify_cert(check) == 1;
  const std::string why = good ? "" : wordsFor(check);
  X509_STORE_CTX_free(check);
  ERR_clear_error();
  if (good) return {};
  return fail(ErrorCode::kPermission, "%s", why.c_str());
}

Result<std::shared_ptr<TlsInUse>> TlsInUse::load(const TlsFiles& files) {
  auto context = TlsContext::load(files);
  if (!context) return tl::unexpected(context.error());
  return std::shared_ptr<TlsInUse>(new TlsInUse(files, std::move(*context)));
}

Status TlsInUse::reload() {
  auto context = TlsContext::load(files_);
  if (!context) return tl::unexpected(context.error());
  const MutexLock lock(mutex_);
  context_ = std::move(*context);
  peers_.forgetClients();
  return {};
}

void TlsInUse::met(const PeerCertificate& peer) {
  if (!peer.urn.starts_with(kOurUrns)) return;
  peers_.saw(peer.urn.substr(kOurUrns.size()), peer.not_after, std::time(nullptr));
}

std::shared_ptr<const TlsContext> TlsInUse::now() const {
  const MutexLock lock(mutex_);
  return context_;
}

Result<PeerCertificate> peerOf(SSL* ssl) {
  const SslPointer<X509> peer(SSL_get1_peer_certificate(ssl));
  if (!peer || SSL_get_verify_result(ssl) != X509_V_OK) {
    return fail(ErrorCode::kPermission, "there is no verified certificate");
  }
  return peerIn(peer.get());
}

}  // namespace tidepool
