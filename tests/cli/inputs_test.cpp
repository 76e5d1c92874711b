#include "cli/flags/inputs.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/temporary_directory.h"

#include "cli/flags/run_outputs.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class InputsTest : public testing::Test {
 protected:
  InputsTest() : root_(directory_.path()) {
    write("plan.json");
    write("run/run.json");
    write("run/rank0.pt.trace.json.gz");
    write("model/config.json");
    write("saved/step-00000004/checkpoint.json");
  }
  void write(const std::string& name) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << "{}";
  }
  [[nodiscard]] Inputs reading(const std::string& flag, const std::string& name) const {
    Inputs inputs;
    inputs.add(flag, root_ / name);
    return inputs;
  }
  [[nodiscard]] std::string lost(const Inputs& inputs, const std::string& file) const {
    return inputs.lost_by_writing(root_ / file);
  }

  test::TemporaryDirectory directory_;
  fs::path root_;
};

TEST_F(InputsTest, AFileIsTheSameByEveryName) {
  const Inputs inputs = reading("--plan", "plan.json");
  fs::create_symlink("plan.json", root_ / "link.json");
  fs::create_hard_link(root_ / "plan.json", root_ / "name.json");
  fs::create_directory_symlink(root_, root_ / "model/above");
  for (const char* name : {"plan.json", "run/../plan.json", "link.json", "name.json",
                           "model/above/plan.json", "model/above/link.json"}) {
    EXPECT_EQ(lost(inputs, name), "is the file that --plan reads; it would be replaced") << name;
  }
  write("other.json");
  EXPECT_EQ(lost(inputs, "other.json"), "");
  EXPECT_EQ(lost(inputs, "new.json"), "");
}

TEST_F(InputsTest, FilesOfARunAreItsOwn) {
  const Inputs inputs = reading("--workload", "run");
  EXPECT_THAT(lost(inputs, "run/run.json"), HasSubstr("is run.json of "));
  EXPECT_THAT(lost(inputs, "run/rank0.pt.trace.json.gz"), HasSubstr("which --workload reads"));
  // Every *.json of a run is read, as a trace if it is nothing else.
  EXPECT_THAT(lost(inputs, "run/new.json"), HasSubstr("would be read as a part of the run in "));
  EXPECT_EQ(lost(inputs, "run/report.html"), "");
  EXPECT_EQ(lost(inputs, "plan.json"), "");
  fs::create_hard_link(root_ / "run/run.json", root_ / "name.json");
  EXPECT_THAT(lost(inputs, "name.json"), HasSubstr("is another name of "));
  fs::create_symlink(root_ / "run/plan.json", root_ / "to_nothing.json");
  EXPECT_THAT(lost(inputs, "to_nothing.json"), HasSubstr("would be read as a part of the run"));
}

TEST_F(InputsTest, ATraceIsReadWithTheFilesNextToIt) {
  const Inputs inputs = reading("", "run/rank0.pt.trace.json.gz");
  EXPECT_THAT(lost(inputs, "run/run.json"), HasSubstr("which this command reads"));
  EXPECT_THAT(inputs.lost_by_adding_to(root_ / "run"), HasSubstr("has rank0.pt.trace.json.gz"));
  EXPECT_EQ(lost(inputs, "run/new.json"), "");  // as `convert trace.json.gz --out trace.json`
  // Not so a plan, which is read without them.
  EXPECT_EQ(lost(reading("--plan", "plan.json"), "best.json"), "");
  EXPECT_EQ(reading("--plan", "plan.json").lost_by_adding_to(root_), "");
}

TEST_F(InputsTest, PlansMayBeNextToTheirModel) {
  const Inputs inputs = reading("--model", "model");
  EXPECT_THAT(lost(inputs, "model/config.json"), HasSubstr("is config.json of "));
  EXPECT_EQ(lost(inputs, "model/plan.json"), "");
  write("model/plan.json");
  EXPECT_EQ(lost(inputs, "model/plan.json"), "");
}

TEST_F(InputsTest, CheckpointsInADirectoryAreRead) {
  const Inputs inputs = reading("--resume", "saved");
  EXPECT_THAT(lost(inputs, "saved/step-00000004/checkpoint.json"),
              HasSubstr("is checkpoint.json of "));
  EXPECT_EQ(lost(inputs, "saved/config.json"), "");
}

TEST_F(InputsTest, EmptyingADirectoryLosesWhatIsInIt) {
  const Inputs inputs = reading("--model", "model/config.json");
  EXPECT_THAT(inputs.lost_by_emptying(root_ / "model"), HasSubstr("contains "));
  EXPECT_THAT(inputs.lost_by_emptying(root_), HasSubstr("contains "));
  EXPECT_EQ(inputs.lost_by_emptying(root_ / "run"), "");
  EXPECT_EQ(inputs.lost_by_emptying(root_ / "new"), "");
  fs::create_directory_symlink(root_ / "model", root_ / "link");
  EXPECT_THAT(reading("--model", "model").lost_by_emptying(root_ / "link"),
              HasSubstr("is what --model reads"));
}

TEST_F(InputsTest, TwoOutputsMayNotBeOne) {
  EXPECT_TRUE(same_output(root_ / "plan.json", root_ / "run/../plan.json"));
  EXPECT_TRUE(same_output(root_ / "new.json", root_ / "run/../new.json"));
  EXPECT_TRUE(same_output(root_ / "new/a.json", root_ / "new/./a.json"));
  EXPECT_FALSE(same_output(root_ / "new.json", root_ / "run/new.json"));
  EXPECT_FALSE(same_output("/dev/null", "/dev/null"));
}

class RunOutputsTest : public InputsTest {
 protected:
  RunOutputsTest() {
    options_.model = root_ / "model";
    options_.out = root_ / "out";
  }
  [[nodiscard]] std::string problem() const {
    try {
      check_outputs(options_);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  RunOptions options_;
};

TEST_F(RunOutputsTest, ACaptureDoesNotReplaceItsModel) {
  EXPECT_EQ(problem(), "");
  options_.out = root_ / "model";
  EXPECT_THAT(problem(), HasSubstr("is what --model reads; it would be replaced"));
  options_.out = root_;
  EXPECT_THAT(problem(), HasSubstr("contains "));
}

TEST_F(RunOutputsTest, ASaveDoesNotReplaceTheModel) {
  options_.save = root_ / "model";
  EXPECT_THAT(problem(), HasSubstr("--save " + options_.save.string() + ": is the directory"));
  options_.save_format = SaveFormat::kFull;
  EXPECT_THAT(problem(), HasSubstr("its config.json is config.json of "));
  options_.save = options_.out;
  EXPECT_THAT(problem(), HasSubstr("is also what --out writes"));
}

TEST_F(RunOutputsTest, ARunContinuesInItsCheckpoints) {
  options_.save = options_.resume = root_ / "saved";
  EXPECT_EQ(problem(), "");
  options_.save = options_.resume = root_ / "saved/step-00000004";
  EXPECT_THAT(problem(), HasSubstr("is the directory that --resume reads"));
}

}  // namespace
}  // namespace shardlens::cli
