// SPDX-License-Identifier: Apache-2.0
// Agent and manager of processes_fixture.h with one device more, whose memory is what programs get:
// a memory server's, if the parameter is "remote", else a pool file's.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fabricmgr/agent/processes_fixture.h"

namespace tidepool::agent {

class FarDevice : public AgentProcesses, public ::testing::WithParamInterface<std::string> {
 protected:
  bool remote() const { return GetParam() == "remote"; }

  /// `folder`: where a pool's file is. Where the kernel can make writers wait, in shared memory,
  /// pages move one by one; in a file on a disk, as on a device, whole granules.
  /// `agent`: options of the agent's, beside the usual.
  void addDevice(uint64_t bytes, const std::string& folder = "/dev/shm",
                 const std::vector<std::string>& agent = {}) {
    if (remote()) {
      lend(std::to_string(bytes));
    } else {
      pool_ = folder + "/tidepool-test-" + std::to_string(getpid());
      std::ofstream(pool_).close();
      std::filesystem::resize_file(pool_, bytes);
      post("/v1/pools", {{"name", "own"}, {"class", "cxl"}});
      post("/v1/devices", {{"name", "dev1"}, {"pool", "own"}, {"address", pool_}});
    }
    post("/v1/devices/dev0/cordon", Json::object());
    startAgent(agent);
    awaitHost();
  }
  void TearDown() override {
    if (pool_.empty()) return;
    std::filesystem::remove(pool_);
    std::filesystem::remove(pool_ + ".grants");
    std::filesystem::remove(pool_ + ".grants.lock");
  }

  uint64_t assignFar(uint64_t bytes) {
    return post("/v1/regions",
                {{"host", kHost}, {"size_bytes", bytes}, {"class", remote() ? "remote" : "cxl"}})
        .value("id", uint64_t{0});
  }

  std::string pool_;  // its file
};

}  // namespace tidepool::agent
