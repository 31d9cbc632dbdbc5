// SPDX-License-Identifier: Apache-2.0
// Pages of the audit, checked to follow each other, as lines of JSON or CSV (RFC 4180).
#include "fabricmgr/cli/audit_export.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "fabricmgr/process.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFields[] = {"sequence", "index", "time",    "time_ns",  "actor", "verb",
                                   "subject",  "id",    "outcome", "previous", "hash",  "changes"};

bool writeAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t now = write(fd, text.data() + done, text.size() - done);
    if (now < 0 && errno != EINTR) return false;
    if (now > 0) done += static_cast<size_t>(now);
  }
  return true;
}

/// A file without a name until publish(): whatever ends the process leaves nothing behind. Where
/// there is no such thing, as on NFS, it is called PATH.part until then.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), folder_(std::filesystem::path(path).parent_path().string()) {
    if (folder_.empty()) folder_ = ".";
    fd_ = UniqueFd(open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
    const bool unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL;
    if (fd_.valid() || !unknown) return;
    part_ = path_ + ".part";
    fd_ = UniqueFd(open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd_.valid()) part_.clear();
  }
  ~NewFile() {
    if (!part_.empty()) (void)unlink(part_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int fd() const { return fd_.get(); }
  /// False with errno: there is nothing at the path then, or what was there before.
  bool publish() {
    if (fsync(fd()) != 0) return false;
    const std::string from = part_.empty() ? fmt::format("/proc/self/fd/{}", fd()) : part_;
    if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return false;
    }
    const UniqueFd folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return folder.valid() && fsync(folder.get()) == 0;
  }

 private:
  std::string path_, folder_, part_;
  UniqueFd fd_;
};

struct Since {
  uint64_t sequence = 0;  // begin after it
  uint64_t time_ns = 0;   // begin with the first that is not older
};

Since sinceOf(const std::string& text) {
  Since since;
  if (text.empty()) return since;
  const bool digits =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (digits && text.size() < 19) {
    since.sequence = std::stoull(text);
    return since;
  }
  for (const char* form : {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"}) {
    std::tm parts = {};
    const char* end = strptime(text.c_str(), form, &parts);
    const int day = parts.tm_mday;
    const std::time_t seconds = timegm(&parts);
    // strptime takes a 31st of any month, and timegm makes it the first of the next.
    if (end == nullptr || *end != '\0' || seconds < 0 || day != parts.tm_mday) continue;
    since.time_ns = static_cast<uint64_t>(seconds) * 1'000'000'000;
    return since;
  }
  throw UsageError(
      fmt::format("--since: '{}' is neither a sequence nor a time in UTC, such as 2026-05-01 or "
                  "2026-05-01T12:00:00Z",
                  text));
}

std::string csvField(const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

std::string csvLine(const Json& record) {
  std::string line;
  for (const char* field : kFields) {
    line += (line.empty() ? "" : ",") + csvField(record.value(field, Json("")));
  }
  return line + "\r\n";
}

std::string csvHead() {
  std::string line;
  for (const char* field : kFields) line += (line.empty() ? "" : ",") + std::string(field);
  return line + "\r\n";
}

/// What has gone out, and whether the next record follows it.
struct Written {
  uint64_t records = 0, first = 0, last = 0;
  std::string head;  // hash of the last one

  /// Empty, or what is wrong.
  std::string add(const Json& record, const Since& since) {
    const uint64_t sequence = record.value("sequence", uint64_t{0});
    const uint64_t before = records > 0 ? last : since.sequence;
    if (before != 0 && since.time_ns == 0 && sequence > before + 1) {
      return fmt::format("records {} to {} are not kept any more", before + 1, sequence - 1);
    }
    if (records > 0 && (sequence != last + 1 || record.value("previous", "") != head)) {
      return fmt::format("record {} does not follow record {}: `fabricmgr audit verify`", sequence,
                         last);
    }
    if (records++ == 0) first = sequence;
    last = sequence;
    head = record.value("hash", "");
    return "";
  }
};

/// Writes all pages. kDone, or an exit code that has been said why.
int writePages(const ExportWish& wish, const Since& since, const Settings& settings, int fd,
               Written* written) {
  client::HttpClient client(settings.target);
  const bool csv = wish.format == "csv";
  if (csv && !writeAll(fd, csvHead())) return complain(std::strerror(errno), kFailed);
  for (uint64_t cursor = since.sequence;;) {
    const client::Reply reply = client.get(fmt::format("/v1/audit?limit=1000&cursor={}", cursor));
    if (!isGood(reply)) return failed(reply, settings.target);
    const Json page = Json::parse(reply.body, nullptr, false);
    if (!page.is_object()) return complain("the answer is not what was expected", kFailed);
    std::string text;
    for (const Json& record : page.value("items", Json::array())) {
      if (written->records == 0 && record.value("time_ns", uint64_t{0}) < since.time_ns) continue;
      const std::string wrong = written->add(record, since);
      if (!wrong.empty()) return complain(wrong, kFailed);
      text += csv ? csvLine(record) : record.dump() + "\n";
    }
    if (!writeAll(fd, text)) return complain(std::strerror(errno), kFailed);
    cursor = page.value("next", uint64_t{0});
    if (cursor == 0) return kDone;
  }
}

int toFile(const ExportWish& wish, const Since& since, const Settings& settings, Written* written) {
  const auto cannot = [&] {
    const int error = errno;
    return complain(fmt::format("cannot make {}: {}", wish.out, std::strerror(error)),
                    error == EEXIST ? kConflictCode : kFailed);
  };
  if (access(wish.out.c_str(), F_OK) == 0) {
    errno = EEXIST;
    return cannot();
  }
  NewFile file(wish.out);
  if (file.fd() < 0) return cannot();
  const int done = writePages(wish, since, settings, file.fd(), written);
  if (done != kDone) return done;
  return file.publish() ? kDone : cannot();
}

}  // namespace

int runExport(const ExportWish& wish, const Settings& settings) {
  const Since since = sinceOf(wish.since);
  Written written;
  const int done = wish.out.empty() ? writePages(wish, since, settings, STDOUT_FILENO, &written)
                                    : toFile(wish, since, settings, &written);
  if (done != kDone) return done;
  if (settings.json && !wish.out.empty()) {
    const Json line = {{"records", written.records},
                       {"first", written.first},
                       {"last", written.last},
                       {"head", written.head},
                       {"out", wish.out}};
    fmt::print("{}\n", line.dump());
  } else if (!settings.json) {
    fmt::print(stderr, "{} records, {} to {}\n", written.records, written.first, written.last);
  }
  return kDone;
}

}  // namespace tidepool::cli
