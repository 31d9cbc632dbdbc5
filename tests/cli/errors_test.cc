// SPDX-License-Identifier: Apache-2.0
// Every way `tidepool` refuses: the exit code, and one line that says what failed, on what, and
// what to do next.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/base/unique_fd.h"
#include "runtime/options.h"
#include "tests/cli/cli_runner.h"

namespace tidepool::cli {
namespace {

using std::filesystem::perms;
using Words = std::vector<std::string>;

TEST(Usage, MistakesEndWithTwoAndSuggest) {
  const std::pair<Words, Words> cases[] = {
      {{}, {"no command given", "tidepool --help"}},
      {{"rnu"}, {"unknown command 'rnu'", "did you mean 'run'?"}},
      {{"--jsn"}, {"unknown option '--jsn'"}},
      {{"run"}, {"no program given", "-- PROG"}},
      {{"run", "--"}, {"no program given"}},
      {{"run", "--drma", "1G", "--", "true"}, {"'--drma'", "did you mean '--dram'?"}},
      {{"run", "--drma=1G", "--", "true"}, {"'--drma'", "did you mean '--dram'?"}},
      {{"run", "-d", "--", "true"}, {"unknown option '-d'"}},
      {{"run", "--dram"}, {"--dram needs a value: --dram SIZE|N%"}},
      {{"run", "--dram", "--", "true"}, {"--dram needs a value"}},
      {{"run", "--dry-run=yes", "true"}, {"--dry-run takes no value"}},
      {{"run", "--json", "--", "true"}, {"--json goes with --dry-run"}},
      {{"run", "--dram", "12X", "--", "true"}, {"--dram: '12X' is not a size", "256M, 2G"}},
      {{"run", "--dram", "0", "--", "true"}, {"--dram: '0'", "more than zero"}},
      {{"run", "--dram", "64", "--", "true"}, {"too small", "suffix"}},
      {{"run", "--dram", "150%", "--", "true"}, {"150%", "at most 100%"}},
      {{"run", "--dram", "99999999T", "--", "true"}, {"too large"}},
      {{"run", "--dram", "9000T", "--", "true"}, {"more than this machine has"}},
      {{"run", "--far", "cxl", "--", "true"}, {"--far: far tier 'cxl' has no size", "cxl:SIZE"}},
      {{"run", "--far", "remote:h", "--", "true"}, {"names no port", "remote:HOST:PORT"}},
      {{"run", "--conf", "strct:true", "true"}, {"'strct'", "did you mean 'strict'?"}},
      {{"run", "--conf", "strict", "true"}, {"--conf: 'strict' has no value"}},
      {{"run", "--conf", "strict:perhaps", "true"}, {"write true or false"}},
      {{"stat"}, {"give one process id"}},
      {{"stat", "1", "2"}, {"give one process id"}},
      {{"stat", "abc"}, {"'abc' is not a process id", "tidepool ps"}},
      {{"stat", "0"}, {"not a process id"}},
      {{"stat", "--jsn", "1"}, {"did you mean '--json'?"}},
      {{"ps", "x"}, {"unexpected 'x'"}},
      {{"top", "x"}, {"unexpected 'x'"}},
      {{"top", "--interval", "0"}, {"0.1 to 3600"}},
      {{"top", "--interval", "1s"}, {"0.1 to 3600"}},
      {{"top", "--interval", "nan"}, {"0.1 to 3600"}},
      {{"heat"}, {"heat: give one process id"}},
      {{"heat", "x"}, {"heat: 'x' is not a process id", "tidepool ps"}},
      {{"heat", "1", "--interval", "0"}, {"heat: --interval", "0.1 to 3600"}},
      {{"heat", "1", "--interval", "1", "--json"}, {"goes without --json"}},
      {{"heat", "1", "--interval", "1", "--svg", "x"}, {"goes without"}},
      {{"doctor", "x"}, {"unexpected 'x'"}},
      {{"doctor", "--far", "tape:1"}, {"far tier 'tape:1' is of no known kind"}},
      {{"checkpoint", "show"}, {"checkpoint show DIR"}},
      {{"--generate", "poem"}, {"man, bash or markdown"}},
  };
  for (const auto& [words, parts] : cases) {
    SCOPED_TRACE(testing::PrintToString(words));
    expectError(tidepool(words), 2, parts);
  }
}

TEST(Usage, ABadEnvironmentIsNamed) {
  expectError(tidepool({"run", "true"}, {{"TIDEPOOL_CONF", "dram:much"}}), 2,
              {"TIDEPOOL_CONF: 'much' is not a size"});
}

TEST(Program, NotFoundIs127) {
  expectError(tidepool({"run", "--", "no-such-program"}), 127, {"'no-such-program'", "PATH"});
  expectError(tidepool({"run", "--", "/no/such/program"}), 127,
              {"/no/such/program: No such file or directory"});
  expectError(tidepool({"run", "--", ""}), 127, {"cannot find"});
}

TEST(Program, NotExecutableIs126) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("data", "x", perms::owner_read);
  expectError(tidepool({"run", "--", file}), 126, {file, "chmod +x"});
  expectError(tidepool({"run", "--", scratch.path()}), 126, {scratch.path()});
  expectError(tidepool({"run", "--", "data"}, {{"PATH", scratch.path()}}), 126,
              {"data", "chmod +x"});
}

TEST(Program, ThatCannotBePreloadedIs125) {
  expectError(tidepool({"run", "--", fixture("cli_static_fixture")}), 125,
              {"cli_static_fixture is statically linked"});
  expectError(tidepool({"run", "--", fixture("cli_sanitized_fixture")}), 125,
              {"cli_sanitized_fixture is built with AddressSanitizer"});
}

TEST(Program, OfAnotherArchitectureIs125) {
  const ScratchFolder scratch;
  std::string elf = readFile("/bin/true");
  elf[4] = 1;  // EI_CLASS: 32 bits
  expectError(tidepool({"run", "--", scratch.write("elf", elf, perms::owner_all)}), 125,
              {"another architecture"});
}

TEST(Program, ADamagedFileIsRefusedNotTrusted) {
  const ScratchFolder scratch;
  const std::string whole = readFile("/bin/true");
  for (const size_t length : {4u, 5u, 63u, 64u, 100u, 1000u}) {
    const std::string file = scratch.write("cut", whole.substr(0, length), perms::owner_all);
    const Outcome outcome = tidepool({"run", "--dry-run", "--", file});
    EXPECT_TRUE(outcome.exit_code == 125 || outcome.exit_code == 0) << length;
    std::filesystem::remove(file);
  }
  // Section headers with wild offsets and counts.
  for (size_t field = 0x20; field < 0x40; ++field) {
    std::string wild = whole;
    wild[field] = '\xff';
    const std::string file = scratch.write("wild", wild, perms::owner_all);
    const Outcome outcome = tidepool({"run", "--dry-run", "--", file});
    EXPECT_EQ(outcome.signal, 0) << field;
  }
}

TEST(Program, SetUserIdIs125) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a set-user-ID program";
  const ScratchFolder scratch;
  const std::string file = scratch / "true";
  std::filesystem::copy_file("/bin/true", file);
  ASSERT_EQ(chown(file.c_str(), 65534, 65534), 0);
  ASSERT_EQ(chmod(file.c_str(), 04755), 0);
  expectError(tidepool({"run", "--", file}), 125, {"set-user-ID", "LD_PRELOAD"});
  ASSERT_EQ(chmod(file.c_str(), 02755), 0);
  expectError(tidepool({"run", "--", file}), 125, {"set-group-ID"});
}

TEST(Preload, ALibraryThatIsNotThereIs125) {
  expectError(tidepool({"run", "--", "true"}, {{"TIDEPOOL_PRELOAD", "/nowhere/lib.so"}}), 125,
              {"libtidepool-preload.so", "/nowhere/lib.so", "TIDEPOOL_PRELOAD"});
}

TEST(Preload, APathThatLdPreloadCannotSayIs125) {
  const ScratchFolder scratch;
  const std::string odd = scratch.write("my lib.so", "", perms::owner_all);
  expectError(tidepool({"run", "--", "true"}, {{"TIDEPOOL_PRELOAD", odd}}), 125,
              {"blank or colon", "my lib.so"});
}

TEST(Stats, AFolderThatCannotBeWrittenIs125) {
  expectError(tidepool({"run", "--stats", "/no/such/folder/s.json", "--", "true"}), 125,
              {"--stats", "/no/such/folder/", "No such file"});
}

/// A listening socket on 127.0.0.1.
struct Listener {
  explicit Listener(int backlog) : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    if (backlog >= 0) {
      EXPECT_EQ(listen(fd.get(), backlog), 0);
    }
  }
  std::string server() const { return "127.0.0.1:" + std::to_string(ntohs(address.sin_port)); }
  std::string spec() const { return "remote:" + server(); }

  UniqueFd fd;
  sockaddr_in address = {};
  socklen_t length = sizeof address;
};

TEST(Tier, AMemoryServerThatAnswersPasses) {
  const Listener listener(8);
  const Outcome outcome = tidepool({"run", "--far", listener.spec() + ":64M", "--", "true"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Tier, AMemoryServerThatRefusesIs125) {
  const Listener bound(-1);  // bound, so that nobody else takes the port, but not listening
  expectError(tidepool({"run", "--far", bound.spec(), "--", "true"}), 125,
              {bound.spec(), "Connection refused", "fabricmgr memserver"});
}

TEST(Tier, AMemoryServerThatIsSilentIs125) {
  const Listener listener(0);
  // Fill the queue of connections nobody accepts: the kernel then drops further ones.
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&listener.address),
            sizeof listener.address);
  }
  expectError(tidepool({"run", "--far", listener.spec(), "--", "true"}), 125,
              {listener.spec(), "no answer within 2 s"});
}

TEST(Tier, BothServersOfAMirrorHaveToAnswer) {
  const Listener first(8), second(8), missing(-1);
  const std::string mirror = "mirror:" + first.server() + "+";
  const Outcome outcome = tidepool(
      {"run", "--dram", "64M", "--far", mirror + second.server(), "--dry-run", "--", "true"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr(second.server() + " reachable in "));
  EXPECT_THAT(outcome.out, testing::Not(testing::HasSubstr("pages alone")));
  expectError(tidepool({"run", "--far", mirror + missing.server(), "--", "true"}), 125,
              {"mirror:" + missing.server(), "Connection refused"});
  expectError(tidepool({"run", "--far", mirror + first.server(), "--", "true"}), 125,
              {"both copies would be on one memory server"});
}

TEST(Tier, AnUnknownHostIs125) {
  expectError(tidepool({"run", "--far", "remote:[::zz]:7777", "--", "true"}), 125,
              {"remote:[::zz]:7777", "cannot find host"});
}

TEST(Tier, AnAbsentDeviceIs125) {
  expectError(tidepool({"run", "--far", "dax:/dev/dax99.0", "--", "true"}), 125,
              {"dax:/dev/dax99.0", "No such file", "daxctl list"});
  expectError(tidepool({"run", "--far", "dax:/bin/true", "--", "true"}), 125,
              {"dax:/bin/true is not a character device"});
  expectError(tidepool({"run", "--far", "numa:999", "--", "true"}), 125,
              {"numa:999", "numactl --hardware"});
}

TEST(Tier, AnEmulatedPoolLargerThanMemoryIs125) {
  expectError(tidepool({"run", "--far", "cxl:100T", "--", "true"}), 125,
              {"cxl:100T", "this machine's memory"});
}

TEST(Tier, AFabricThatIsNotThereIs125) {
  expectError(tidepool({"run", "--far", "fabric:1G", "--conf", "agent:/no/agent", "--", "true"}),
              125, {"/no/agent", "`fabricmgr agent`", "TIDEPOOL_AGENT"});
  expectError(
      tidepool({"run", "--far", "fabric", "--", "true"}, {{"TIDEPOOL_AGENT", "/no/such/socket"}}),
      125, {"/no/such/socket", "`fabricmgr agent`"});
}

TEST(Userfaultfd, NoPermissionIs125AndNamesTheSysctl) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody without rights";
  if (readFile("/proc/sys/vm/unprivileged_userfaultfd") != "0\n") {
    GTEST_SKIP() << "this machine lets everybody use userfaultfd";
  }
  const auto drop = [] {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(98);
    if (access(command().c_str(), X_OK) != 0 || access("/dev/userfaultfd", R_OK | W_OK) == 0)
      _exit(97);
  };
  const Outcome outcome = tidepool({"run", "--", "true"}, {}, drop);
  if (outcome.exit_code == 97) GTEST_SKIP() << "the build folder or the device is not as needed";
  expectError(outcome, 125,
              {"no permission to use userfaultfd", "sysctl -w vm.unprivileged_userfaultfd=1"});
  const Outcome doctor = tidepool({"doctor"}, {}, drop);
  EXPECT_EQ(doctor.exit_code, 1);
  EXPECT_THAT(doctor.out, testing::ContainsRegex("fail +userfaultfd"));
  EXPECT_THAT(doctor.out, testing::HasSubstr("mend: sudo sysctl -w vm.unprivileged_userfaultfd=1"));
}

TEST(Output, AFullDiskIsAnError) {
  const Outcome outcome = tidepool({"--help"}, {}, [] {
    const int full = open("/dev/full", O_WRONLY);
    dup2(full, STDOUT_FILENO);
  });
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, testing::HasSubstr("cannot write to standard output"));
}

}  // namespace
}  // namespace tidepool::cli
