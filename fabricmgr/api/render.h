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

/// Notes which ids have to have names beside them, once the thing is rendered.
void collect(const fabric::RegionInfo& info, fabric::Names* names);
void collect(const fabric::Operation& operation, fabric::Names* names);
void collect(const fabric::ScrubEvidence& evidence, fabric::Names* names);
void collect(const fabric::Event& event, fabric::Names* names);
void collect(const fabric::Plan& plan, fabric::Names* names);
void collect(const fabric::RegionAccess& access, fabric::Names* names);

// Each writes one object. A name that is not among `names` is empty.
void render(JsonWriter& out, const fabric::RegionInfo& info, const fabric::Names& names);
void render(JsonWriter& out, const fabric::Operation& operation, const fabric::Names& names);
void render(JsonWriter& out, const fabric::ScrubEvidence& evidence, const fabric::Names& names);
void render(JsonWriter& out, const fabric::Event& event, const fabric::Names& names);
void render(JsonWriter& out, const fabric::Plan& plan, const fabric::Names& names);
void render(JsonWriter& out, const fabric::RegionAccess& access, const fabric::Names& names);
void render(JsonWriter& out, const fabric::PoolInfo& info);
void render(JsonWriter& out, const fabric::DeviceInfo& info);
void render(JsonWriter& out, const fabric::HostInfo& info);
void render(JsonWriter& out, const fabric::ResumedHosts& resumed);
void render(JsonWriter& out, const fabric::AuditRecord& record);
void render(JsonWriter& out, const fabric::AuditVerdict& verdict);
void render(JsonWriter& out, const fabric::RemovalReport& report);
void render(JsonWriter& out, const fabric::Answer& answer);
void render(JsonWriter& out, const fabric::Manager::Renewal& renewal);

}  // namespace tidepool::api
