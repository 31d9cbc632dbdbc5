// SPDX-License-Identifier: Apache-2.0
// `tidepool run` becomes the program: same pid, arguments, exit status and signals, with the
// library loaded and the options handed over; --dry-run shows the same and runs nothing.
#include <nlohmann/json.hpp>

#include "runtime/options.h"
#include "tests/cli/cli_runner.h"

namespace tidepool::cli {
namespace {

using nlohmann::json;
using std::filesystem::perms;
using testing::HasSubstr;

TEST(Run, KeepsPidAndExitStatus) {
  const Outcome outcome = tidepool({"run", "--", "sh", "-c", "echo $$; exit 7"});
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.out, std::to_string(outcome.pid) + "\n");
  EXPECT_EQ(outcome.err, "");
}

TEST(Run, DiesOfTheProgramsSignal) {
  EXPECT_EQ(tidepool({"run", "--", "sh", "-c", "kill -USR1 $$"}).signal, SIGUSR1);
}

TEST(Run, ASignalReachesTheProgram) {
  const ScratchFolder scratch;
  ASSERT_EQ(mkfifo((scratch / "ready").c_str(), 0600), 0);
  // The fifo says when the trap is set; the program then blocks on it until the signal.
  const std::string script = "trap 'exit 42' TERM; echo > " + (scratch / "ready") +
                             "; while :; do read line < " + (scratch / "ready") + "; done";
  Running running({"run", "--", "sh", "-c", script}, {});
  readFile(scratch / "ready");
  ASSERT_EQ(kill(running.pid(), SIGTERM), 0);
  EXPECT_EQ(running.wait().exit_code, 42);
}

TEST(Run, PassesEveryArgumentUntouched) {
  const Outcome outcome = tidepool({"run", "--dram", "1G", "--", "printf", "<%s>", "--dram", "",
                                    "a b", "--", "--help", "*", "\xff"});
  EXPECT_EQ(outcome.out, "<--dram><><a b><--><--help><*><\xff>");
}

TEST(Run, TheFirstOperandStartsTheProgramEvenWithoutDashes) {
  EXPECT_EQ(tidepool({"run", "--dram=1G", "printf", "%s", "--dram"}).out, "--dram");
}

TEST(Run, LoadsTheLibraryWithTheOptions) {
  const ScratchFolder scratch;
  const Outcome outcome =
      tidepool({"run", "--dram", "64M", "--far", "cxl:128M", "--far", "cxl:1M", "--conf",
                "strict:true,sampling_cpu:2%", "--conf", "prefetch:no", "--", "/bin/true"},
               {{"CLI_FIXTURE_LOG", scratch / "log"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(readFile(scratch / "log"),
            std::to_string(outcome.pid) +
                " dram:67108864,far:cxl:134217728,far:cxl:1048576,strict:true,sampling_cpu:0.02,"
                "prefetch:false\n");
}

TEST(Run, FlagsOverrideTheEnvironment) {
  const Outcome outcome = tidepool({"run", "--far", "cxl:2M", "--", "printenv", "TIDEPOOL_CONF"},
                                   {{"TIDEPOOL_CONF", "far:cxl:1M,dram:32M,strict:true"}});
  EXPECT_EQ(outcome.out, "dram:33554432,far:cxl:2097152,strict:true\n");
}

TEST(Run, WarnsOnceOfAnUnknownKeyInTheEnvironment) {
  const Outcome outcome = tidepool({"run", "--", "true"}, {{"TIDEPOOL_CONF", "drma:1G"}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "tidepool: TIDEPOOL_CONF: unknown option 'drma': did you mean 'dram'?\n");
}

TEST(Run, KeepsWhatIsPreloadedAlready) {
  const std::string library = fixture("cli_preload_fixture.so");
  const auto preload = [&](const std::string& old) {
    return tidepool({"run", "--", "printenv", "LD_PRELOAD"}, {{"LD_PRELOAD", old}}).out;
  };
  EXPECT_EQ(preload(""), library + "\n");
  EXPECT_EQ(preload(library), library + "\n");
  // libc itself is a harmless second entry.
  EXPECT_EQ(preload("libc.so.6 " + library + ":libm.so.6"), library + ":libc.so.6:libm.so.6\n");
}

TEST(Run, MakesTheStatsPathAbsolute) {
  const ScratchFolder scratch;
  const auto conf = [&](const std::string& file) {
    return tidepool({"run", "--stats", file, "--", "printenv", "TIDEPOOL_CONF"}, {},
                    [&] { EXPECT_EQ(chdir(scratch.path().c_str()), 0); })
        .out;
  };
  EXPECT_EQ(conf("stats.json"), "stats_file:" + scratch.path() + "/stats.json\n");
  EXPECT_EQ(conf("./a,b"), "stats_file:" + scratch.path() + "/a\\,b\n");
  EXPECT_EQ(conf("-"), "stats_file:-\n");
}

TEST(Run, RunsScripts) {
  const ScratchFolder scratch;
  const std::string plain = scratch.write("plain", "echo from the shell $1\n", perms::owner_all);
  EXPECT_EQ(tidepool({"run", "--", plain, "x"}).out, "from the shell x\n");
  const std::string bang =
      scratch.write("bang", "#!/usr/bin/env -S sh -e\necho bang\n", perms::owner_all);
  EXPECT_EQ(tidepool({"run", "--", bang}).out, "bang\n");
}

TEST(Run, AScriptCannotHideAStaticInterpreter) {
  const ScratchFolder scratch;
  const std::string script =
      scratch.write("s", "#! " + fixture("cli_static_fixture") + " -x\n", perms::owner_all);
  expectError(tidepool({"run", "--", script}), 125, {"cli_static_fixture", "statically linked"});
}

TEST(DryRun, ShowsThePlanAndRunsNothing) {
  const ScratchFolder scratch;
  const Outcome outcome = tidepool(
      {"run", "--dry-run", "--dram", "25%", "--far", "cxl:64M", "--", "touch", scratch / "made"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(scratch / "made"));
  EXPECT_THAT(outcome.out, HasSubstr("/touch"));
  EXPECT_THAT(outcome.out, HasSubstr("cxl:64.0M: emulated"));
  EXPECT_THAT(outcome.out, HasSubstr(std::to_string(localMemory().value() / 4) + " bytes"));
  EXPECT_THAT(tidepool({"run", "--dry-run", "true"}).out, HasSubstr("only the budget applies"));
  EXPECT_THAT(tidepool({"run", "--dry-run", "true"}).out, HasSubstr("unlimited"));
}

TEST(DryRun, JsonHasStableKeys) {
  const Outcome outcome = tidepool(
      {"run", "--dry-run", "--json", "--dram", "64M", "--far", "cxl:128M", "--", "echo", "\xff"});
  const json plan = json::parse(outcome.out);
  EXPECT_EQ(plan["schema"], 1);
  EXPECT_EQ(plan["dram_budget_bytes"], 64 * kMiB);
  EXPECT_EQ(plan["tiers"][0]["spec"], "cxl:134217728");
  EXPECT_EQ(plan["tiers"][0]["size_bytes"], 128 * kMiB);
  EXPECT_EQ(plan["arguments"].size(), 2u);
  EXPECT_THAT(plan["program"].get<std::string>(), testing::EndsWith("/echo"));
  EXPECT_EQ(plan["environment"]["TIDEPOOL_CONF"], "dram:67108864,far:cxl:134217728");
  EXPECT_EQ(plan["environment"]["LD_PRELOAD"], fixture("cli_preload_fixture.so"));
  for (const char* key : {"strict", "stats_file", "warnings"})
    EXPECT_TRUE(plan.contains(key)) << key;
}

/// A place that has, beside the library to preload, what rows need.
class Rows : public testing::Test {
 protected:
  Rows() {
    std::filesystem::create_directories(scratch_ / "tidepool/python");
    std::filesystem::copy_file(fixture("cli_preload_fixture.so"), scratch_ / "library.so");
    scratch_.write("tidepool/python/sitecustomize.py", "", perms::owner_all);
    scratch_.write("libtidepool.so.0", "", perms::owner_all);
  }
  Outcome run(std::vector<std::string> words, const std::string& python_path = "") const {
    words.insert(words.begin(), "run");
    return tidepool(words, {{"TIDEPOOL_PRELOAD", scratch_ / "library.so"},
                            {"PYTHONPATH", python_path},
                            {"TIDEPOOL_ROWS", "of an outer run"}});
  }
  const std::string show_ = "echo \"$TIDEPOOL_ROWS|$PYTHONPATH\"";
  const ScratchFolder scratch_;
};

TEST_F(Rows, TheHookIsPutOnPythonsPath) {
  const std::string hook = scratch_ / "tidepool/python", library = scratch_ / "libtidepool.so.0";
  const std::vector<std::string> words{"--dram", "64M", "--far", "cxl:8M", "--", "sh", "-c", show_};
  EXPECT_EQ(run(words).out, "16777216:" + library + "|" + hook + "\n");
  EXPECT_EQ(run(words, "/a::" + hook + ":/b").out, "16777216:" + library + "|" + hook + ":/a:/b\n");
  const Outcome sized =
      run({"--dram", "64M", "--far", "cxl:8M", "--rows", "1M", "--", "printenv", "TIDEPOOL_ROWS"});
  EXPECT_EQ(sized.out, "1048576:" + library + "\n");
}

TEST_F(Rows, AreReadAheadUnlessThatIsOff) {
  const auto words = [&](const char* rows, const char* ahead) {
    return run({"--dram", "64M", "--far", "cxl:8M", "--rows", rows, "--rows-ahead", ahead, "--",
                "printenv", "TIDEPOOL_ROWS"});
  };
  const std::string library = scratch_ / "libtidepool.so.0";
  EXPECT_EQ(words("1M", "auto").out, "1048576:" + library + "\n");
  EXPECT_EQ(words("1M", "off").out, "1048576,no-ahead:" + library + "\n");
  EXPECT_EQ(words("all:1M", "off").out, "1048576,all,no-ahead:" + library + "\n");
  EXPECT_EQ(words("1M", "on").exit_code, 2);
  EXPECT_THAT(words("1M", "on").err, HasSubstr("--rows-ahead: 'on' is neither auto nor off"));
}

TEST_F(Rows, OffWhereTheyCannotBe) {
  const auto reason = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--dry-run", "--", "true"});
    return run(words).out;
  };
  EXPECT_THAT(reason({"--dram", "64M", "--far", "cxl:8M"}), HasSubstr("env       TIDEPOOL_ROWS="));
  EXPECT_THAT(reason({"--dram", "64M"}), HasSubstr("rows      off: there is no far tier"));
  EXPECT_THAT(reason({"--far", "cxl:8M"}), HasSubstr("rows      off: there is no budget"));
  EXPECT_THAT(reason({"--dram", "64M", "--far", "cxl:8M", "--rows", "off"}),
              HasSubstr("rows      off: by --rows off"));
  EXPECT_EQ(run({"--dram", "64M", "--", "sh", "-c", show_}, "/a").out, "|/a\n");
  std::filesystem::remove(scratch_ / "libtidepool.so.0");
  EXPECT_THAT(reason({"--dram", "64M", "--far", "cxl:8M"}), HasSubstr("is not installed"));
}

TEST_F(Rows, ABadValueIsAUsageError) {
  const Outcome outcome = run({"--rows", "some", "--", "true"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--rows: 'some' is neither auto, all, off nor a size"));
}

}  // namespace
}  // namespace tidepool::cli
