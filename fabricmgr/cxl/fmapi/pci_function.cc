// SPDX-License-Identifier: Apache-2.0
// PCI functions through sysfs.
#include "fabricmgr/cxl/fmapi/pci_function.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/mapping.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr uint64_t kCciClass = 0x0c0b;  // base class and subclass; the interface is below
constexpr size_t kPlainBytes = 64;      // of a configuration space: what anybody may read
constexpr size_t kExtendedStart = 0x100, kConfigurationBytes = 4096;
constexpr uint16_t kDvsec = 0x23;  // the extended capability, and what is one of CXL
constexpr uint16_t kCxlVendor = 0x1e98;
constexpr uint16_t kRegisterLocator = 8;
constexpr uint8_t kDeviceRegisters = 3;
constexpr size_t kLocatorHeaderBytes = 12, kLocatorEntryBytes = 8;
constexpr uint8_t kBars = 6;

uint32_t word(PayloadView configuration, size_t at) {
  return PayloadReader(configuration.subspan(at, 4)).u32();
}

/// Of a Register Locator, the entry of the device registers.
Result<RegisterBlock> deviceEntry(PayloadView locator) {
  for (size_t at = kLocatorHeaderBytes; at + kLocatorEntryBytes <= locator.size();
       at += kLocatorEntryBytes) {
    const uint32_t low = word(locator, at);
    if ((low >> 8 & 0xff) != kDeviceRegisters) continue;
    RegisterBlock block;
    block.bar = low & 7;
    block.offset = (low & 0xffff0000) | uint64_t{word(locator, at + 4)} << 32;
    if (block.bar < kBars) return block;
    return fail(ErrorCode::kCorrupt, "its register locator names BAR %u",
                static_cast<unsigned>(block.bar));
  }
  return fail(ErrorCode::kUnsupported, "its register locator has no CXL device registers");
}

/// All of it, as far as the kernel lets this process read.
Result<Payload> readConfiguration(const Sysfs& sysfs, const std::string& address) {
  const std::string path = kPciDevices + address + "/config";
  const UniqueFd file(open(sysfs.inRoot(path).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return failErrno(ErrorCode::kIo, "cannot read %.150s", path.c_str());
  Payload bytes(kConfigurationBytes);
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t more =
        pread(file.get(), bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return failErrno(ErrorCode::kIo, "cannot read %.150s", path.c_str());
    if (more == 0) break;
    got += static_cast<size_t>(more);
  }
  bytes.resize(got);
  return bytes;
}

/// A function that is enabled for as long as this lives, if it was not before.
class Enabled {
 public:
  static Result<std::unique_ptr<Enabled>> make(const Sysfs& sysfs, const std::string& address) {
    std::string path = kPciDevices + address + "/enable";
    const auto before = sysfs.readNumber(path);
    if (!before) return tl::unexpected(before.error());
    if (*before == 0) TP_TRY(sysfs.write(path, "1"));
    return std::unique_ptr<Enabled>(new Enabled(sysfs, *before == 0 ? std::move(path) : ""));
  }
  ~Enabled() {
    if (!path_.empty()) (void)sysfs_.write(path_, "0");  // the device may be gone
  }
  Enabled(const Enabled&) = delete;
  Enabled& operator=(const Enabled&) = delete;

 private:
  Enabled(const Sysfs& sysfs, std::string path) : sysfs_(sysfs), path_(std::move(path)) {}
  const Sysfs& sysfs_;
  const std::string path_;  // empty: it was enabled already
};

/// Registers in a BAR. Each access is one of the processor's, of just that width.
class BarRegisters final : public Registers {
 public:
  BarRegisters(UniqueFd file, Mapping mapping, std::unique_ptr<Enabled> enabled)
      : file_(std::move(file)), enabled_(std::move(enabled)), mapping_(std::move(mapping)) {}

  size_t bytes() const override { return mapping_.size().value(); }
  uint32_t read32(size_t offset) const override { return *at<uint32_t>(offset); }
  uint64_t read64(size_t offset) const override { return *at<uint64_t>(offset); }
  void write32(size_t offset, uint32_t value) override { *at<uint32_t>(offset) = value; }
  void write64(size_t offset, uint64_t value) override { *at<uint64_t>(offset) = value; }

 private:
  template <typename Word>
  volatile Word* at(size_t offset) const {
    return reinterpret_cast<volatile Word*>(mapping_.data() + offset);
  }

  // Let go from the last to the first: who has the lock next enables the function anew.
  const UniqueFd file_;  // its lock is ours
  const std::unique_ptr<Enabled> enabled_;
  const Mapping mapping_;
};

/// The file of a BAR, locked.
Result<UniqueFd> openBar(const Sysfs& sysfs, const std::string& path) {
  UniqueFd file(open(sysfs.inRoot(path).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) {
    const bool refused = errno == EACCES || errno == EPERM;
    return failErrno(refused ? ErrorCode::kPermission : ErrorCode::kIo, "cannot open %.120s%s",
                     path.c_str(),
                     refused ? " (be root; a locked-down kernel refuses root, too)" : "");
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return failErrno(ErrorCode::kIo, "cannot lock %.150s", path.c_str());
  return fail(ErrorCode::kConflict, "another program talks to %.120s now; try again", path.c_str());
}

}  // namespace

std::vector<CciFunction> findSwitchCcis(const Sysfs& sysfs) {
  std::vector<CciFunction> found;
  for (const std::string& address : sysfs.list(kPciDevices)) {
    const std::string folder = kPciDevices + address;
    const auto number = [&](const char* name) {
      return sysfs.readNumber(folder + "/" + name).value_or(0);
    };
    if (number("class") >> 8 != kCciClass) continue;
    CciFunction function;
    function.address = address;
    function.vendor = static_cast<uint16_t>(number("vendor"));
    function.device = static_cast<uint16_t>(number("device"));
    found.push_back(std::move(function));
  }
  return found;
}

Result<RegisterBlock> locateDeviceRegisters(PayloadView configuration) {
  if (configuration.size() <= kPlainBytes) {
    return fail(ErrorCode::kPermission, "only root may read its configuration space; be root");
  }
  size_t at = kExtendedStart;
  // Each capability names the next; a chain of more than there is room for goes in circles.
  for (size_t hops = kConfigurationBytes / 8; hops > 0 && at >= kExtendedStart; --hops) {
    if (at % 4 != 0 || at + kLocatorHeaderBytes > configuration.size()) break;
    const uint32_t head = word(configuration, at), vendor = word(configuration, at + 4);
    const size_t length = vendor >> 20;
    if ((head & 0xffff) == kDvsec && (vendor & 0xffff) == kCxlVendor &&
        (word(configuration, at + 8) & 0xffff) == kRegisterLocator) {
      if (length <= configuration.size() - at)
        return deviceEntry(configuration.subspan(at, length));
      return fail(ErrorCode::kCorrupt, "its register locator of %zu bytes is cut off", length);
    }
    at = head >> 20;
  }
  return fail(ErrorCode::kUnsupported, "it has no CXL register locator");
}

Result<std::unique_ptr<Registers>> mapDeviceRegisters(const Sysfs& sysfs,
                                                      const std::string& address) {
  const std::string folder = kPciDevices + address;
  if (const std::string driver = sysfs.targetName(folder + "/driver"); !driver.empty()) {
    return fail(ErrorCode::kConflict, "driver %.60s has it; write %.20s to its `unbind` first",
                driver.c_str(), address.c_str());
  }
  const auto configuration = readConfiguration(sysfs, address);
  if (!configuration) return tl::unexpected(configuration.error());
  const auto block = locateDeviceRegisters(*configuration);
  if (!block) return tl::unexpected(block.error());
  auto file = openBar(sysfs, fmt::format("{}/resource{}", folder, block->bar));
  if (!file) return tl::unexpected(file.error());
  struct stat status;
  if (fstat(file->get(), &status) != 0) return failErrno(ErrorCode::kIo, "cannot see its BAR");
  const auto room = static_cast<uint64_t>(status.st_size);
  if (block->offset >= room) {
    return fail(ErrorCode::kCorrupt, "its registers begin beyond the end of BAR %u",
                static_cast<unsigned>(block->bar));
  }
  auto enabled = Enabled::make(sysfs, address);
  if (!enabled) return tl::unexpected(enabled.error());
  auto mapping =
      Mapping::sharedFile(file->get(), Bytes(block->offset), Bytes(room - block->offset));
  if (!mapping) return tl::unexpected(mapping.error());
  return std::unique_ptr<Registers>(
      new BarRegisters(std::move(*file), std::move(*mapping), std::move(*enabled)));
}

}  // namespace tidepool::cxl::fmapi
