// SPDX-License-Identifier: Apache-2.0
// A switch as the specification describes it, answering byte by byte: written apart from the code
// under test, with offsets instead of a writer, so that the two can disagree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "fabricmgr/cxl/fmapi/mailbox.h"

namespace tidepool::cxl::fmapi {

/// Writes little-endian numbers at offsets; grows as needed.
class Image {
 public:
  explicit Image(size_t bytes = 0) : bytes_(bytes) {}
  Image& put(size_t at, size_t width, uint64_t value) {
    if (bytes_.size() < at + width) bytes_.resize(at + width);
    for (size_t i = 0; i < width; ++i) bytes_[at + i] = static_cast<uint8_t>(value >> (8 * i));
    return *this;
  }
  Payload bytes() const { return bytes_; }
  operator PayloadView() const { return bytes_; }

 private:
  Payload bytes_;
};

inline uint64_t numberAt(PayloadView bytes, size_t at, size_t width) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) value |= uint64_t{bytes[at + i]} << (8 * i);
  return value;
}

struct FakeAnswer {
  uint16_t return_code = 0;
  Payload payload;
};

/// One component: its commands by opcode, and what is behind it by port or logical device.
struct FakeComponent {
  std::map<uint16_t, std::function<FakeAnswer(PayloadView)>> commands;
  std::map<uint8_t, FakeComponent> behind;

  FakeAnswer answer(uint16_t opcode, PayloadView request) const {
    if (opcode == 0x5300 && !behind.empty()) return tunnel(request);
    const auto found = commands.find(opcode);
    if (found == commands.end()) return {3, {}};
    return found->second(request);
  }
  void tells(uint16_t opcode, const Image& image) {
    commands[opcode] = [payload = image.bytes()](PayloadView) { return FakeAnswer{0, payload}; };
  }
  void fails(uint16_t opcode, uint16_t return_code) {
    commands[opcode] = [return_code](PayloadView) { return FakeAnswer{return_code, {}}; };
  }

 private:
  FakeAnswer tunnel(PayloadView request) const {
    if (request.size() < 16 || numberAt(request, 2, 2) != request.size() - 4) return {0x16, {}};
    const auto target = behind.find(request[0]);
    if (target == behind.end() || request[1] != 0 || request[4] != 0) return {2, {}};
    const auto opcode = static_cast<uint16_t>(numberAt(request, 7, 2));
    if (numberAt(request, 9, 3) != request.size() - 16) return {0x16, {}};
    const FakeAnswer inner = target->second.answer(opcode, request.subspan(16));
    Image out(16);
    out.put(0, 2, 12 + inner.payload.size()).put(4, 1, 1).put(5, 1, request[5]).put(7, 2, opcode);
    out.put(9, 3, inner.payload.size()).put(12, 2, inner.return_code);
    Payload bytes = out.bytes();
    bytes.insert(bytes.end(), inner.payload.begin(), inner.payload.end());
    return {0, bytes};
  }
};

/// The component as a mailbox.
class FakeMailbox final : public Mailbox {
 public:
  explicit FakeMailbox(const FakeComponent& component, size_t payload_bytes = 2048)
      : component_(component), payload_bytes_(payload_bytes) {}
  size_t payloadBytes() const override { return payload_bytes_; }
  Result<Payload> call(Opcode opcode, PayloadView request) override {
    calls.push_back(opcode);
    const FakeAnswer answer = component_.answer(static_cast<uint16_t>(opcode), request);
    const Status status = statusOf(opcode, static_cast<ReturnCode>(answer.return_code), 0);
    if (!status) return tl::unexpected(status.error());
    return answer.payload;
  }
  std::vector<Opcode> calls;

 private:
  const FakeComponent& component_;
  const size_t payload_bytes_;
};

inline Image identityImage(uint64_t serial, uint8_t component) {
  return Image(18)
      .put(0, 2, 0x19e5)
      .put(2, 2, 0xa128)
      .put(4, 2, 0x1af4)
      .put(6, 2, 0x1100)
      .put(8, 8, serial)
      .put(16, 1, 11)
      .put(17, 1, component);
}

/// A state as a port block has it; `type` is the device's, `configuration` the port's.
inline void putPort(Image& image, size_t at, uint8_t port, uint8_t configuration, uint8_t type) {
  image.put(at, 1, port).put(at + 1, 1, configuration).put(at + 2, 1, type == 0 ? 0 : 2);
  image.put(at + 4, 1, type).put(at + 5, 1, 6).put(at + 6, 1, 16).put(at + 7, 1, 8);
  image.put(at + 8, 1, 0x1f).put(at + 9, 1, 5).put(at + 10, 1, 4).put(at + 11, 1, 4);
  image.put(at + 12, 1, 1).put(at + 13, 2, 4).put(at + 15, 1, 3);
}

/// A switch with upstream port 32 and as many downstream ports, from 0 on, as there are types.
inline FakeComponent fakeSwitch(std::vector<uint8_t> types) {
  FakeComponent component;
  component.tells(0x0001, identityImage(0x5c0ffee, 0));
  Image about(0x49);
  about.put(0, 1, 32).put(2, 1, types.size() + 1).put(3, 1, 1).put(0x24, 1, 1);
  for (size_t i = 0; i < types.size(); ++i) {
    about.put(4 + i / 8, 1, about.bytes()[4 + i / 8] | 1u << i % 8);
  }
  about.put(8, 1, about.bytes()[8] | 1).put(0x44, 2, types.size() + 1).put(0x46, 2, 1);
  about.put(0x48, 1, 4);
  component.tells(0x5100, about);
  component.commands[0x5101] = [types = std::move(types)](PayloadView request) {
    if (request.empty() || request[0] != request.size() - 1) return FakeAnswer{2, {}};
    Image out(4);
    out.put(0, 1, request[0]);
    for (size_t i = 1; i < request.size(); ++i) {
      const uint8_t port = request[i];
      if (port != 32 && port >= types.size()) return FakeAnswer{2, {}};
      putPort(out, 4 + 16 * (i - 1), port, port == 32 ? 4 : 3, port == 32 ? 0 : types[port]);
    }
    return FakeAnswer{0, out.bytes()};
  };
  return component;
}

}  // namespace tidepool::cxl::fmapi
