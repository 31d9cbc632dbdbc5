// SPDX-License-Identifier: Apache-2.0
// Events by what sysfs says of them, and rings by perf_event_open. Allocates at open() only.
#include "runtime/os/perf_events.h"

#ifdef __x86_64__
#include <asm/perf_regs.h>
#endif
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "runtime/base/mapping.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/text_buffer.h"
#include "runtime/base/unique_fd.h"
#include "runtime/os/probe.h"
#include "runtime/os/proc_files.h"

namespace tidepool {
namespace {

// 32 KiB: some 800 samples a processor and poll. Small enough for the memory that the kernel lets
// every user pin (perf_event_mlock_kb).
constexpr uint64_t kDataPages = 8;
// Samples a second and thread that the kernel aims at: far below what the sampling budget pays for,
// and it finds a page used once in a hundred thousand loads within seconds.
constexpr uint64_t kFrequency = 1000;
// Cycles: loads served by the first caches say nothing of where a page should be.
constexpr uint64_t kLeastLatency = 30;
constexpr uint8_t kPrecise = 2;  // the address of the load itself, without skid

using Path = ShortText<256>;

std::string_view readIn(const char* sources, std::string_view file, std::span<char> buffer) {
  Path path;
  path.append(sources);
  path.append('/');
  path.append(file);
  return path.overflowed() ? std::string_view() : readSysText(path.c_str(), buffer);
}

bool parseNumber(std::string_view text, int base, uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return error == std::errc() && end == text.data() + text.size();
}

/// A field of the event, "config1:0-15", and its value.
bool setField(MemoryEvent& event, std::string_view format, uint64_t value) {
  if (!format.starts_with("config")) return false;
  format.remove_prefix(6);
  size_t word = 0;
  if (format.starts_with('1') || format.starts_with('2')) {
    word = static_cast<size_t>(format[0] - '0');
    format.remove_prefix(1);
  }
  if (!format.starts_with(':')) return false;
  format.remove_prefix(1);
  uint64_t low = 0, high = 0;
  const size_t dash = format.find('-');
  if (!parseNumber(format.substr(0, dash), 10, low)) return false;
  high = low;
  if (dash != std::string_view::npos && !parseNumber(format.substr(dash + 1), 10, high)) {
    return false;
  }
  if (high > 63 || low > high) return false;
  const uint64_t mask = ~uint64_t{0} >> (63 - (high - low));
  event.config[word] = (event.config[word] & ~(mask << low)) | (value & mask) << low;
  return value <= mask;
}

/// One "name=0xcd" of a list; a name alone stands for 1.
bool setTerm(MemoryEvent& event, const char* source, std::string_view term) {
  const size_t equals = term.find('=');
  const std::string_view name = term.substr(0, equals);
  uint64_t value = 1;
  if (equals != std::string_view::npos) {
    std::string_view digits = term.substr(equals + 1);
    const bool hex = digits.starts_with("0x");
    if (hex) digits.remove_prefix(2);
    if (!parseNumber(digits, hex ? 16 : 10, value)) return false;
  }
  if (name == "ldlat") value = std::max(value, kLeastLatency);
  ShortText<80> file;
  file.append("format/");
  file.append(name);
  char buffer[64];
  return setField(event, readIn(source, file.view(), buffer), value);
}

/// Fills `event` from an event source; `terms` is the list of its event's fields.
bool describe(MemoryEvent& event, const char* source, std::string_view terms) {
  char buffer[64];
  uint64_t type = 0;
  if (!parseNumber(readIn(source, "type", buffer), 10, type)) return false;
  event.type = static_cast<uint32_t>(type);
  while (!terms.empty()) {
    const size_t comma = terms.find(',');
    if (!setTerm(event, source, terms.substr(0, comma))) return false;
    terms.remove_prefix(comma == std::string_view::npos ? terms.size() : comma + 1);
  }
  return true;
}

class KernelRing final : public PerfRing {
 public:
  KernelRing(UniqueFd fd, Mapping memory) : fd_(std::move(fd)), memory_(std::move(memory)) {}

  std::span<const std::byte> data() const override {
    return {memory_.data() + kPageSize, kDataPages * kPageSize};
  }
  uint64_t head() const override {
    return std::atomic_ref(control().data_head).load(std::memory_order_acquire);
  }
  void release(uint64_t tail) override {
    std::atomic_ref(control().data_tail).store(tail, std::memory_order_release);
  }
  void start() override { raw::ioctl(fd_.get(), PERF_EVENT_IOC_ENABLE, 0); }
  void stop() override { raw::ioctl(fd_.get(), PERF_EVENT_IOC_DISABLE, 0); }

 private:
  perf_event_mmap_page& control() const {
    return *reinterpret_cast<perf_event_mmap_page*>(memory_.data());
  }
  UniqueFd fd_;
  Mapping memory_;
};

ErrorCode openFailed() {
  if (errno == ENODEV || errno == ESRCH) return ErrorCode::kNotFound;
  return errno == EACCES || errno == EPERM ? ErrorCode::kPermission : ErrorCode::kUnsupported;
}

#ifdef __x86_64__
constexpr uint64_t bit(unsigned number) { return uint64_t{1} << number; }
// In the order of their numbers, which is that of the record.
constexpr uint64_t kGeneralRegisters =
    (bit(PERF_REG_X86_SP + 1) - 1) | (bit(PERF_REG_X86_R15 + 1) - bit(PERF_REG_X86_R8));
constexpr size_t kStackRegister = PERF_REG_X86_SP;
constexpr bool kSamplesRegisters = true;
#else
constexpr uint64_t kGeneralRegisters = 0;
constexpr size_t kStackRegister = 0;
constexpr bool kSamplesRegisters = false;
#endif

class KernelFaultRing final : public FaultRing {
 public:
  // One page of records: they are written backwards, so that the latest is where the head is.
  static constexpr uint64_t kSize = 2 * kPageSize;

  KernelFaultRing(UniqueFd fd, Mapping memory) : fd_(std::move(fd)), memory_(std::move(memory)) {}

  bool latest(FaultSample& out) const override {
    struct {
      perf_event_header header;
      uint64_t code;
      uint32_t process, thread;
      uint64_t address, abi;
      uint64_t registers[FaultSample::kRegisters];
    } record;
    auto& control = *reinterpret_cast<perf_event_mmap_page*>(memory_.data());
    // Acquire: the record is whole once the head is seen.
    const uint64_t head = std::atomic_ref(control.data_head).load(std::memory_order_acquire);
    const size_t begin = head % kPageSize;
    const size_t first = std::min(sizeof record, kPageSize - begin);
    std::memcpy(&record, memory_.data() + kPageSize + begin, first);
    std::memcpy(reinterpret_cast<std::byte*>(&record) + first, memory_.data() + kPageSize,
                sizeof record - first);
    if (head == 0 || record.header.type != PERF_RECORD_SAMPLE ||
        record.header.size != sizeof record || record.abi != PERF_SAMPLE_REGS_ABI_64) {
      return false;
    }
    out.code = record.code;
    out.address = record.address;
    out.thread = static_cast<int>(record.thread);
    std::copy(std::begin(record.registers), std::end(record.registers), out.registers.begin());
    out.stack = record.registers[kStackRegister];
    return true;
  }

 private:
  UniqueFd fd_;
  Mapping memory_;
};

/// Whether a seccomp filter judges the calls of this thread. It may kill for this one, which few
/// filters know of.
bool isFiltered() {
  char text[4096];
  if (!os::readProc("thread-self/status", text, sizeof text)) return true;
  const char* const mode = strstr(text, "\nSeccomp:\t");
  return mode != nullptr && mode[strlen("\nSeccomp:\t")] != '0';
}

Result<UniqueFd> openEvent(perf_event_attr& attr, int thread, int cpu, const char* what) {
  if (isFiltered()) {
    return fail(ErrorCode::kUnsupported, "cannot sample %s: a seccomp filter may forbid it", what);
  }
  UniqueFd fd(static_cast<int>(
      raw::call(SYS_perf_event_open, &attr, thread, cpu, -1, PERF_FLAG_FD_CLOEXEC)));
  if (!fd.valid()) return failErrno(openFailed(), "cannot sample %s", what);
  return fd;
}

class KernelPerfPort final : public PerfPort {
 public:
  Result<std::unique_ptr<FaultRing>> openFaults(int thread) override {
    if (!kSamplesRegisters) {
      return fail(ErrorCode::kUnsupported, "registers are not sampled on this kind of processor");
    }
    perf_event_attr attr = {};
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_PAGE_FAULTS;
    attr.sample_period = 1;
    attr.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_ADDR | PERF_SAMPLE_REGS_USER;
    attr.sample_regs_user = kGeneralRegisters;
    attr.exclude_kernel = 1;
    attr.exclude_hv = 1;
    attr.write_backward = 1;
    Result<UniqueFd> fd = openEvent(attr, thread, -1, "faults of a thread");
    if (!fd) return tl::unexpected(fd.error());
    fd->keep();
    // Readable only: the kernel then overwrites what nobody has read.
    auto memory = Mapping::sharedFileReadable(fd->get(), Bytes(KernelFaultRing::kSize));
    if (!memory) return tl::unexpected(memory.error());
    return std::unique_ptr<FaultRing>(new KernelFaultRing(std::move(*fd), std::move(*memory)));
  }

  Result<std::unique_ptr<PerfRing>> open(const MemoryEvent& event, uint64_t sample_type,
                                         int cpu) override {
    perf_event_attr attr = {};
    attr.size = sizeof attr;
    attr.type = event.type;
    attr.config = event.config[0];
    attr.config1 = event.config[1];
    attr.config2 = event.config[2];
    attr.precise_ip = event.precise;
    attr.sample_type = sample_type;
    attr.freq = 1;
    attr.sample_freq = kFrequency;
    attr.disabled = 1;
    attr.inherit = 1;
    attr.inherit_thread = 1;  // not forked children
    attr.exclude_kernel = 1;
    attr.exclude_hv = 1;
    Result<UniqueFd> fd = openEvent(attr, 0, cpu, event.name);
    if (!fd) return tl::unexpected(fd.error());
    auto memory = Mapping::sharedFile(fd->get(), Bytes(), Bytes((1 + kDataPages) * kPageSize));
    if (!memory) return tl::unexpected(memory.error());
    return std::unique_ptr<PerfRing>(new KernelRing(std::move(*fd), std::move(*memory)));
  }
};

}  // namespace

Result<MemoryEvent> findMemoryEvent(const char* sources) {
  char terms[128];
  // Processors with two kinds of cores have a source for each; the first is that of the fast ones.
  for (const std::string_view name : {"cpu", "cpu_core"}) {
    Path source;
    source.append(sources);
    source.append('/');
    source.append(name);
    const std::string_view event_terms = readIn(source.c_str(), "events/mem-loads", terms);
    if (event_terms.empty()) continue;
    MemoryEvent event{.name = "pebs", .precise = kPrecise};
    char aux[64];
    if (!readIn(source.c_str(), "events/mem-loads-aux", aux).empty()) {
      return fail(ErrorCode::kUnsupported, "mem-loads needs an auxiliary event here");
    }
    if (describe(event, source.c_str(), event_terms)) return event;
    return fail(ErrorCode::kUnsupported, "cannot read the description of mem-loads");
  }
  Path source;
  source.append(sources);
  source.append("/ibs_op");
  MemoryEvent event{.name = "ibs"};
  if (describe(event, source.c_str(), {})) return event;
  return fail(ErrorCode::kNotFound, "no memory sampling hardware");
}

std::unique_ptr<PerfPort> openKernelPerfPort() { return std::make_unique<KernelPerfPort>(); }

}  // namespace tidepool
