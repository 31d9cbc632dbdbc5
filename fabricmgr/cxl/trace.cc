// SPDX-License-Identifier: Apache-2.0
// Trace instances by tracefs.
#include "fabricmgr/cxl/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/unique_fd.h"

namespace tidepool::cxl {
namespace {

constexpr const char* kTracing = "/sys/kernel/tracing/";

/// "key=value" until the next " key=": values of some fields have spaces.
void parseFields(const std::string& text, std::map<std::string, std::string>* fields) {
  std::string key;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const size_t equals = word.find('=');
    if (equals != std::string::npos && equals > 0) {
      key = word.substr(0, equals);
      (*fields)[key] = word.substr(equals + 1);
    } else if (!key.empty() && !word.empty() && word != ":") {
      (*fields)[key] += " " + word;
    }
    at = end + 1;
  }
}

}  // namespace

std::string TraceEvent::field(const std::string& wanted) const {
  const auto found = fields.find(wanted);
  return found == fields.end() ? "" : found->second;
}

bool parseTraceLine(const std::string& line, TraceEvent* event) {
  // "TASK-PID [CPU] FLAGS TIME: cxl_poison: memdev=mem0 ..."; a task may have any name.
  const size_t fields = line.find(": memdev=");
  if (line.starts_with('#') || fields == std::string::npos) return false;
  const size_t name = line.rfind(' ', fields) + 1;
  if (line.compare(name, 4, "cxl_") != 0) return false;
  event->name = line.substr(name, fields - name);
  event->fields.clear();
  parseFields(line.substr(fields + 2), &event->fields);
  return true;
}

std::string regionOfEvent(const Inventory& inventory, const TraceEvent& event) {
  const std::string region = event.field("region");
  if (isNumbered(region, "region")) return region;
  const auto address = parseNumber(event.field("dpa"), Radix::kHex);
  const auto memdev = inventory.memdev(event.field("memdev"));
  if (!address || !memdev) return "";
  uint64_t start = 0;  // decoders take the device's memory one after the other
  for (const std::string& name : (*memdev)->decoders) {
    const Decoder* decoder = inventory.decoder(name);
    if (decoder == nullptr) continue;
    if (*address >= start && *address - start < decoder->dpa_size.value()) return decoder->region;
    start += decoder->dpa_size.value();
  }
  return "";
}

Result<std::unique_ptr<TraceReader>> TraceReader::open(const Sysfs& sysfs,
                                                       const std::string& event) {
  const std::string events = "events/cxl/" + (event.empty() ? event : event + "/") + "enable";
  if (!sysfs.exists(kTracing + events)) {
    return fail(ErrorCode::kUnsupported,
                "the kernel shows no %s: is tracefs mounted at %s, and are you root?",
                event.empty() ? "events of CXL" : event.c_str(), kTracing);
  }
  const std::string folder = fmt::format("{}instances/tidepool-{}", kTracing, getpid());
  if (mkdir(sysfs.inRoot(folder).c_str(), 0700) != 0 && errno != EEXIST) {
    const ErrorCode code = errno == EACCES ? ErrorCode::kPermission : ErrorCode::kIo;
    return failErrno(code, "cannot make %s", folder.c_str());
  }
  std::unique_ptr<TraceReader> reader(new TraceReader(sysfs, folder));
  TP_TRY(sysfs.write(folder + "/" + events, "1"));
  return reader;
}

TraceReader::~TraceReader() { rmdir(sysfs_.inRoot(folder_).c_str()); }

void TraceReader::drain(const std::function<void(const TraceEvent&)>& see) {
  // Reading this file consumes: nothing is shown twice, nor lost between two looks.
  const std::string path = sysfs_.inRoot(folder_ + "/trace_pipe");
  const UniqueFd pipe(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::string text;
  char piece[4096];
  for (ssize_t got; pipe.valid() && (got = read(pipe.get(), piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<size_t>(got));
  }
  TraceEvent event;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (parseTraceLine(text.substr(at, end - at), &event)) see(event);
    at = end + 1;
  }
}

}  // namespace tidepool::cxl
