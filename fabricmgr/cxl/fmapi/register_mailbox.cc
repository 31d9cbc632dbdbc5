// SPDX-License-Identifier: Apache-2.0
// The mailbox protocol: payload and command, doorbell, wait, status, payload.
#include "fabricmgr/cxl/fmapi/register_mailbox.h"

namespace tidepool::cxl::fmapi {
namespace {

// The capabilities array: a register of 16 bytes that says what it is and how long, then one of 16
// bytes for each capability.
constexpr size_t kCapabilityBytes = 16;
constexpr uint64_t kCapabilityArrayId = 0;
constexpr uint32_t kPrimaryMailboxId = 2;

// A mailbox's registers, from its start.
constexpr size_t kCapabilities = 0x00;
constexpr size_t kControl = 0x04;
constexpr size_t kCommand = 0x08;
constexpr size_t kStatus = 0x10;
constexpr size_t kBackground = 0x18;
constexpr size_t kPayload = 0x20;
constexpr uint32_t kDoorbell = 1;
constexpr uint64_t kBackgroundRuns = 1;
constexpr uint32_t kGone32 = UINT32_MAX;
constexpr uint64_t kGone64 = UINT64_MAX;

// The specification's bounds of a payload: 256 bytes to 1 MiB.
constexpr unsigned kSmallestPayload = 8, kLargestPayload = 20;

uint64_t bits(uint64_t value, unsigned low, unsigned count) {
  return value >> low & ((uint64_t{1} << count) - 1);
}

tl::unexpected<Error> gone(Opcode opcode) {
  return fail(ErrorCode::kUnreachable, "%s: the device has gone", titleOf(opcode).c_str());
}

struct Place {
  size_t offset = 0, length = 0;
};

/// Where the primary mailbox's registers are.
Result<Place> findMailbox(const Registers& registers) {
  const size_t room = registers.bytes();
  if (room < kCapabilityBytes) {
    return fail(ErrorCode::kCorrupt, "device registers of %zu bytes", room);
  }
  const uint64_t head = registers.read64(0);
  if (head == kGone64) {
    return fail(ErrorCode::kUnreachable,
                "the device does not answer: its registers read as ones (is it in reset, or off?)");
  }
  const uint64_t count = bits(head, 32, 16);
  if (bits(head, 0, 16) != kCapabilityArrayId || (count + 1) * kCapabilityBytes > room) {
    return fail(ErrorCode::kCorrupt, "no array of CXL capabilities: id %u, %u entries",
                static_cast<unsigned>(bits(head, 0, 16)), static_cast<unsigned>(count));
  }
  for (size_t at = kCapabilityBytes; at <= count * kCapabilityBytes; at += kCapabilityBytes) {
    if (bits(registers.read32(at), 0, 16) != kPrimaryMailboxId) continue;
    const Place found = {registers.read32(at + 4), registers.read32(at + 8)};
    if (found.offset % 8 == 0 && found.length >= kPayload && found.offset <= room &&
        found.length <= room - found.offset) {
      return found;
    }
    return fail(ErrorCode::kCorrupt, "a mailbox at %zu, %zu bytes long, in registers of %zu bytes",
                found.offset, found.length, room);
  }
  return fail(ErrorCode::kCorrupt, "the device has no mailbox");
}

}  // namespace

Result<std::unique_ptr<RegisterMailbox>> RegisterMailbox::open(std::unique_ptr<Registers> registers,
                                                               const Clock& clock, Pause pause,
                                                               Patience patience) {
  const auto place = findMailbox(*registers);
  if (!place) return tl::unexpected(place.error());
  const uint64_t power = bits(registers->read32(place->offset + kCapabilities), 0, 5);
  if (power < kSmallestPayload || power > kLargestPayload ||
      (size_t{1} << power) > place->length - kPayload) {
    return fail(ErrorCode::kCorrupt, "a mailbox of %zu bytes with payloads of 2^%u bytes",
                place->length, static_cast<unsigned>(power));
  }
  return std::unique_ptr<RegisterMailbox>(new RegisterMailbox(
      std::move(registers), clock, std::move(pause), patience, place->offset, size_t{1} << power));
}

Status RegisterMailbox::awaitDoorbell(Opcode opcode, const char* trouble) {
  const Nanoseconds until = clock_.now() + patience_.command;
  for (;;) {
    // The time is read before the register: a look after the last pause always counts.
    const bool last = clock_.now() >= until;
    const uint32_t control = registers_->read32(mailbox_ + kControl);
    if (control == kGone32) {
      return gone(opcode);
    }
    if ((control & kDoorbell) == 0) return {};
    if (last) {
      return fail(ErrorCode::kTimedOut, "%s: %s", titleOf(opcode).c_str(), trouble);
    }
    pause_();
  }
}

void RegisterMailbox::writePayload(PayloadView request) {
  PayloadReader in(request);
  for (size_t at = 0; at < request.size(); at += 4) {
    registers_->write32(mailbox_ + kPayload + at, in.u32());
  }
}

Result<Payload> RegisterMailbox::readPayload(Opcode opcode) const {
  const size_t length = bits(registers_->read64(mailbox_ + kCommand), 16, 21);
  if (length > payload_bytes_) {
    return fail(ErrorCode::kCorrupt, "%s: an answer of %zu bytes; the mailbox has %zu",
                titleOf(opcode).c_str(), length, payload_bytes_);
  }
  PayloadWriter out;
  for (size_t at = 0; at < length; at += 4) {
    out.u32(registers_->read32(mailbox_ + kPayload + at));
  }
  // A device that went meanwhile read as ones.
  if (registers_->read64(mailbox_ + kStatus) == kGone64) return gone(opcode);
  Payload payload = out.take();
  payload.resize(length);
  return payload;
}

Status RegisterMailbox::awaitBackground(Opcode opcode) {
  const Nanoseconds until = clock_.now() + patience_.background;
  for (;;) {
    const bool last = clock_.now() >= until;
    const uint64_t status = registers_->read64(mailbox_ + kStatus);
    if (status == kGone64) {
      return gone(opcode);
    }
    const uint64_t background = registers_->read64(mailbox_ + kBackground);
    const auto running = static_cast<Opcode>(bits(background, 0, 16));
    if (running == opcode && (status & kBackgroundRuns) == 0) {
      return statusOf(opcode, static_cast<ReturnCode>(bits(background, 32, 16)),
                      static_cast<uint16_t>(bits(background, 48, 16)));
    }
    if (last) {
      return fail(ErrorCode::kTimedOut, "%s goes on in the background: %u percent",
                  titleOf(opcode).c_str(), static_cast<unsigned>(bits(background, 16, 7)));
    }
    pause_();
  }
}

Result<Payload> RegisterMailbox::call(Opcode opcode, PayloadView request) {
  if (request.size() > payload_bytes_) {
    return fail(ErrorCode::kInvalidArgument, "%s: a request of %zu bytes; the mailbox has %zu",
                titleOf(opcode).c_str(), request.size(), payload_bytes_);
  }
  TP_TRY(awaitDoorbell(opcode, "the mailbox is busy with another command; try again"));
  writePayload(request);
  registers_->write64(mailbox_ + kCommand,
                      static_cast<uint64_t>(opcode) | uint64_t{request.size()} << 16);
  registers_->write32(mailbox_ + kControl, registers_->read32(mailbox_ + kControl) | kDoorbell);
  TP_TRY(awaitDoorbell(opcode, "no answer in time; the device may hang, reset it"));
  const uint64_t status = registers_->read64(mailbox_ + kStatus);
  if (status == kGone64) return gone(opcode);
  const auto code = static_cast<ReturnCode>(bits(status, 32, 16));
  if (code == ReturnCode::kBackgroundStarted) {
    TP_TRY(awaitBackground(opcode));
    return Payload();
  }
  TP_TRY(statusOf(opcode, code, static_cast<uint16_t>(bits(status, 48, 16))));
  return readPayload(opcode);
}

}  // namespace tidepool::cxl::fmapi
