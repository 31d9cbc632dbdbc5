// SPDX-License-Identifier: Apache-2.0
// The renderings of the command table: --help, man page (mdoc), bash completion, markdown.
#include <fmt/format.h>

#include "shim/cli/commands.h"

namespace tidepool::cli {
namespace {

constexpr size_t kColumns = 80;

/// "--dram SIZE|N%".
std::string flagUsage(const Flag& flag) {
  return flag.value.empty() ? std::string(flag.name) : fmt::format("{} {}", flag.name, flag.value);
}

/// "tidepool run [--dram SIZE|N%] [--far SPEC]... -- PROG ARGS...".
std::string usage(const Command& command) {
  std::string line = fmt::format("tidepool {}", command.name);
  for (const Flag& flag : command.flags) {
    line += fmt::format(" [{}]{}", flagUsage(flag), flag.repeatable ? "..." : "");
  }
  if (!command.operand.empty()) line += fmt::format(" {}", command.operand);
  return line;
}

/// `text` in lines of at most kColumns, words kept whole; every line but the first after `indent`
/// blanks. `column` is where the first one starts.
std::string wrap(std::string_view text, size_t indent, size_t column) {
  std::string out;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (column > indent && column + 1 + word.size() > kColumns) {
      out += fmt::format("\n{:{}}", "", indent);
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  return out + "\n";
}

/// "  NAME   help", the help in a column of its own.
std::string item(std::string_view name, std::string_view help) {
  constexpr size_t kIndent = 26;
  std::string out = fmt::format("  {:<{}}", name, kIndent - 2);
  if (name.size() + 3 > kIndent) out += fmt::format("\n{:{}}", "", kIndent);
  return out + wrap(help, kIndent, kIndent);
}

std::string items(std::string_view title, std::span<const Entry> entries) {
  std::string out = fmt::format("\n{}:\n", title);
  for (const Entry& entry : entries) out += item(entry.name, entry.help);
  return out;
}

/// `text` safe for roff: backslashes, and a leading dot or quote.
std::string roff(std::string_view text) {
  std::string out;
  for (const char character : text) {
    if (character == '\\') {
      out += "\\e";
    } else if (character == '-') {
      out += "\\-";
    } else {
      out += character;
    }
  }
  if (out.starts_with('.') || out.starts_with('\'')) out.insert(0, "\\&");
  return out;
}

/// `text` as mdoc wants it: every sentence on a line of its own.
std::string sentences(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find(". ");
    const bool last = end == std::string_view::npos;
    out += wrap(roff(last ? text : text.substr(0, end + 1)), 0, 0);
    text.remove_prefix(last ? text.size() : end + 2);
  }
  return out;
}

/// One word of a macro line, quoted if it has to be.
std::string argument(std::string_view text) { return fmt::format("\"{}\"", roff(text)); }

std::string manItems(std::span<const Entry> entries, std::string_view macro) {
  std::string out = ".Bl -tag -width Ds\n";
  for (const Entry& entry : entries) {
    out += fmt::format(".It {} {}\n{}", macro, argument(entry.name), sentences(entry.help));
  }
  return out + ".El\n";
}

std::string manFlags(const Command& command) {
  std::string out = ".Bl -tag -width Ds\n";
  for (const Flag& flag : command.flags) {
    // "Fl" writes the first dash itself.
    out += fmt::format(".It Fl {}", roff(flag.name.substr(1)));
    if (!flag.value.empty()) out += fmt::format(" Ar {}", argument(flag.value));
    out += "\n" + sentences(flag.help);
  }
  return out + ".El\n";
}

std::string markdownTable(std::string_view head, std::span<const Entry> entries) {
  std::string out = fmt::format("| {} | meaning |\n|---|---|\n", head);
  for (const Entry& entry : entries) out += fmt::format("| `{}` | {} |\n", entry.name, entry.help);
  return out + "\n";
}

/// `text` with the bars that would end a table's cell escaped.
std::string cell(std::string_view text) {
  std::string out;
  for (const char character : text) {
    if (character == '|') out += '\\';
    out += character;
  }
  return out;
}

}  // namespace

std::string helpText() {
  std::string out = fmt::format("tidepool: {}\n\nUsage:\n", kSummary);
  for (const Command& command : commands()) out += "  " + wrap(usage(command), 6, 2);
  out += "\nCommands:\n";
  for (const Command& command : commands()) out += item(command.name, command.summary);
  out += items("Far tiers (SPEC)", farSpecs());
  out += items("Environment", environment());
  out += items("Exit codes", exitCodes());
  out += "\n`tidepool COMMAND --help` tells more; `tidepool --version` prints the version.\n";
  return out;
}

std::string helpText(const Command& command) {
  std::string out = fmt::format("tidepool {}: {}\n\nUsage:\n  ", command.name, command.summary);
  out += wrap(usage(command), 6, 2);
  out += "\n" + wrap(command.description, 0, 0);
  if (!command.flags.empty()) out += "\nOptions:\n";
  for (const Flag& flag : command.flags) out += item(flagUsage(flag), flag.help);
  if (command.name == "run") {
    out += items("Keys of --conf", confKeys());
  }
  if (command.name == "run" || command.name == "doctor") {
    out += items("Far tiers (SPEC)", farSpecs());
  }
  return out;
}

std::string manPage() {
  std::string out = fmt::format(
      ".Dd November 21, 2026\n.Dt TIDEPOOL 1\n.Os\n.Sh NAME\n.Nm tidepool\n.Nd {}\n.Sh SYNOPSIS\n",
      roff(kSummary));
  for (const Command& command : commands()) {
    out += fmt::format(".Nm\n.Cm {}\n", command.name);
    for (const Flag& flag : command.flags) {
      out += fmt::format(".Op Fl {}", roff(flag.name.substr(1)));
      if (!flag.value.empty()) out += fmt::format(" Ar {}", argument(flag.value));
      out += flag.repeatable ? " Ns ...\n" : "\n";
    }
    if (!command.operand.empty()) out += fmt::format(".Ar {}\n", argument(command.operand));
  }
  out += ".Sh DESCRIPTION\nThe commands are:\n";
  for (const Command& command : commands()) {
    out += fmt::format(".Ss {}\n{}", command.name, sentences(command.description));
    if (!command.flags.empty()) out += manFlags(command);
  }
  out += ".Ss Far tiers\n" + manItems(farSpecs(), "Cm");
  out += ".Ss Keys of \\-\\-conf\n" + manItems(confKeys(), "Cm");
  out += ".Sh ENVIRONMENT\n" + manItems(environment(), "Ev");
  out += ".Sh EXIT STATUS\n" + manItems(exitCodes(), "Sy");
  out += ".Sh EXAMPLES\n";
  for (const Example& example : examples()) {
    out += fmt::format("{}.Bd -literal -offset indent\n{}\n.Ed\n", sentences(example.what),
                       roff(example.line));
    if (&example != &examples().back()) out += ".Pp\n";
  }
  return out;
}

std::string bashCompletion() {
  std::string words;
  std::string cases;
  for (const Command& command : commands()) {
    words += fmt::format("{} ", command.name);
    std::string flags;
    for (const Flag& flag : command.flags) flags += fmt::format("{} ", flag.name);
    cases += fmt::format("    {}) words=\"{}--help\" ;;\n", command.name, flags);
  }
  std::string specs;
  for (const Entry& spec : farSpecs()) {
    const std::string_view kind = spec.name.substr(0, spec.name.find_first_of(":["));
    // A colon where there is something to be typed after it.
    const bool more = spec.name.substr(kind.size()).starts_with(':');
    specs += fmt::format("{}{} ", kind, more ? ":" : "");
  }
  return fmt::format(R"(# bash completion for tidepool; generated from the command's own table.
_tidepool() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{}--help --version" -- "$word"))
    return
  fi
  case "$before" in
    --far) COMPREPLY=($(compgen -W "{}" -- "$word")); compopt -o nospace 2>/dev/null; return ;;
    --stats|--svg) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --dram|--conf|--interval) return ;;
  esac
  case "${{COMP_WORDS[1]}}" in
{}  esac
  if [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  elif [[ "${{COMP_WORDS[1]}}" == run ]]; then
    COMPREPLY=($(compgen -c -f -- "$word"))
  fi
}}
complete -F _tidepool tidepool
)",
                     words, specs, cases);
}

std::string markdownReference() {
  std::string out =
      "# The `tidepool` command\n\nGenerated from the command's own table "
      "(`tidepool --generate markdown`); a test keeps it so.\n\n";
  for (const Command& command : commands()) {
    out += fmt::format("## `tidepool {}`: {}\n\n```text\n{}\n```\n\n{}\n\n", command.name,
                       command.summary, usage(command), command.description);
    if (command.flags.empty()) continue;
    out += "| option | meaning |\n|---|---|\n";
    for (const Flag& flag : command.flags) {
      out += fmt::format("| `{}` | {} |\n", cell(flagUsage(flag)), flag.help);
    }
    out += "\n";
  }
  out += "## Far tiers\n\n" + markdownTable("SPEC", farSpecs());
  out += "## Keys of `--conf` and `TIDEPOOL_CONF`\n\n" + markdownTable("key", confKeys());
  out += "## Environment\n\n" + markdownTable("variable", environment());
  out += "## Exit codes\n\n" + markdownTable("code", exitCodes());
  out += "## Examples\n";
  for (const Example& example : examples()) {
    out += fmt::format("\n{}\n\n```text\n{}\n```\n", example.what, example.line);
  }
  return out;
}

}  // namespace tidepool::cli
