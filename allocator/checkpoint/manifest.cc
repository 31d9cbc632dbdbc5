// SPDX-License-Identifier: Apache-2.0
// Manifests as text: words between single blanks; names have odd bytes as %XX.
#include "allocator/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace tidepool {
namespace {

constexpr std::string_view kTypes[] = {"float32", "float16", "bfloat16", "int8"};
constexpr std::string_view kOptimizerNames[] = {"sgd", "momentum", "adagrad", "rowwise-adagrad",
                                                "adam"};
constexpr std::string_view kIdKinds[] = {"dense", "hashed"};
constexpr std::string_view kSaved[] = {"full", "changes"};

std::string number(uint64_t value) { return std::to_string(value); }

std::string hex(uint64_t value) {
  char text[17];
  const auto end = std::to_chars(text, text + 16, value, 16).ptr;
  const std::string digits(text, end);
  return std::string(16 - digits.size(), '0') + digits;
}

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == '/' || c == ':';
}

std::string escaped(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (plain(c)) {
      text += c;
      continue;
    }
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    text += '%';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text.empty() ? "%" : text;
}

/// Takes a text apart; after the first thing that is wrong everything reads as 0.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  /// The next word must be this one.
  void expect(std::string_view wanted) {
    if (word() != wanted) bad_ = true;
  }
  /// Whether the next word is this one; it stays.
  bool next(std::string_view wanted) const {
    return !bad_ && rest_.starts_with(wanted) && rest_.substr(wanted.size()).starts_with(' ');
  }
  std::string_view word() {
    if (bad_) return {};
    const size_t length = std::min(rest_.find_first_of(" \n"), rest_.size());
    if (length == 0 || length == rest_.size()) bad_ = true;
    const std::string_view found = rest_.substr(0, length);
    rest_.remove_prefix(length);
    if (!bad_ && rest_.front() == ' ') rest_.remove_prefix(1);
    return found;
  }
  void endLine() {
    if (bad_ || rest_.empty() || rest_.front() != '\n') {
      bad_ = true;
      return;
    }
    rest_.remove_prefix(1);
    ++line_;
  }
  uint64_t number(int base = 10) {
    const std::string_view text = word();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc() || end != text.data() + text.size()) bad_ = true;
    return bad_ ? 0 : value;
  }
  template <typename T, size_t kCount>
  T choice(const std::string_view (&names)[kCount]) {
    const auto* found = std::find(std::begin(names), std::end(names), word());
    if (found == std::end(names)) bad_ = true;
    return bad_ ? T{} : static_cast<T>(found - std::begin(names));
  }
  std::string name() {
    const std::string_view text = word();
    std::string name;
    if (text == "%") return name;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        name += text[i];
        continue;
      }
      unsigned byte = 0;
      if (i + 2 >= text.size() ||
          std::from_chars(&text[i + 1], &text[i + 1] + 2, byte, 16).ptr != &text[i + 1] + 2) {
        bad_ = true;
        break;
      }
      name += static_cast<char>(byte);
      i += 2;
    }
    return name;
  }
  bool bad() const { return bad_; }
  bool atEnd() const { return rest_.empty(); }
  size_t line() const { return line_; }

 private:
  std::string_view rest_;
  size_t line_ = 1;
  bool bad_ = false;
};

ManifestFile readFile(Lines& lines) {
  ManifestFile file;
  lines.expect("file");
  file.which = lines.choice<SavedRows>(kSaved);
  file.name = lines.name();
  file.size = Bytes(lines.number());
  file.checksum = lines.number(16);
  file.rows = lines.number();
  lines.endLine();
  return file;
}

ManifestState readState(Lines& lines) {
  ManifestState state;
  lines.expect("state");
  state.name = lines.name();
  state.size = Bytes(lines.number());
  state.checksum = lines.number(16);
  lines.endLine();
  return state;
}

ManifestTable readTable(Lines& lines) {
  ManifestTable table;
  lines.expect("table");
  table.name = lines.name();
  lines.endLine();
  lines.expect("rows");
  table.rows = lines.number();
  table.capacity = lines.number();
  table.ids = lines.choice<IdKind>(kIdKinds);
  lines.endLine();
  lines.expect("format");
  table.format.type = lines.choice<ElementType>(kTypes);
  table.format.optimizer = lines.choice<Optimizer>(kOptimizerNames);
  table.format.dim = static_cast<uint32_t>(lines.number());
  lines.endLine();
  lines.expect("step");
  table.step = lines.number();
  lines.endLine();
  lines.expect("files");
  const uint64_t files = lines.number();
  lines.endLine();
  for (uint64_t i = 0; i < files && !lines.bad(); ++i) table.files.push_back(readFile(lines));
  return table;
}

}  // namespace

const ManifestTable* Manifest::find(std::string_view table) const {
  for (const ManifestTable& each : tables) {
    if (each.name == table) return &each;
  }
  return nullptr;
}

std::string formatName(const RowFormat& format) {
  return std::string(kTypes[static_cast<size_t>(format.type)]) + " " +
         std::string(kOptimizerNames[static_cast<size_t>(format.optimizer)]) + " " +
         number(format.dim);
}

std::string manifestText(const Manifest& m) {
  std::string text = "tidepool-checkpoint " + number(kCheckpointVersion) + "\n";
  text += "number " + number(m.number) + "\nid " + hex(m.id) + "\nkind ";
  text += std::string(kSaved[static_cast<size_t>(m.which)]) + "\n";
  text += "created " + number(m.created) + "\n";
  if (m.state) {
    text += "state " + escaped(m.state->name) + " " + number(m.state->size.value()) + " " +
            hex(m.state->checksum) + "\n";
  }
  text += "tables " + number(m.tables.size()) + "\n";
  for (const ManifestTable& table : m.tables) {
    text += "table " + escaped(table.name) + "\nrows " + number(table.rows) + " " +
            number(table.capacity) + " " + std::string(kIdKinds[static_cast<size_t>(table.ids)]) +
            "\nformat " + formatName(table.format) + "\nstep " + number(table.step) + "\nfiles " +
            number(table.files.size()) + "\n";
    for (const ManifestFile& file : table.files) {
      text += "file " + std::string(kSaved[static_cast<size_t>(file.which)]) + " " +
              escaped(file.name) + " " + number(file.size.value()) + " " + hex(file.checksum) +
              " " + number(file.rows) + "\n";
    }
  }
  return text + "end " + hex(checksumOf(std::as_bytes(std::span(text)))) + "\n";
}

Result<Manifest> parseManifest(std::string_view text) {
  Lines lines(text);
  lines.expect("tidepool-checkpoint");
  const uint64_t version = lines.number();
  lines.endLine();
  if (lines.bad()) return fail(ErrorCode::kCorrupt, "it does not begin as a manifest does");
  if (version != kCheckpointVersion) {
    return fail(ErrorCode::kUnsupported, "it is of version %llu; this program reads version %u",
                static_cast<unsigned long long>(version), kCheckpointVersion);
  }
  Manifest m;
  lines.expect("number"), m.number = lines.number(), lines.endLine();
  lines.expect("id"), m.id = lines.number(16), lines.endLine();
  lines.expect("kind"), m.which = lines.choice<SavedRows>(kSaved), lines.endLine();
  lines.expect("created"), m.created = lines.number(), lines.endLine();
  if (lines.next("state")) m.state = readState(lines);
  lines.expect("tables");
  const uint64_t tables = lines.number();
  lines.endLine();
  for (uint64_t i = 0; i < tables && !lines.bad(); ++i) m.tables.push_back(readTable(lines));
  lines.expect("end");
  const uint64_t checksum = lines.number(16);
  lines.endLine();
  const size_t last = text.rfind("\nend ");
  const bool right = !lines.bad() && lines.atEnd() && last != std::string_view::npos &&
                     checksum == checksumOf(std::as_bytes(std::span(text.substr(0, last + 1))));
  if (right) return m;
  return fail(ErrorCode::kCorrupt, "it is damaged or cut off (%s, about line %zu)",
              lines.bad() ? "not as a manifest is written" : "wrong checksum", lines.line());
}

}  // namespace tidepool
