// SPDX-License-Identifier: Apache-2.0
// The manager's things as JSON. What is written here is described in schemas.h; a test compares the
// two. Pure.
#pragma once

#include <string>

#include "fabricmgr/api/json_writer.h"
#include "fabricmgr/manager/manager.h"

namespace tidepool::api {

/// "2026-11-21T16:39:11.123Z"; empty for 0, which is never.
std::string timeText(Nanoseconds since_1970);

// Each writes one object.
void render(JsonWriter& out, const fabric::PoolInfo& info);
void render(JsonWriter& out, const fabric::DeviceInfo& info);
void render(JsonWriter& out, const fabric::HostInfo& info);
void render(JsonWriter& out, const fabric::ResumedHosts& resumed);
void render(JsonWriter& out, const fabric::RegionInfo& info);
void render(JsonWriter& out, const fabric::Operation& operation);
void render(JsonWriter& out, const fabric::ScrubEvidence& evidence);
void render(JsonWriter& out, const fabric::Event& event);
void render(JsonWriter& out, const fabric::AuditRecord& record);
void render(JsonWriter& out, const fabric::AuditVerdict& verdict);
void render(JsonWriter& out, const fabric::RemovalReport& report);
void render(JsonWriter& out, const fabric::Plan& plan);
void render(JsonWriter& out, const fabric::RegionAccess& access);
void render(JsonWriter& out, const fabric::Answer& answer);
void render(JsonWriter& out, const fabric::Manager::Renewal& renewal);

}  // namespace tidepool::api
