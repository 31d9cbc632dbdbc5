// SPDX-License-Identifier: Apache-2.0
// One connection, one question, one answer.
#include "runtime/agent_status.h"

#include <cstring>

#include "runtime/transport/agent_client.h"

namespace tidepool {

Status agentStatus(const char* path, std::span<char> out) {
  constexpr Nanoseconds kPatience(2'000'000'000);
  auto client = AgentClient::connect(*path == '\0' ? nullptr : path);
  if (!client) return tl::unexpected(client.error());
  TP_TRY((*client)->askStatus(1));
  for (;;) {
    AgentNotice notice;
    TP_TRY((*client)->wait(&notice, kPatience));
    if (notice.kind == agent_wire::NoticeKind::kRefused) {
      return fail(notice.error, "%.200s", notice.text);
    }
    if (notice.kind != agent_wire::NoticeKind::kStatus) continue;
    const size_t length = strlen(notice.text) + 1;
    if (length > out.size()) return fail(ErrorCode::kNoSpace, "the agent's answer is too long");
    memcpy(out.data(), notice.text, length);
    return {};
  }
}

}  // namespace tidepool
