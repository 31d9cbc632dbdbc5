// SPDX-License-Identifier: Apache-2.0
// JSON and tables of an inventory.
#include "fabricmgr/cxl/describe.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fabricmgr/cxl/memory_blocks.h"
#include "fabricmgr/cxl/region_steps.h"

namespace tidepool::cxl {
namespace {

using Json = nlohmann::ordered_json;

/// What a device says of itself may be any bytes.
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Bytes onlineBytes(const Sysfs& sysfs, const DaxDevice& dax) {
  Bytes online;
  const auto blocks = blocksOf(sysfs, dax);
  if (!blocks) return online;
  for (const MemoryBlock& block : *blocks) {
    if (block.online) online += block.size;
  }
  return online;
}

Json daxObject(const Sysfs& sysfs, const DaxDevice& dax) {
  return {{"name", dax.name},
          {"driver", dax.driver},
          {"start", dax.start},
          {"size_bytes", dax.size.value()},
          {"align_bytes", dax.align.value()},
          {"numa_node", dax.node},
          {"online_bytes", onlineBytes(sysfs, dax).value()}};
}

Json regionObject(const Sysfs& sysfs, const Region& region) {
  Json dax = Json::array();
  for (const DaxDevice& one : region.dax) dax.push_back(daxObject(sysfs, one));
  return {{"name", region.name},           {"window", region.root},
          {"start", region.start},         {"size_bytes", region.size.value()},
          {"ways", region.ways},           {"targets", region.targets},
          {"committed", region.committed}, {"bound", region.bound},
          {"dax", std::move(dax)}};
}

Json memdevObject(const Sysfs& sysfs, const Inventory& inventory, const Memdev& memdev) {
  Json regions = Json::array();
  for (const Region* one : inventory.regionsOf(memdev)) regions.push_back(one->name);
  Json decoders = Json::array();
  for (const std::string& name : memdev.decoders) {
    const Decoder* one = inventory.decoder(name);
    if (one == nullptr) continue;
    decoders.push_back({{"name", name},
                        {"region", one->region},
                        {"mode", one->mode},
                        {"reserved_bytes", one->dpa_size.value()},
                        {"size_bytes", one->size.value()}});
  }
  return {{"name", memdev.name},
          {"serial", fmt::format("{:#x}", memdev.serial)},
          {"state", stateOf(sysfs, inventory, memdev)},
          {"ram_bytes", memdev.ram.value()},
          {"pmem_bytes", memdev.pmem.value()},
          {"firmware", memdev.firmware},
          {"security", memdev.security},
          {"regions", std::move(regions)},
          {"decoders", std::move(decoders)}};
}

/// "dax0.0" and where it went, of a device's only region.
std::string useOf(const Inventory& inventory, const Memdev& memdev) {
  const auto region = onlyRegionOf(inventory, memdev);
  if (!region || *region == nullptr || (*region)->dax.empty()) return "-";
  const DaxDevice& dax = (*region)->dax.front();
  return dax.driver == driverOf(Mode::kSystemRam) ? fmt::format("node {}", dax.node)
                                                  : "/dev/" + dax.name;
}

}  // namespace

std::string stateOf(const Sysfs& sysfs, const Inventory& inventory, const Memdev& memdev) {
  if (memdev.security == "sanitize") return "sanitizing";
  if (memdev.endpoint.empty()) return "not-ready";
  const auto region = onlyRegionOf(inventory, memdev);
  if (!region) return "foreign";
  if (*region == nullptr) {
    for (const std::string& name : memdev.decoders) {
      const Decoder* one = inventory.decoder(name);
      if (one != nullptr && one->dpa_size != Bytes()) return "half-made";
    }
    return "free";
  }
  if (!(*region)->committed) return "half-made";
  if ((*region)->dax.empty()) return "region";
  const DaxDevice& dax = (*region)->dax.front();
  if (dax.driver == driverOf(Mode::kDevice)) return "device";
  if (dax.driver != driverOf(Mode::kSystemRam)) return "region";
  return onlineBytes(sysfs, dax) == Bytes() ? "offline" : "system-ram";
}

std::string inventoryJson(const Sysfs& sysfs, const Inventory& inventory) {
  Json memdevs = Json::array(), windows = Json::array(), regions = Json::array();
  for (const Memdev& one : inventory.memdevs) {
    memdevs.push_back(memdevObject(sysfs, inventory, one));
  }
  for (const Decoder& one : inventory.decoders) {
    if (one.kind != Decoder::Kind::kRoot) continue;
    windows.push_back({{"name", one.name},
                       {"start", one.start},
                       {"size_bytes", one.size.value()},
                       {"ways", one.ways},
                       {"volatile", one.volatile_memory}});
  }
  for (const Region& one : inventory.regions) regions.push_back(regionObject(sysfs, one));
  return dumped({{"memdevs", std::move(memdevs)},
                 {"windows", std::move(windows)},
                 {"regions", std::move(regions)}});
}

std::string memdevJson(const Sysfs& sysfs, const Inventory& inventory, const Memdev& memdev) {
  return dumped(memdevObject(sysfs, inventory, memdev));
}

std::string healthJson(const Memdev& memdev, const Result<Health>& health,
                       const Result<std::vector<Poison>>& poison) {
  Json object = {{"memdev", memdev.name}, {"health", nullptr}};
  if (health) {
    object["health"] = {{"maintenance_needed", health->maintenance_needed},
                        {"performance_degraded", health->performance_degraded},
                        {"replacement_needed", health->replacement_needed},
                        {"media_normal", health->media_normal},
                        {"corrected_volatile_errors", health->corrected_volatile_errors},
                        {"life_used_percent", nullptr},
                        {"temperature_celsius", nullptr}};
    if (health->life_used_percent) {
      object["health"]["life_used_percent"] = *health->life_used_percent;
    }
    if (health->temperature_celsius) {
      object["health"]["temperature_celsius"] = *health->temperature_celsius;
    }
  }
  object["health_trouble"] = health ? "" : health.error().text();
  object["poison"] = nullptr;
  if (poison) {
    object["poison"] = Json::array();
    for (const Poison& one : *poison) {
      object["poison"].push_back({{"address", one.address},
                                  {"length_bytes", one.length},
                                  {"source", one.source},
                                  {"region", one.region}});
    }
  }
  object["poison_trouble"] = poison ? "" : poison.error().text();
  return dumped(object);
}

std::string healthText(const Memdev& memdev, const Result<Health>& health,
                       const Result<std::vector<Poison>>& poison) {
  std::string out;
  if (health) {
    const bool well = health->media_normal && !health->maintenance_needed &&
                      !health->performance_degraded && !health->replacement_needed;
    out += fmt::format("{}: {}\n", memdev.name, well ? "well" : "needs care (see --json)");
  } else {
    out += fmt::format("{}: health not known: {}\n", memdev.name, health.error().text());
  }
  if (!poison) return out + fmt::format("poison not known: {}\n", poison.error().text());
  out += fmt::format("{} poisoned places\n", poison->size());
  for (const Poison& one : *poison) {
    out += fmt::format("  {:#x}, {} bytes, {}{}\n", one.address, one.length, one.source,
                       one.region.empty() ? ", in no region" : ", in " + one.region);
  }
  return out;
}

std::string eventJson(const TraceEvent& event, const std::string& region) {
  return dumped({{"event", event.name}, {"region", region}, {"fields", event.fields}});
}

std::string inventoryTable(const Sysfs& sysfs, const Inventory& inventory) {
  std::string out = fmt::format("{:<8} {:<20} {:>10}  {:<10} {:<10} {}\n", "MEMDEV", "SERIAL",
                                "MIB", "REGION", "STATE", "USE");
  for (const Memdev& one : inventory.memdevs) {
    const auto regions = inventory.regionsOf(one);
    out += fmt::format("{:<8} {:<#20x} {:>10}  {:<10} {:<10} {}\n", one.name, one.serial,
                       one.ram.value() / kMiB, regions.empty() ? "-" : regions.front()->name,
                       stateOf(sysfs, inventory, one), useOf(inventory, one));
  }
  return out;
}

}  // namespace tidepool::cxl
