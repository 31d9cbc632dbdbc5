// SPDX-License-Identifier: Apache-2.0
// The written form of changes. Stateless.
#include "fabricmgr/store/batch.h"

#include <fmt/format.h>

#include <iterator>

#include "fabricmgr/model/hash.h"

namespace tidepool::fabric {
namespace {

class Writer {
 public:
  explicit Writer(std::string* out) : to_(*out) {}

  void operator()(const Pool& pool) {
    line("pool {} name={} class={}", pool.id.value(), pool.name, nameOf(pool.memory_class));
  }
  void operator()(const DropPool& drop) { line("drop-pool {}", drop.id.value()); }
  void operator()(const Device& device) {
    line(
        "device {} pool={} name={} class={} address={} capacity={} granularity={} heads={} "
        "domain={} state={}",
        device.id.value(), device.pool.value(), device.name, nameOf(device.memory_class),
        encodeWord(device.address), device.capacity.value(), device.granularity.value(),
        device.heads, encodeWord(device.domain), nameOf(device.state));
  }
  void operator()(const DropDevice& drop) { line("drop-device {}", drop.id.value()); }
  void operator()(const Host& host) {
    line("host {} name={} domain={} state={} lease={}", host.id.value(), host.name,
         encodeWord(host.domain), nameOf(host.state), host.lease.value());
  }
  void operator()(const DropHost& drop) { line("drop-host {}", drop.id.value()); }
  void operator()(const Region& region) {
    line("region {} name={} host={} state={} epoch={} created={} extents=", region.id.value(),
         encodeWord(region.name), region.host.value(), nameOf(region.state), region.epoch.value(),
         region.created.value());
    to_.pop_back();  // the extents belong to the line
    for (const Extent& extent : region.extents) {
      append("{}{}:{}+{}", &extent == region.extents.data() ? "" : ",", extent.device.value(),
             extent.offset, extent.length.value());
    }
    to_ += '\n';
  }
  void operator()(const SetRegion& set) {
    line("set-region {} host={} state={} epoch={}", set.id.value(), set.host.value(),
         nameOf(set.state), set.epoch.value());
  }
  void operator()(const DropRegion& drop) { line("drop-region {}", drop.id.value()); }
  void operator()(const SetLabels& set) {
    // Neither keys nor values have anything in them that would have to be encoded.
    line("set-labels {} of={} labels={}", set.id, nameOf(set.subject),
         set.labels.empty() ? "-" : textOf(set.labels));
  }
  void operator()(const Intent& intent) {
    line("intent {} device={} action={} epoch={} into={}", intent.region.value(),
         intent.device.value(), nameOf(intent.action), intent.epoch.value(), intent.into.value());
  }
  void operator()(const DropIntent& drop) {
    line("drop-intent {} device={}", drop.region.value(), drop.device.value());
  }
  void operator()(const Operation& operation) {
    line("operation {} kind={} state={} region={} host={} target={} total={} deadline={} text={}",
         operation.id.value(), nameOf(operation.kind), nameOf(operation.state),
         operation.region.value(), operation.host.value(), operation.target.value(),
         operation.total.value(), operation.deadline.value(), encodeWord(operation.text));
  }
  void operator()(const ScrubEvidence& evidence) {
    line("evidence {} device={} epoch={} bytes={} passes={} nonzero={} digest={}",
         evidence.region.value(), evidence.device.value(), evidence.epoch.value(),
         evidence.bytes.value(), evidence.passes, evidence.nonzero.value(), evidence.digest);
  }
  void operator()(const KeyRecord&) {}
  void operator()(const DropKeysBefore&) {}
  void operator()(const DropEventsBefore&) {}
  void operator()(const DropAudit& drop) { to_ += describe(drop.to); }

 private:
  template <typename... Parts>
  void append(fmt::format_string<Parts...> format, Parts&&... parts) {
    fmt::format_to(std::back_inserter(to_), format, std::forward<Parts>(parts)...);
  }
  template <typename... Parts>
  void line(fmt::format_string<Parts...> format, Parts&&... parts) {
    append(format, std::forward<Parts>(parts)...);
    to_ += '\n';
  }

  std::string& to_;
};

}  // namespace

std::string encodeWord(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:+@";
  if (text.empty()) return "-";
  std::string word;
  for (const char c : text) {
    if (kPlain.find(c) != std::string_view::npos && !(c == '-' && text.size() == 1)) {
      word += c;
    } else {
      word += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return word;
}

std::string describe(const AuditBase& base) {
  return fmt::format("drop-audit {} hash={}\n", base.sequence, hexOf(base.hash));
}

std::string describe(const std::vector<Change>& changes) {
  std::string text;
  Writer writer(&text);
  for (const Change& change : changes) std::visit(writer, change);
  return text;
}

}  // namespace tidepool::fabric
