// SPDX-License-Identifier: Apache-2.0
// Health by libcxl, which speaks the mailbox's commands; poison by the kernel, which knows where
// regions are.
#include "fabricmgr/cxl/health.h"

#include <memory>

#include "fabricmgr/cxl/library_context.h"
#include "fabricmgr/cxl/trace.h"

namespace tidepool::cxl {
namespace {

Health healthOf(cxl_cmd* command) {
  Health health;
  health.maintenance_needed = cxl_cmd_health_info_get_maintenance_needed(command) > 0;
  health.performance_degraded = cxl_cmd_health_info_get_performance_degraded(command) > 0;
  health.replacement_needed = cxl_cmd_health_info_get_hw_replacement_needed(command) > 0;
  health.media_normal = cxl_cmd_health_info_get_media_normal(command) > 0;
  // A device may leave these out: libcxl then answers with a negative number.
  const int life = cxl_cmd_health_info_get_life_used(command);
  if (life >= 0) health.life_used_percent = static_cast<unsigned>(life);
  const int temperature = cxl_cmd_health_info_get_temperature(command);
  if (temperature != 0xffff && temperature != 0x7fff) health.temperature_celsius = temperature;
  const int errors = cxl_cmd_health_info_get_volatile_errors(command);
  if (errors > 0) health.corrected_volatile_errors = static_cast<unsigned>(errors);
  return health;
}

}  // namespace

Result<Health> readHealth(const std::string& memdev) {
  const auto context = openLibcxl();
  if (!context) return tl::unexpected(context.error());
  const auto device = findMemdev(context->get(), memdev);
  if (!device) return tl::unexpected(device.error());
  const std::unique_ptr<cxl_cmd, void (*)(cxl_cmd*)> command(cxl_cmd_new_get_health_info(*device),
                                                             cxl_cmd_unref);
  const int sent = command ? cxl_cmd_submit(command.get()) : -1;
  if (sent != 0 || cxl_cmd_get_mbox_status(command.get()) != 0) {
    return fail(ErrorCode::kUnsupported, "%s does not tell its health", memdev.c_str());
  }
  return healthOf(command.get());
}

Result<std::vector<Poison>> readPoison(const Sysfs& sysfs, const Inventory& inventory,
                                       const Memdev& memdev) {
  const std::string trigger = kCxlDevices + memdev.name + "/trigger_poison_list";
  if (!sysfs.exists(trigger)) {
    return fail(ErrorCode::kUnsupported, "%s has no poison list", memdev.name.c_str());
  }
  const auto reader = TraceReader::open(sysfs, "cxl_poison");
  if (!reader) return tl::unexpected(reader.error());
  TP_TRY(sysfs.write(trigger, "1"));
  std::vector<Poison> list;
  (*reader)->drain([&](const TraceEvent& event) {
    if (event.field("memdev") != memdev.name || event.field("trace_type") != "List") return;
    const auto address = parseNumber(event.field("dpa"), Radix::kHex);
    const auto length = parseNumber(event.field("dpa_length"), Radix::kHex);
    if (!address || !length) return;
    list.push_back({*address, *length, event.field("source"), regionOfEvent(inventory, event)});
  });
  return list;
}

}  // namespace tidepool::cxl
