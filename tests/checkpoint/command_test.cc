// SPDX-License-Identifier: Apache-2.0
// `tidepool checkpoint show` and `verify` on real directories: whole, damaged and empty ones.
#include <nlohmann/json.hpp>

#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/cli/cli_runner.h"

namespace tidepool::cli {
namespace {

using json = nlohmann::json;
using testing::HasSubstr;

class CommandTest : public testing::Test {
 protected:
  CommandTest()
      : places_(Place::kLocal),
        workers_(1),
        trained_(places_,
                 trainedTable(IdKind::kHashed, {ElementType::kBfloat16, Optimizer::kAdam, 8}),
                 workers_) {
    for (const CheckpointKind kind : {CheckpointKind::kFull, CheckpointKind::kIncremental}) {
      trained_.step(step_++);
      EXPECT_TRUE(takeCheckpoint(trained_.table.get(), path(), kind));
    }
  }
  std::string path() const { return directory_.path(); }

  TemporaryDirectory directory_;
  Places places_;
  Workers workers_;
  Trained trained_;
  uint64_t step_ = 0;
};

TEST_F(CommandTest, ShowListsWhatIsThere) {
  const Outcome text = tidepool({"checkpoint", "show", path()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("checkpoint 1  full"));
  EXPECT_THAT(text.out, HasSubstr("checkpoint 2  changes"));
  EXPECT_THAT(text.out, HasSubstr("bfloat16 adam 8  hashed ids  step 2  2 files"));
  const Outcome outcome = tidepool({"checkpoint", "show", path(), "--json"});
  const json all = json::parse(outcome.out);
  ASSERT_EQ(all["checkpoints"].size(), 2u);
  const json& table = all["checkpoints"][1]["tables"][0];
  EXPECT_EQ(table["name"], "items");
  EXPECT_EQ(table["step"], 2);
  EXPECT_EQ(table["files"][0]["name"], "0000000001-0000.rows");
  EXPECT_EQ(table["files"][1]["kind"], "changes");
}

TEST_F(CommandTest, VerifySaysWhetherItIsWhole) {
  const Outcome whole = tidepool({"checkpoint", "verify", path()});
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("checkpoint 2 is whole"));
  std::filesystem::resize_file(path() + "/0000000002-0000.rows", 700);
  const Outcome cut = tidepool({"checkpoint", "verify", path()});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.out, HasSubstr("0000000002-0000.rows has 700 bytes"));
  EXPECT_THAT(cut.out, HasSubstr("cannot be restored"));
  const Outcome report = tidepool({"checkpoint", "verify", "--json", path()});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(json::parse(report.out)["whole"], false);
  EXPECT_EQ(tidepool({"checkpoint", "verify", "--number", "1", path()}).exit_code, 0);
}

TEST_F(CommandTest, MistakesAreSaid) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"checkpoint"},
                                             {"checkpoint", "show"},
                                             {"checkpoint", "mend", path()},
                                             {"checkpoint", "verify", path(), "--number", "x"}}) {
    EXPECT_EQ(tidepool(words).exit_code, 2);
  }
  const Outcome nowhere = tidepool({"checkpoint", "verify", "/nowhere"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("/nowhere"));
  const Outcome missing = tidepool({"checkpoint", "verify", path(), "--number", "9"});
  EXPECT_EQ(missing.exit_code, 1);
}

}  // namespace
}  // namespace tidepool::cli
