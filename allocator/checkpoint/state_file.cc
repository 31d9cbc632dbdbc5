// SPDX-License-Identifier: Apache-2.0
// State files: written at once, checked by the manifest's size and checksum.
#include "allocator/checkpoint/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "allocator/checkpoint/checkpoint_format.h"
#include "allocator/checkpoint/file_io.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

Result<ManifestState> writeState(const CheckpointDirectory& directory, uint64_t number,
                                 const std::string& bytes) {
  ManifestState state;
  state.name = CheckpointDirectory::stateName(number);
  state.size = Bytes(bytes.size());
  state.checksum = checksumOf(std::as_bytes(std::span(bytes)));
  const std::string file = directory.path() + "/" + state.name;
  const UniqueFd fd(
      openat(directory.fd(), state.name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.valid()) return tl::unexpected(fileError("cannot create", file));
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  if (!bytes.empty()) TP_TRY(writeAt(fd.get(), 0, {&part, 1}, file));
  if (fdatasync(fd.get()) != 0) return tl::unexpected(fileError("cannot write", file));
  return state;
}

Result<std::string> readState(const CheckpointDirectory& directory, const ManifestState& state) {
  const std::string file = directory.path() + "/" + state.name;
  const UniqueFd fd(openat(directory.fd(), state.name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return tl::unexpected(fileError("cannot open", file));
  struct stat about {};
  if (fstat(fd.get(), &about) != 0) return tl::unexpected(fileError("cannot read", file));
  std::string bytes;
  if (static_cast<uint64_t>(about.st_size) == state.size.value()) {
    bytes.resize(state.size.value());
    TP_TRY(readAt(fd.get(), 0, std::as_writable_bytes(std::span(bytes)), file));
    if (checksumOf(std::as_bytes(std::span(bytes))) == state.checksum) return bytes;
  }
  return fail(ErrorCode::kCorrupt,
              "%s is not what its manifest says; restore another checkpoint (`tidepool checkpoint "
              "verify` says which are whole)",
              file.c_str());
}

Result<std::string> loadState(const std::string& path, uint64_t number) {
  auto directory = CheckpointDirectory::open(path);
  if (!directory) return tl::unexpected(directory.error());
  auto manifest = directory->loadOrNewest(number);
  if (!manifest) return tl::unexpected(manifest.error());
  if (manifest->state) return readState(*directory, *manifest->state);
  return fail(ErrorCode::kNotFound, "checkpoint %llu of %s has tables alone, no state beside them",
              static_cast<unsigned long long>(manifest->number), path.c_str());
}

}  // namespace tidepool
