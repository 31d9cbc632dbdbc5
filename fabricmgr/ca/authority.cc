// SPDX-License-Identifier: Apache-2.0
// Authority: the folder, its index (one line a certificate: state, serial, end, kind, name) and
// CRL.
#include "fabricmgr/ca/authority.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "fabricmgr/ca/certificates.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::ca {
namespace {

constexpr const char* kKinds[] = {"server", "viewer",  "operator", "host",
                                  "admin",  "manager", "memserver"};

Result<UniqueFd> lockFolder(const std::string& folder) {
  UniqueFd lock(open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid() || flock(lock.get(), LOCK_EX) != 0) {
    return failErrno(ErrorCode::kIo, "cannot lock '%s'", folder.c_str());
  }
  return lock;
}

bool nameIsPlain(const std::string& name) {
  return !name.empty() && name.size() <= 63 && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return c < 0x80 && (isalnum(c) != 0 || c == '.' || c == '_' || c == '-');
         });
}

std::string lineOf(const Entry& entry) {
  return std::string(entry.revoked ? "revoked " : "good ") + entry.serial + " " + entry.not_after +
         " " + entry.kind + " " + entry.name + "\n";
}

Result<std::vector<Entry>> readIndex(const std::string& folder) {
  std::ifstream file(folder + "/index");
  if (!file) {
    return fail(ErrorCode::kNotFound,
                "'%s' is no certificate authority: make one with `fabricmgr ca init`",
                folder.c_str());
  }
  std::vector<Entry> entries;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Entry entry;
    std::string state;
    if (!(words >> state >> entry.serial >> entry.not_after >> entry.kind >> entry.name)) {
      return fail(ErrorCode::kCorrupt, "'%s/index' has a line that is none: '%.60s'",
                  folder.c_str(), line.c_str());
    }
    entry.revoked = state == "revoked";
    entries.push_back(std::move(entry));
  }
  return entries;
}

SignerFiles signerOf(const std::string& folder) { return {folder + "/ca.crt", folder + "/ca.key"}; }

Status writeIndex(const std::string& folder, const std::vector<Entry>& entries) {
  std::string text;
  for (const Entry& entry : entries) text += lineOf(entry);
  return writeFile(folder + "/index", text, 0644);
}

Status writeCrl(const std::string& folder, const std::vector<Entry>& entries) {
  std::vector<std::string> serials;
  for (const Entry& entry : entries) {
    if (entry.revoked) serials.push_back(entry.serial);
  }
  auto crl = makeCrl(signerOf(folder), serials);
  if (!crl) return tl::unexpected(crl.error());
  return writeFile(folder + "/crl.pem", *crl, 0644);
}

Status checkIssue(const Issue& what) {
  if (std::find(std::begin(kKinds), std::end(kKinds), what.kind) == std::end(kKinds)) {
    return fail(ErrorCode::kInvalidArgument,
                "'%s' is no kind of certificate: server, viewer, operator, host, admin, manager "
                "or memserver",
                what.kind.c_str());
  }
  if (!nameIsPlain(what.name)) {
    return fail(
        ErrorCode::kInvalidArgument,
        "'%.80s' is no name: 1 to 63 of a-z A-Z 0-9 . _ -, beginning with a letter or digit",
        what.name.c_str());
  }
  if (what.kind == "server" && what.hosts.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "a server's certificate needs the names or addresses that it is reached by");
  }
  if (what.kind == "memserver" && !what.hosts.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "a memory server's certificate is for a device, by its name, and for no host");
  }
  return {};
}

Status checkFree(std::initializer_list<std::string> paths) {
  for (const std::string& path : paths) {
    if (access(path.c_str(), F_OK) != 0) continue;
    return fail(ErrorCode::kConflict, "'%s' exists: it is not overwritten", path.c_str());
  }
  return {};
}

/// Before the index says that there is such a certificate.
Status makeFolder(const std::string& out) {
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (!error && access(out.c_str(), W_OK | X_OK) == 0) return {};
  return fail(ErrorCode::kPermission, "cannot write into the folder '%s'", out.c_str());
}

}  // namespace

Result<Authority> Authority::init(const std::string& folder, int64_t valid_seconds) {
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return failErrno(ErrorCode::kPermission, "cannot make the folder '%s'", folder.c_str());
  }
  const auto lock = lockFolder(folder);
  if (!lock) return tl::unexpected(lock.error());
  if (access((folder + "/index").c_str(), F_OK) == 0) {
    return fail(ErrorCode::kConflict,
                "'%s' is a certificate authority already: another root would make all its "
                "certificates worthless; use another folder",
                folder.c_str());
  }
  auto root = makeRoot(valid_seconds);
  if (!root) return tl::unexpected(root.error());
  TP_TRY(writeFile(folder + "/ca.crt", root->certificate, 0644));
  TP_TRY(writeFile(folder + "/ca.key", root->key, 0600));
  TP_TRY(writeCrl(folder, {}));
  // Last: nothing is issued without it, so whatever was cut off before it can be begun anew.
  TP_TRY(writeIndex(folder, {}));
  return Authority(folder);
}

Result<Authority> Authority::open(const std::string& folder) {
  const auto entries = readIndex(folder);
  if (!entries) return tl::unexpected(entries.error());
  return Authority(folder);
}

Result<Issued> Authority::issue(const Issue& what, const std::string& out) const {
  TP_TRY(checkIssue(what));
  const auto lock = lockFolder(folder_);
  if (!lock) return tl::unexpected(lock.error());
  Issued issued;
  issued.certificate = out + "/" + what.name + ".crt";
  issued.key = out + "/" + what.name + ".key";
  TP_TRY(checkFree({issued.certificate, issued.key}));
  TP_TRY(makeFolder(out));
  auto pair = makeCertificate(signerOf(folder_), what);
  if (!pair) return tl::unexpected(pair.error());
  TP_TRY(note(what, pair->serial, pair->not_after));
  TP_TRY(writeFile(issued.key, pair->key, 0600));
  TP_TRY(writeFile(issued.certificate, pair->certificate, 0644));
  issued.serial = pair->serial;
  return issued;
}

Result<Issued> Authority::sign(const Issue& what, const std::string& request,
                               const std::string& out) const {
  TP_TRY(checkIssue(what));
  const auto lock = lockFolder(folder_);
  if (!lock) return tl::unexpected(lock.error());
  Issued issued;
  issued.certificate = out + "/" + what.name + ".crt";
  TP_TRY(checkFree({issued.certificate}));
  auto pair = signRequest(signerOf(folder_), request, what);
  if (!pair) return tl::unexpected(pair.error());
  TP_TRY(makeFolder(out));
  TP_TRY(note(what, pair->serial, pair->not_after));
  TP_TRY(writeFile(issued.certificate, pair->certificate, 0644));
  issued.serial = pair->serial;
  return issued;
}

Result<Issued> Authority::renew(const std::string& certificate, int64_t valid_seconds) const {
  const auto lock = lockFolder(folder_);
  if (!lock) return tl::unexpected(lock.error());
  auto facts = readCertificate(certificate);
  if (!facts) return tl::unexpected(facts.error());
  const auto entries = readIndex(folder_);
  if (!entries) return tl::unexpected(entries.error());
  const auto old = std::find_if(entries->begin(), entries->end(),
                                [&](const Entry& entry) { return entry.serial == facts->serial; });
  if (old == entries->end()) {
    return fail(ErrorCode::kNotFound, "'%s' was not issued by the authority in '%s'",
                certificate.c_str(), folder_.c_str());
  }
  if (old->revoked) {
    return fail(ErrorCode::kRefused, "'%s' is revoked: issue one with a new key",
                certificate.c_str());
  }
  const Issue what{old->kind, old->name, std::move(facts->hosts), valid_seconds};
  auto pair = renewCertificate(signerOf(folder_), certificate, what);
  if (!pair) return tl::unexpected(pair.error());
  TP_TRY(note(what, pair->serial, pair->not_after));
  TP_TRY(writeFile(certificate, pair->certificate, 0644));
  return Issued{certificate, "", pair->serial};
}

Status Authority::note(const Issue& what, const std::string& serial,
                       const std::string& not_after) const {
  auto entries = readIndex(folder_);
  if (!entries) return tl::unexpected(entries.error());
  entries->push_back({serial, what.kind, what.name, not_after, false});
  return writeIndex(folder_, *entries);
}

Result<int> Authority::revoke(const std::string& which) const {
  const auto lock = lockFolder(folder_);
  if (!lock) return tl::unexpected(lock.error());
  auto entries = readIndex(folder_);
  if (!entries) return tl::unexpected(entries.error());
  int count = 0;
  bool known = false;
  for (Entry& entry : *entries) {
    if (entry.serial != which && entry.kind + ":" + entry.name != which) continue;
    known = true;
    if (!std::exchange(entry.revoked, true)) ++count;
  }
  if (!known) {
    return fail(ErrorCode::kNotFound,
                "no certificate '%s': give its serial number or KIND:NAME; `fabricmgr ca list` has "
                "both",
                which.c_str());
  }
  // The index first: lists are made from it, so none that comes later lets this one in again.
  TP_TRY(writeIndex(folder_, *entries));
  TP_TRY(writeCrl(folder_, *entries));
  return count;
}

Result<std::vector<Entry>> Authority::list() const { return readIndex(folder_); }

Result<std::vector<Entry>> Authority::own() const {
  const auto root = readCertificate(certificatePath());
  if (!root) return tl::unexpected(root.error());
  const auto crl_end = readCrlEnd(crlPath());
  if (!crl_end) return tl::unexpected(crl_end.error());
  return std::vector<Entry>{{root->serial, "ca", "root", root->not_after, false},
                            {"-", "crl", "revoked", *crl_end, false}};
}

}  // namespace tidepool::ca
