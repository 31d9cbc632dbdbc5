// SPDX-License-Identifier: Apache-2.0
// Making contexts, and finding objects in them by name.
#include "fabricmgr/cxl/library_context.h"

#include <cerrno>
#include <cstdarg>
#include <cstdlib>

#include "fabricmgr/cxl/sysfs.h"

namespace tidepool::cxl {
namespace {

void beSilent(cxl_ctx*, int, const char*, int, const char*, const char*, va_list) {}
void sayNothing(daxctl_ctx*, int, const char*, int, const char*, const char*, va_list) {}

tl::unexpected<Error> missing(const char* library, const std::string& name) {
  return fail(ErrorCode::kNotFound, "%s knows no %.80s", library, name.c_str());
}

}  // namespace

Result<CxlContext> openLibcxl() {
  cxl_ctx* made = nullptr;
  if (cxl_new(&made) != 0) return fail(ErrorCode::kIo, "libcxl does not start");
  cxl_set_log_fn(made, beSilent);
  return CxlContext(made, cxl_unref);
}

Result<DaxctlContext> openLibdaxctl() {
  daxctl_ctx* made = nullptr;
  if (daxctl_new(&made) != 0) return fail(ErrorCode::kIo, "libdaxctl does not start");
  daxctl_set_log_fn(made, sayNothing);
  return DaxctlContext(made, daxctl_unref);
}

Result<cxl_memdev*> findMemdev(cxl_ctx* context, const std::string& name) {
  cxl_memdev* memdev = nullptr;
  cxl_memdev_foreach(context, memdev) {
    if (name == cxl_memdev_get_devname(memdev)) return memdev;
  }
  return missing("libcxl", name);
}

Result<cxl_decoder*> findDecoder(cxl_ctx* context, const std::string& name) {
  cxl_decoder* decoder = cxl_decoder_get_by_name(context, name.c_str());
  if (decoder != nullptr) return decoder;
  return missing("libcxl", name);
}

void forRegions(cxl_ctx* context, const SeeRegion& see) {
  cxl_bus* bus = nullptr;
  cxl_bus_foreach(context, bus) {
    cxl_decoder* window = nullptr;
    cxl_decoder_foreach(cxl_bus_get_port(bus), window) {
      cxl_region* region = nullptr;
      cxl_region_foreach(window, region) see(window, region);
    }
  }
}

Result<cxl_region*> findRegion(cxl_ctx* context, const std::string& name) {
  cxl_region* found = nullptr;
  forRegions(context, [&](cxl_decoder*, cxl_region* region) {
    if (name == cxl_region_get_devname(region)) found = region;
  });
  if (found != nullptr) return found;
  return missing("libcxl", name);
}

Result<daxctl_dev*> findDax(daxctl_ctx* context, const std::string& name) {
  daxctl_region* region = nullptr;
  daxctl_region_foreach(context, region) {
    daxctl_dev* dax = nullptr;
    daxctl_dev_foreach(region, dax) {
      if (name == daxctl_dev_get_devname(dax)) return dax;
    }
  }
  return missing("libdaxctl", name);
}

Status answered(int answer, const char* what, const std::string& name) {
  if (answer == 0) return {};
  const int error = std::abs(answer);
  return tl::unexpected(
      Error::fromErrno(codeOfErrno(error), error, "cannot %s %.80s", what, name.c_str()));
}

}  // namespace tidepool::cxl
