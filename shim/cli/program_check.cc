// SPDX-License-Identifier: Apache-2.0
// Program and preload library look-up. See program_check.h. The ELF file is not trusted: every
// offset is checked against the file's size.
#include "shim/cli/program_check.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace tidepool::cli {
namespace {

// A script's interpreter may be a script, as far as the kernel follows (BINPRM_MAX_RECURSION).
constexpr int kMostInterpreters = 4;

/// Reads of a file at checked offsets.
class ElfFile {
 public:
  explicit ElfFile(int fd) : fd_(fd) {}

  /// Fills `out` from `offset`; false if the file does not hold that much.
  template <typename T>
  bool readAt(uint64_t offset, T& out) const {
    return pread(fd_, &out, sizeof out, static_cast<off_t>(offset)) == sizeof out;
  }
  bool bytesAt(uint64_t offset, char* out, size_t size) const {
    return pread(fd_, out, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
  }
  /// The bytes of a section; empty if it is absurd.
  std::vector<char> section(const Elf64_Shdr& header) const {
    constexpr uint64_t kMostBytes = 256u << 20;
    if (header.sh_type == SHT_NOBITS || header.sh_size > kMostBytes) return {};
    std::vector<char> bytes(header.sh_size);
    const ssize_t got =
        pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(header.sh_offset));
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }

 private:
  int fd_;
};

/// The loader that the program asks for; empty if none.
std::string interpreterOf(const ElfFile& file, const Elf64_Ehdr& header) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!file.readAt(header.e_phoff + uint64_t{i} * sizeof segment, segment)) return {};
    if (segment.p_type != PT_INTERP || segment.p_filesz >= PATH_MAX) continue;
    std::array<char, PATH_MAX> path{};
    if (!file.bytesAt(segment.p_offset, path.data(), segment.p_filesz)) return {};
    return path.data();
  }
  return {};
}

/// The sanitizer whose runtime the program carries or wants; null if none.
const char* sanitizerOf(const ElfFile& file, const Elf64_Ehdr& header) {
  constexpr std::pair<std::string_view, const char*> kMarks[] = {
      {"__asan_init", "AddressSanitizer"},
      {"__tsan_init", "ThreadSanitizer"},
      {"__msan_init", "MemorySanitizer"},
      {"__hwasan_init", "HWAddressSanitizer"}};
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!file.readAt(header.e_shoff + uint64_t{i} * sizeof section, section)) return nullptr;
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= header.e_shnum) continue;
    Elf64_Shdr strings;
    if (!file.readAt(header.e_shoff + uint64_t{section.sh_link} * sizeof strings, strings)) {
      return nullptr;
    }
    const std::vector<char> names = file.section(strings);
    const std::string_view text(names.data(), names.size());
    for (const auto& [mark, name] : kMarks) {
      // Dynamic symbol names stand between NULs.
      if (text.find('\0' + std::string(mark) + '\0') != std::string_view::npos) return name;
    }
  }
  return nullptr;
}

Status checkElf(const std::string& path, const ElfFile& file) {
  Elf64_Ehdr header;
  if (!file.readAt(0, header) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_machine != EM_X86_64) {
    return fail(ErrorCode::kUnsupported,
                "%s is built for another architecture: Tidepool can only serve 64-bit programs of "
                "this machine's kind",
                path.c_str());
  }
  const std::string loader = interpreterOf(file, header);
  if (loader.empty()) {
    return fail(ErrorCode::kUnsupported,
                "%s is statically linked, and LD_PRELOAD does not reach static programs: link it "
                "dynamically, or use the allocator API",
                path.c_str());
  }
  if (!loader.substr(loader.rfind('/') + 1).starts_with("ld-linux")) {
    return fail(
        ErrorCode::kUnsupported,
        "%s is of another C library (its loader is %s), which cannot load Tidepool's: run a "
        "build for glibc",
        path.c_str(), loader.c_str());
  }
  const char* sanitizer = sanitizerOf(file, header);
  if (sanitizer == nullptr) return {};
  return fail(ErrorCode::kUnsupported,
              "%s is built with %s, which must own malloc itself: run a build without it",
              path.c_str(), sanitizer);
}

/// The loader drops LD_PRELOAD when a program gains rights by being executed (AT_SECURE).
Status checkRights(const std::string& path, int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0)
    return failErrno(ErrorCode::kNotFound, "cannot read %s", path.c_str());
  const bool gains_user = (status.st_mode & S_ISUID) != 0 && status.st_uid != getuid();
  const bool gains_group = (status.st_mode & S_ISGID) != 0 && status.st_gid != getgid();
  const bool gains_rights = getuid() != 0 && fgetxattr(fd, "security.capability", nullptr, 0) > 0;
  if (!gains_user && !gains_group && !gains_rights) return {};
  return fail(ErrorCode::kUnsupported,
              "%s is %s, and the loader ignores LD_PRELOAD for such programs: run a copy without "
              "that right, as the user it needs",
              path.c_str(),
              gains_user    ? "set-user-ID"
              : gains_group ? "set-group-ID"
                            : "given file capabilities");
}

/// With an audit library the loader keeps too little room for thread-local data of preloads.
Status checkAudit() {
  const char* const audit = getenv("LD_AUDIT");
  const char* const tunables = getenv("GLIBC_TUNABLES");
  if (audit == nullptr || audit[0] == '\0' ||
      (tunables != nullptr && strstr(tunables, "glibc.rtld.optional_static_tls=") != nullptr)) {
    return {};
  }
  return fail(
      ErrorCode::kUnsupported,
      "LD_AUDIT is set, with which the loader has no room for Tidepool's thread-local data: "
      "unset it, or set GLIBC_TUNABLES=glibc.rtld.optional_static_tls=0x4000");
}

bool isExecutableFile(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

/// The interpreter that "#!" names on a script's first line; empty if `text` is no such line.
std::string shebang(std::string_view text) {
  if (!text.starts_with("#!")) return {};
  text = text.substr(2, text.find('\n') - 2);
  const size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return {};
  text.remove_prefix(start);
  const std::string_view interpreter = text.substr(0, text.find_first_of(" \t"));
  if (!interpreter.ends_with("/env")) return std::string(interpreter);
  // `#!/usr/bin/env python3`: what counts is the program that env will run.
  const size_t name = text.find_first_not_of(" \t", interpreter.size());
  if (name == std::string_view::npos) return std::string(interpreter);
  const std::string_view word = text.substr(name, text.find_first_of(" \t", name) - name);
  const Result<std::string> found = findProgram(std::string(word));
  return found ? *found : std::string(interpreter);
}

}  // namespace

Result<std::string> findProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (access(name.c_str(), F_OK) != 0) {
      return failErrno(ErrorCode::kNotFound, "cannot run %s", name.c_str());
    }
    if (isExecutableFile(name)) return name;
    return fail(ErrorCode::kPermission, "cannot run %s: it is not an executable file (`chmod +x`?)",
                name.c_str());
  }
  const char* path = getenv("PATH");
  std::string rest = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  std::string refused;
  rest += ':';
  for (size_t colon = rest.find(':'); colon != std::string::npos; colon = rest.find(':')) {
    const std::string folder = colon == 0 ? "." : rest.substr(0, colon);
    rest.erase(0, colon + 1);
    const std::string candidate = folder + "/" + name;
    if (isExecutableFile(candidate)) return candidate;
    struct stat status;
    if (stat(candidate.c_str(), &status) == 0 && S_ISREG(status.st_mode)) refused = candidate;
  }
  if (!refused.empty()) {
    return fail(ErrorCode::kPermission, "cannot run %s: it is not executable (`chmod +x`?)",
                refused.c_str());
  }
  return fail(ErrorCode::kNotFound, "cannot find the program '%s': give its path, or check PATH",
              name.c_str());
}

Status checkPreloadable(const std::string& path) {
  TP_TRY(checkAudit());
  std::string file = path;
  for (int i = 0; i < kMostInterpreters; ++i) {
    const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
    // Executable but not readable: the kernel can run it, we cannot look inside.
    if (!fd.valid()) return {};
    TP_TRY(checkRights(file, fd.get()));
    char head[256];
    const ssize_t length = pread(fd.get(), head, sizeof head, 0);
    const std::string_view text(head, length > 0 ? static_cast<size_t>(length) : 0);
    if (text.starts_with(std::string_view(ELFMAG, SELFMAG))) {
      return checkElf(file, ElfFile(fd.get()));
    }
    file = shebang(text);
    // No "#!" either: the shell runs it, as execvp does.
    if (file.empty()) return {};
  }
  return {};
}

Result<std::string> findPreloadLibrary() {
  constexpr const char* kName = "libtidepool-preload.so";
  std::vector<std::string> places;
  const char* given = getenv("TIDEPOOL_PRELOAD");
  if (given != nullptr && given[0] != '\0') {
    places.emplace_back(given);
  } else {
    char self[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
    std::string folder(self, length > 0 ? static_cast<size_t>(length) : 0);
    const size_t slash = folder.rfind('/');
    folder.resize(slash == std::string::npos ? 0 : slash);
    places.push_back(fmt::format("{}/../lib/{}", folder, kName));
    places.push_back(fmt::format("{}/../{}/{}", folder, TIDEPOOL_LIBDIR, kName));
    places.push_back(fmt::format("{}/{}", TIDEPOOL_FULL_LIBDIR, kName));
  }
  for (const std::string& place : places) {
    char full[PATH_MAX];
    if (realpath(place.c_str(), full) == nullptr) continue;
    const std::string found = full;
    if (found.find_first_of(" \t:") == std::string::npos) return found;
    return fail(ErrorCode::kInvalidArgument,
                "the preload library's path has a blank or colon, which LD_PRELOAD cannot say: %s: "
                "copy it elsewhere and set TIDEPOOL_PRELOAD",
                found.c_str());
  }
  return fail(ErrorCode::kNotFound,
              "cannot find %s (looked at %.100s): build or install it, or set TIDEPOOL_PRELOAD",
              kName, places.front().c_str());
}

}  // namespace tidepool::cli
