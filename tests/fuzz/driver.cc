// SPDX-License-Identifier: Apache-2.0
// Connects fuzz.h with libFuzzer. With TIDEPOOL_FUZZ_SEEDS=DIR a program writes its seeds there and
// ends.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/base/unique_fd.h"
#include "tests/fuzz/fuzz.h"
#include "tests/scratch_folder.h"

namespace tidepool::fuzz {

std::string scratchFile(const char* name) {
  static const ScratchFolder scratch(ScratchFolder::inMemory());
  return scratch / name;
}

void write(const std::string& path, std::string_view bytes) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  TP_CHECK(file.valid());
  TP_CHECK_OP(::write(file.get(), bytes.data(), bytes.size()), ==,
              static_cast<ssize_t>(bytes.size()));
}

}  // namespace tidepool::fuzz

// NOLINTBEGIN(readability-identifier-naming): libFuzzer's names
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const folder = getenv("TIDEPOOL_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  size_t number = 0;
  for (const std::string& seed : tidepool::fuzz::seeds()) {
    tidepool::fuzz::write(std::string(folder) + "/seed" + std::to_string(number++), seed);
  }
  exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::fuzz::tryInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
// NOLINTEND(readability-identifier-naming)
