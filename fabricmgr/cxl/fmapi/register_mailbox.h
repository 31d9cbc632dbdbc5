// SPDX-License-Identifier: Apache-2.0
// The primary mailbox of a CXL device or of a switch's CCI function, by its registers. Not
// thread-safe; its opener must be the only user of the mailbox. Source: CXL Specification
// 3.1, section 8.2.8 (capabilities array, mailbox registers).
#pragma once

#include <functional>
#include <memory>

#include "fabricmgr/cxl/fmapi/mailbox.h"
#include "fabricmgr/cxl/fmapi/registers.h"
#include "runtime/base/clock.h"
#include "runtime/base/units.h"

namespace tidepool::cxl::fmapi {

class RegisterMailbox final : public Mailbox {
 public:
  /// What is done between two looks at a register: a short sleep; tests move their clock on.
  using Pause = std::function<void()>;
  /// How long to wait: for the mailbox to take or finish a command, and for what goes on in the
  /// background.
  struct Patience {
    Nanoseconds command, background;
  };
  static constexpr Patience kPatience = {Nanoseconds(2'000'000'000), Nanoseconds(60'000'000'000)};

  /// Finds the mailbox in the registers. Errors: kUnreachable (all ones), kCorrupt (no mailbox, or
  /// one that is not within the registers).
  static Result<std::unique_ptr<RegisterMailbox>> open(std::unique_ptr<Registers> registers,
                                                       const Clock& clock, Pause pause,
                                                       Patience patience = kPatience);

  size_t payloadBytes() const override { return payload_bytes_; }
  Result<Payload> call(Opcode opcode, PayloadView request) override;

 private:
  RegisterMailbox(std::unique_ptr<Registers> registers, const Clock& clock, Pause pause,
                  Patience patience, size_t mailbox, size_t payload_bytes)
      : registers_(std::move(registers)),
        clock_(clock),
        pause_(std::move(pause)),
        patience_(patience),
        mailbox_(mailbox),
        payload_bytes_(payload_bytes) {}

  Status awaitDoorbell(Opcode opcode, const char* trouble);
  Status awaitBackground(Opcode opcode);
  Result<Payload> readPayload(Opcode opcode) const;
  void writePayload(PayloadView request);

  const std::unique_ptr<Registers> registers_;
  const Clock& clock_;
  const Pause pause_;
  const Patience patience_;
  const size_t mailbox_;  // where its registers begin
  const size_t payload_bytes_;
};

}  // namespace tidepool::cxl::fmapi
