// SPDX-License-Identifier: Apache-2.0
// Answers for people: tables, one thing, the status screen. Text on stdout; nothing else is
// touched.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "fabricmgr/cli/verbs.h"

namespace tidepool::cli {

std::string bytesText(uint64_t bytes);
std::string durationText(uint64_t milliseconds);

/// Header and rows; columns as wide as their longest value.
enum class Width : uint8_t { kUsual, kWide };
std::string tableOf(const nlohmann::ordered_json& items, std::span<const Column> columns,
                    Width width = Width::kUsual);
/// What each is called by the verbs, a line each: its name, or its number.
std::string namesOf(const nlohmann::ordered_json& items);
/// "field  value" a line, in the order of the answer; extents below each other.
std::string thingOf(const nlohmann::ordered_json& thing);
std::string statusOf(const nlohmann::ordered_json& status);
std::string healthOf(const nlohmann::ordered_json& health);
std::string eventLine(const nlohmann::ordered_json& event);

}  // namespace tidepool::cli
