// SPDX-License-Identifier: Apache-2.0
// Contexts of libcxl and libdaxctl: what they know of the machine at one moment. The libraries
// cache what they read, so a context is made for a call and not kept. They print nothing: what goes
// wrong is said by our own errors. Not thread-safe.
#pragma once

#include <cxl/libcxl.h>
#include <daxctl/libdaxctl.h>

#include <functional>
#include <memory>
#include <string>

#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/sysfs.h"
#include "runtime/base/result.h"

namespace tidepool::cxl {

using CxlContext = std::unique_ptr<cxl_ctx, void (*)(cxl_ctx*)>;
using DaxctlContext = std::unique_ptr<daxctl_ctx, void (*)(daxctl_ctx*)>;

/// Errors: kIo.
Result<CxlContext> openLibcxl();
Result<DaxctlContext> openLibdaxctl();

// What is found lives as long as the context. Errors: kNotFound.
Result<cxl_memdev*> findMemdev(cxl_ctx* context, const std::string& name);
Result<cxl_decoder*> findDecoder(cxl_ctx* context, const std::string& name);
Result<cxl_region*> findRegion(cxl_ctx* context, const std::string& name);
Result<daxctl_dev*> findDax(daxctl_ctx* context, const std::string& name);

/// Windows have regions below them: all of them, each with its window.
using SeeRegion = std::function<void(cxl_decoder* window, cxl_region* region)>;
void forRegions(cxl_ctx* context, const SeeRegion& see);

/// The inventory as libcxl shows it, as Bus::look(). `sysfs` is read for what libcxl does not show.
Result<Inventory> lookByLibrary(const Sysfs& sysfs);

/// What a library answers: 0, or an errno, mostly negative. Errors: as of Bus.
Status answered(int answer, const char* what, const std::string& name);

}  // namespace tidepool::cxl
