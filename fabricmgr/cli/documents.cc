// SPDX-License-Identifier: Apache-2.0
// Walks the tree of commands and writes it down in three ways.
#include "fabricmgr/cli/documents.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace tidepool::cli {
namespace {

struct Exit {
  int code;
  const char* about;
};
constexpr Exit kExits[] = {{0, "done"},
                           {1, "failed"},
                           {2, "bad usage or input"},
                           {3, "not found"},
                           {4, "refused: not permitted, no room, or it would hurt somebody"},
                           {5, "the manager cannot be reached"},
                           {6, "conflict: somebody was faster"},
                           {7, "timed out"}};

struct Variable {
  const char* name;
  const char* about;
};
constexpr Variable kVariables[] = {
    {"TIDEPOOL_FABRIC", "unix:PATH or https://HOST:PORT of the manager; several: A,B,C"},
    {"TIDEPOOL_FABRIC_CA", "PEM file: whom to believe"},
    {"TIDEPOOL_FABRIC_CERT", "PEM file: who you are"},
    {"TIDEPOOL_FABRIC_KEY", "PEM file: the key of that"}};

/// Every command that does something, with its words: {"region assign", app}.
void collect(const CLI::App& app, const std::string& words,
             std::vector<std::pair<std::string, const CLI::App*>>* out) {
  const auto children = app.get_subcommands([](const CLI::App*) { return true; });
  if (children.empty()) out->emplace_back(words, &app);
  for (const CLI::App* child : children) {
    collect(*child, words.empty() ? child->get_name() : words + " " + child->get_name(), out);
  }
}

std::vector<std::pair<std::string, const CLI::App*>> commandsOf(const CLI::App& app) {
  std::vector<std::pair<std::string, const CLI::App*>> commands;
  collect(app, "", &commands);
  return commands;
}

bool isPositional(const CLI::Option& option) { return option.nonpositional() == false; }
bool takesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

/// "--size VALUE"; the operand's name as it is.
std::string usageOf(const CLI::Option& option) {
  if (isPositional(option)) return option.get_name();
  return option.get_name(false, true) + (takesValue(option) ? " VALUE" : "");
}

std::string synopsisOf(const std::string& words, const CLI::App& command) {
  std::string text = "fabricmgr " + words;
  for (const CLI::Option* option : command.get_options()) {
    if (!isPositional(*option)) continue;
    const std::string name = option->get_name();
    text += option->get_required() ? " " + name : fmt::format(" [{}]", name);
  }
  for (const CLI::Option* option : command.get_options()) {
    if (!isPositional(*option) && option->get_required()) text += " " + usageOf(*option);
  }
  return text + " [OPTION]...";
}

/// A line of mdoc's text: hyphens as they are typed, and no line begins with a dot.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '-') {
      out += "\\-";
    } else if (c == '\\') {
      out += "\\e";
    } else {
      out += c;
    }
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

/// One of a list: a sentence of its own, however it was written.
std::string item(const std::string& head, const std::string& about) {
  return fmt::format(".It {}\n{}{}\n", head, roff(about), about.ends_with('.') ? "" : ".");
}

std::string headOf(const CLI::Option& option) {
  if (isPositional(option)) return "Ar " + roff(option.get_name());
  // "Fl" writes the first dash itself.
  return "Fl " + roff(option.get_name(false, true).substr(1)) +
         (takesValue(option) ? " Ar value" : "");
}

bool isHelp(const CLI::Option& option) {
  return option.get_name().find("--help") != std::string::npos;
}

}  // namespace

std::string manPage(const CLI::App& app) {
  static const std::string kList = ".Bl -tag -width Ds\n";
  std::string out = fmt::format(
      ".Dd November 21, 2026\n.Dt FABRICMGR 1\n.Os\n.Sh NAME\n.Nm fabricmgr\n.Nd {}\n"
      ".Sh SYNOPSIS\n.Nm\n.Ar command\n.Op Ar option ...\n.Sh DESCRIPTION\nThe commands are:\n",
      roff(app.get_description()));
  for (const auto& [words, command] : commandsOf(app)) {
    out += fmt::format(".Ss {}\n{}.\n", roff(words), roff(command->get_description()));
    std::string items;
    for (const CLI::Option* option : command->get_options()) {
      if (!isHelp(*option)) items += item(headOf(*option), option->get_description());
    }
    if (!items.empty()) out += kList + items + ".El\n";
  }
  out += ".Sh ENVIRONMENT\n" + kList;
  for (const auto& [name, about] : kVariables) out += item(fmt::format("Ev {}", name), about);
  out += ".El\n.Sh EXIT STATUS\n" + kList;
  for (const auto& [code, about] : kExits) out += item(fmt::format("Sy {}", code), about);
  return out + ".El\n";
}

std::string bashCompletion(const CLI::App& app) {
  std::string cases;
  std::string firsts;
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    firsts += (firsts.empty() ? "" : " ") + child->get_name();
    std::string seconds;
    for (const CLI::App* verb : child->get_subcommands([](const CLI::App*) { return true; })) {
      seconds += (seconds.empty() ? "" : " ") + verb->get_name();
    }
    if (!seconds.empty())
      cases += fmt::format("    '{}') words='{}' ;;\n", child->get_name(), seconds);
  }
  for (const auto& [words, command] : commandsOf(app)) {
    std::string flags;
    for (const CLI::Option* option : command->get_options()) {
      if (!isPositional(*option))
        flags += (flags.empty() ? "" : " ") + option->get_name(false, true);
    }
    for (size_t at; (at = flags.find(',')) != std::string::npos;) flags[at] = ' ';
    cases += fmt::format("    '{}'|'{} '*) words='{}' ;;\n", words, words, flags);
  }
  return fmt::format(R"(# bash completion for fabricmgr; generated from the command's own table.
_fabricmgr() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} given= words= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${{COMP_WORDS[i]}} == -* ]] && break
    given+=${{given:+ }}${{COMP_WORDS[i]}}
  done
  case "$given" in
    '') words='{}' ;;
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _fabricmgr fabricmgr
)",
                     firsts, cases);
}

std::string markdownReference(const CLI::App& app) {
  std::string out =
      "# fabricmgr: command reference\n\nMade from the program itself (`fabricmgr --generate "
      "markdown`); a test keeps it so.\n\n";
  for (const auto& [words, command] : commandsOf(app)) {
    out += fmt::format("## fabricmgr {}\n\n{}.\n\n    {}\n\n", words, command->get_description(),
                       synopsisOf(words, *command));
    std::string rows;
    for (const CLI::Option* option : command->get_options()) {
      if (isHelp(*option)) continue;
      std::string about = option->get_description();
      for (size_t at = 0; (at = about.find('|', at)) != std::string::npos; at += 2) {
        about.insert(at, "\\");
      }
      rows += fmt::format("| `{}` | {} |\n", usageOf(*option), about);
    }
    if (!rows.empty()) out += "| option | |\n|---|---|\n" + rows + "\n";
  }
  out += "## Environment\n\n| variable | |\n|---|---|\n";
  for (const auto& [name, about] : kVariables) out += fmt::format("| `{}` | {} |\n", name, about);
  out += "\n## Exit codes\n\n| code | |\n|---|---|\n";
  for (const auto& [code, about] : kExits) out += fmt::format("| {} | {} |\n", code, about);
  return out;
}

}  // namespace tidepool::cli
