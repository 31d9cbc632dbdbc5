// SPDX-License-Identifier: Apache-2.0
// Certificates of one authority, for a test's managers and memory servers.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/ca/authority.h"
#include "fabricmgr/tls/tls_context.h"
#include "tests/fabricmgr/fabric_fixture.h"

namespace tidepool::fabric {

/// An authority in a folder of its own.
class Certificates {
 public:
  /// Files of a new certificate; of the list of revoked ones too.
  TlsFiles files(const std::string& kind, const std::string& name,
                 int64_t valid_seconds = 86'400) const {
    const std::string out = folder_ / std::to_string(count_++);
    const auto hosts =
        kind == "server" ? std::vector<std::string>{"127.0.0.1"} : std::vector<std::string>{};
    const auto issued = must(authority_.issue({kind, name, hosts, valid_seconds}, out));
    return {issued.certificate, issued.key, authority_.certificatePath(), authority_.crlPath()};
  }
  std::shared_ptr<TlsInUse> tls(const std::string& kind, const std::string& name) const {
    return must(TlsInUse::load(files(kind, name)));
  }
  void revoke(const std::string& which) const { must(authority_.revoke(which)); }
  void renew(const TlsFiles& files, int64_t valid_seconds) const {
    must(authority_.renew(files.certificate, valid_seconds));
  }

  static const Certificates& ofTheTests() {
    static const Certificates one;
    return one;
  }

 private:
  Folder folder_;
  ca::Authority authority_ = *ca::Authority::init(folder_ / "ca", 8'640'000);
  mutable int count_ = 0;
};

/// What the tests' managers show, and the memory server that is a device of that name.
inline std::shared_ptr<TlsInUse> managerTls() {
  static const auto tls = Certificates::ofTheTests().tls("manager", "main");
  return tls;
}
inline std::shared_ptr<TlsInUse> memserverTls(const std::string& device = "m1") {
  return Certificates::ofTheTests().tls("memserver", device);
}

}  // namespace tidepool::fabric
