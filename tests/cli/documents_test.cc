// SPDX-License-Identifier: Apache-2.0
// Help, man page, completion and reference come from one table: all name every command, flag and
// option key, the man page is clean, and the committed reference is up to date.
#include <regex>
#include <set>

#include "runtime/options.h"
#include "tests/cli/cli_runner.h"

namespace tidepool::cli {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kCommands = {"run",  "stat",   "ps",        "top",
                                            "heat", "doctor", "checkpoint"};

std::set<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

std::set<std::string> flagsOf(const std::string& command) {
  return matches(tidepool({command, "--help"}).out, R"(\n  (--[a-z-]+))");
}

TEST(Help, EveryCommandHasOne) {
  const Outcome all = tidepool({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_EQ(all.out, tidepool({"help"}).out);
  for (const std::string& command : kCommands) {
    EXPECT_THAT(all.out, HasSubstr("tidepool " + command));
    const Outcome one = tidepool({command, "--help"});
    EXPECT_EQ(one.exit_code, 0);
    EXPECT_EQ(one.err, "");
    EXPECT_EQ(one.out, tidepool({"help", command}).out);
    EXPECT_EQ(one.out, tidepool({command, "-h"}).out);
  }
}

TEST(Help, LinesFitATerminal) {
  for (const std::string& command : kCommands) {
    std::istringstream lines(tidepool({command, "--help"}).out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(Help, VersionIsPrinted) {
  EXPECT_TRUE(
      std::regex_match(tidepool({"--version"}).out, std::regex(R"(tidepool \d+\.\d+\.\d+\n)")));
}

TEST(Help, EveryFlagIsOneThatTheParserKnows) {
  for (const std::string& command : kCommands) {
    for (const std::string& flag : flagsOf(command)) {
      // Followed by a bad flag: the error must be about that one.
      const Outcome outcome = tidepool({command, flag, "1", "--zzz"});
      EXPECT_THAT(outcome.err, testing::Not(HasSubstr("unknown option '" + flag + "'")));
    }
  }
}

TEST(Reference, NamesEveryOptionKey) {
  const std::string text = tidepool({"--generate", "markdown"}).out;
  std::set<std::string> keys;
  for (const std::string_view key : optionKeys()) {
    keys.insert(std::string(key));
    EXPECT_THAT(text, HasSubstr("| `" + std::string(key) + "` |"));
  }
  const std::string section = text.substr(text.find("## Keys of"));
  EXPECT_EQ(matches(section.substr(0, section.find("\n## ", 4)), "\n\\| `([a-z_]+)` \\|"), keys);
}

TEST(Reference, TheCommittedOneIsUpToDate) {
  const auto path = std::filesystem::path(TIDEPOOL_SOURCE_DIR) / "docs/cli-reference.md";
  EXPECT_EQ(readFile(path.string()), tidepool({"--generate", "markdown"}).out)
      << "write it again: build/release/bin/tidepool --generate markdown > docs/cli-reference.md";
}

TEST(ManPage, NamesEveryFlagAndIsClean) {
  const std::string page = tidepool({"--generate", "man"}).out;
  for (const std::string& command : kCommands) {
    EXPECT_THAT(page, HasSubstr(".Ss " + command + "\n"));
    for (const std::string& flag : flagsOf(command)) {
      std::string roff = flag.substr(1);
      for (size_t at = 0; (at = roff.find('-', at)) != std::string::npos; at += 2)
        roff.insert(at, "\\");
      EXPECT_THAT(page, HasSubstr(".It Fl " + roff));
    }
  }
  if (system("command -v mandoc >/dev/null") != 0) GTEST_SKIP() << "mandoc is not installed";
  const ScratchFolder scratch;
  const std::string file = scratch.write("tidepool.1", page, std::filesystem::perms::owner_all);
  EXPECT_EQ(system(("mandoc -T lint -W style " + file + " > " + (scratch / "lint")).c_str()), 0);
  EXPECT_EQ(readFile(scratch / "lint"), "");
}

/// What bash offers for the words typed so far; the last one is being completed.
std::set<std::string> complete(const std::vector<std::string>& words) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("completion", tidepool({"--generate", "bash"}).out,
                                         std::filesystem::perms::owner_all);
  std::string list;
  for (const std::string& word : words) list += "'" + word + "' ";
  const std::string script = ". " + file + "; COMP_WORDS=(tidepool " + list +
                             "); COMP_CWORD=" + std::to_string(words.size()) +
                             "; _tidepool; printf '%s\\n' \"${COMPREPLY[@]}\" > " +
                             (scratch / "out");
  EXPECT_EQ(system(("bash -c \"$(cat <<'END'\n" + script + "\nEND\n)\"").c_str()), 0);
  return matches("\n" + readFile(scratch / "out"), "\n([^\n]+)");
}

TEST(Completion, OffersCommandsFlagsAndTiers) {
  std::set<std::string> words(kCommands.begin(), kCommands.end());
  words.insert({"--help", "--version"});
  EXPECT_EQ(complete({""}), words);
  for (const std::string& command : kCommands) {
    std::set<std::string> flags = flagsOf(command);
    flags.insert("--help");
    EXPECT_EQ(complete({command, "--"}), flags);
  }
  EXPECT_EQ(complete({"run", "--far", ""}),
            (std::set<std::string>{"cxl:", "dax:", "numa:", "remote:", "mirror:", "file:", "fabric",
                                   "auto"}));
  EXPECT_EQ(complete({"run", "--dram", ""}), std::set<std::string>{});
}

}  // namespace
}  // namespace tidepool::cli
