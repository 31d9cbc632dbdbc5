// SPDX-License-Identifier: Apache-2.0
// Changes by libcxl and libdaxctl. Where they can do less than is needed the kernel's own attribute
// is used; docs/cxl.md says which and why.
#include "fabricmgr/cxl/bus.h"
#include "fabricmgr/cxl/library_context.h"

// libcxl has it from version 77 on; null with an older one.
extern "C" [[gnu::weak]] cxl_region* cxl_decoder_create_ram_region(cxl_decoder* decoder);

namespace tidepool::cxl {
namespace {

constexpr unsigned kTries = 8;  // for a name that somebody else took meanwhile

class LibraryBus final : public Bus {
 public:
  explicit LibraryBus(const Sysfs& sysfs) : sysfs_(sysfs) {}

  Result<Inventory> look() const override { return lookByLibrary(sysfs_); }

  Result<std::string> newRegion(const std::string& window) const override {
    if (cxl_decoder_create_ram_region != nullptr) {
      const auto made = newRegionByLibrary(window);
      if (made) return made;
      // It gives up when somebody else was quicker: go on by hand.
    }
    return newRegionByHand(window);
  }

  Status shape(const std::string& region, uint64_t granularity, Bytes size) const override {
    return onRegion(region, "shape", [&](cxl_region* one) {
      int answer =
          cxl_region_set_interleave_granularity(one, static_cast<unsigned int>(granularity));
      if (answer == 0) answer = cxl_region_set_interleave_ways(one, 1);
      return answer == 0 ? cxl_region_set_size(one, size.value()) : answer;
    });
  }

  Status reserve(const std::string& decoder, Bytes size) const override {
    const auto context = openLibcxl();
    if (!context) return tl::unexpected(context.error());
    const auto one = findDecoder(context->get(), decoder);
    if (!one) return tl::unexpected(one.error());
    // The kernel takes another mode only when nothing is reserved.
    const char* what = "reserve memory by";
    if (cxl_decoder_get_dpa_size(*one) != 0) {
      TP_TRY(answered(cxl_decoder_set_dpa_size(*one, 0), "give back memory of", decoder));
    }
    if (size == Bytes()) return {};
    TP_TRY(answered(cxl_decoder_set_mode(*one, CXL_DECODER_MODE_RAM), what, decoder));
    return answered(cxl_decoder_set_dpa_size(*one, size.value()), what, decoder);
  }

  Status setTarget(const std::string& region, const std::string& decoder) const override {
    const auto context = openLibcxl();
    if (!context) return tl::unexpected(context.error());
    const auto target = findDecoder(context->get(), decoder);
    if (!target) return tl::unexpected(target.error());
    const auto one = findRegion(context->get(), region);
    if (!one) return tl::unexpected(one.error());
    return answered(cxl_region_set_target(*one, 0, *target), "set the target of", region);
  }

  Status commit(const std::string& region) const override {
    return onRegion(region, "commit", cxl_region_decode_commit);
  }
  Status reset(const std::string& region) const override {
    return onRegion(region, "reset", cxl_region_decode_reset);
  }
  Status enable(const std::string& region) const override {
    return onRegion(region, "enable", cxl_region_enable);
  }
  Status disable(const std::string& region) const override {
    return onRegion(region, "disable", cxl_region_disable);
  }
  Status remove(const std::string& region) const override {
    return onRegion(region, "remove", cxl_region_delete);
  }

  Status enableDax(const std::string& dax, Mode mode) const override {
    const Status done = onDax(dax, "enable", [&](daxctl_dev* one) {
      return mode == Mode::kDevice ? daxctl_dev_enable_devdax(one) : daxctl_dev_enable_ram(one);
    });
    const std::string driver = driverOf(mode);
    if (done || sysfs_.exists("/sys/bus/dax/drivers/" + driver)) return done;
    return fail(ErrorCode::kUnsupported, "the kernel has no driver %s: modprobe %s", driver.c_str(),
                driver.c_str());
  }
  Status disableDax(const std::string& dax) const override {
    return onDax(dax, "disable", daxctl_dev_disable);
  }

 private:
  template <typename Work>
  static Status onRegion(const std::string& name, const char* what, Work work) {
    const auto context = openLibcxl();
    if (!context) return tl::unexpected(context.error());
    const auto region = findRegion(context->get(), name);
    if (!region) return tl::unexpected(region.error());
    return answered(work(*region), what, name);
  }

  template <typename Work>
  static Status onDax(const std::string& name, const char* what, Work work) {
    const auto context = openLibdaxctl();
    if (!context) return tl::unexpected(context.error());
    const auto dax = findDax(context->get(), name);
    if (!dax) return tl::unexpected(dax.error());
    return answered(work(*dax), what, name);
  }

  static Result<std::string> newRegionByLibrary(const std::string& window) {
    const auto context = openLibcxl();
    if (!context) return tl::unexpected(context.error());
    const auto decoder = findDecoder(context->get(), window);
    if (!decoder) return tl::unexpected(decoder.error());
    cxl_region* made = cxl_decoder_create_ram_region(*decoder);
    if (made != nullptr) return std::string(cxl_region_get_devname(made));
    return fail(ErrorCode::kRefused, "libcxl made no region of %.80s", window.c_str());
  }

  /// The kernel gives the name, and takes it back from the slower of two callers.
  Result<std::string> newRegionByHand(const std::string& window) const {
    const std::string path = kCxlDevices + window + "/create_ram_region";
    for (unsigned i = 0;; ++i) {
      const auto name = sysfs_.read(path);
      if (!name) return tl::unexpected(name.error());
      if (!isNumbered(*name, "region")) {
        return fail(ErrorCode::kCorrupt, "%.100s names no region", path.c_str());
      }
      const Status made = sysfs_.write(path, *name);
      if (made) return *name;
      if (made.error().code() != ErrorCode::kRefused || i == kTries) {
        return tl::unexpected(made.error());
      }
    }
  }

  const Sysfs& sysfs_;
};

}  // namespace

std::unique_ptr<const Bus> libraryBus(const Sysfs& sysfs) {
  return std::make_unique<const LibraryBus>(sysfs);
}

const char* driverOf(Mode mode) { return mode == Mode::kDevice ? "device_dax" : "kmem"; }

}  // namespace tidepool::cxl
