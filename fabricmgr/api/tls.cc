// SPDX-License-Identifier: Apache-2.0
// TLS contexts by OpenSSL: 1.2 and 1.3, client certificates required and verified in the handshake.
#include "fabricmgr/api/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cstdio>

namespace tidepool::api {
namespace {

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
    return wrongFile("the server's certificate", files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return wrongFile("the server's key", files.key);
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

void dropName(void*, void* name, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<std::string*>(name);
}

/// Where a connection keeps the name of who was not accepted.
int nameSlot() {
  static const int slot = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, dropName);
  return slot;
}

/// The first URI, else the subject.
std::string nameIn(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, NamesDeleter> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.ia5)),
            static_cast<size_t>(ASN1_STRING_length(name->d.ia5))};
  }
  char text[256] = {};
  X509_NAME_oneline(X509_get_subject_name(certificate), text, sizeof text);
  return text;
}

int rememberRefused(int good, X509_STORE_CTX* store) {
  X509* const peer = X509_STORE_CTX_get0_cert(store);
  auto* const ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  if (good == 1 || peer == nullptr || ssl == nullptr) return good;
  if (SSL_get_ex_data(ssl, nameSlot()) != nullptr) return good;
  auto name = std::make_unique<std::string>(nameIn(peer).substr(0, 100));
  for (char& c : *name) c = c > ' ' && c < 0x7f && c != '"' ? c : '?';
  if (SSL_set_ex_data(ssl, nameSlot(), name.get()) == 1) (void)name.release();
  return good;
}

void configure(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // Idle connections give their buffers back: that is most of what thousands of agents cost.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  // A resumed session would skip the look at the certificate and at who is revoked.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, rememberRefused);
}

}  // namespace

std::string refusedName(SSL* ssl) {
  const auto* name = static_cast<const std::string*>(SSL_get_ex_data(ssl, nameSlot()));
  return name == nullptr ? "" : *name;
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
  SslPointer<SSL_CTX> context(SSL_CTX_new(TLS_server_method()));
  if (!context) return fail(ErrorCode::kNoMemory, "cannot make a TLS context");
  configure(context.get());
  TP_TRY(loadFiles(context.get(), files));
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(context)));
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
  X509_STORE_CTX_set_default(check, "ssl_client");
  const bool good = X509_verify_cert(check) == 1;
  const int why = X509_STORE_CTX_get_error(check);
  X509_STORE_CTX_free(check);
  ERR_clear_error();
  if (good) return {};
  return fail(ErrorCode::kPermission, "%s", X509_verify_cert_error_string(why));
}

Result<PeerCertificate> peerOf(SSL* ssl) {
  const SslPointer<X509> peer(SSL_get1_peer_certificate(ssl));
  if (!peer || SSL_get_verify_result(ssl) != X509_V_OK) {
    return fail(ErrorCode::kPermission, "there is no verified certificate");
  }
  const std::unique_ptr<GENERAL_NAMES, NamesDeleter> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(peer.get(), NID_subject_alt_name, nullptr, nullptr)));
  std::string urn;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (!urn.empty()) return fail(ErrorCode::kPermission, "the certificate names two roles");
    urn.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.ia5)),
               static_cast<size_t>(ASN1_STRING_length(name->d.ia5)));
  }
  auto principal = principalOfUrn(urn);
  if (!principal) return tl::unexpected(principal.error());
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(peer.get()), &end) != 1) {
    return fail(ErrorCode::kPermission, "the certificate has no end");
  }
  return PeerCertificate{std::move(*principal), timegm(&end)};
}

}  // namespace tidepool::api
