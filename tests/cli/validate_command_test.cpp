#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using testing::HasSubstr;

const std::string kRuns = std::string(SHARDLENS_TEST_DATA) + "/training_runs.csv";

class ValidateCommandTest : public ShardlensCommandTest {
 protected:
  // A table of every fourth row: predicting all takes ten seconds.
  [[nodiscard]] std::string some_runs() const {
    std::ifstream in(kRuns);
    std::ofstream out(folder_ + "/some.csv");
    std::string line;
    for (int i = 0; std::getline(in, line); ++i) {
      if (i % 4 == 0) {
        out << line << "\n";
      }
    }
    return folder_ + "/some.csv";
  }
};

TEST_F(ValidateCommandTest, JsonHasARowForEachRunAndFiguresOfThoseThatCount) {
  const CommandResult result = run("validate --runs " + kRuns + " --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json out = nlohmann::json::parse(result.out);
  EXPECT_EQ(out["schema"], 1);
  EXPECT_EQ(out["rows"].size(), 237U);  // as many as in the file
  int64_t used = 0;
  for (const nlohmann::json& row : out["rows"]) {
    used += row["used_to_fit"].get<bool>() ? 1 : 0;
    EXPECT_EQ(row["in_scope"].get<bool>(), row["error"].is_number()) << row;
    EXPECT_EQ(row.contains("why_not"), !row["in_scope"].get<bool>()) << row;
  }
  EXPECT_EQ(out["rows_used_to_fit"], used);
  EXPECT_LE(out["mape"].get<double>(), 0.08);
  EXPECT_LE(out["mape"].get<double>(), out["worst"].get<double>());
  EXPECT_TRUE(out["spearman"].contains("H100-SXM-80GB"));
  EXPECT_EQ(out["errors"][0]["mape"], out["mape"]);
  EXPECT_EQ(out["errors"][1]["name"], "constant FLOP rate");
  EXPECT_EQ(out["left_out"].size(), 3U);
}

TEST_F(ValidateCommandTest, TextNamesWhatIsNotModelled) {
  const CommandResult result = run("validate --runs " + some_runs());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("modelled:"));
  EXPECT_THAT(result.out, HasSubstr("used to fit"));
  EXPECT_THAT(result.out, HasSubstr("mean error"));
  EXPECT_THAT(result.out, HasSubstr("log-linear"));
  EXPECT_THAT(result.out, HasSubstr("mosaicml/llm-foundry, left out"));
}

TEST_F(ValidateCommandTest, BadInputIsNamed) {
  EXPECT_EQ(run("validate").code, 2);
  const CommandResult missing = run("validate --runs /nowhere.csv");
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr("/nowhere.csv"));
  const CommandResult wrong = run("validate --runs " + kRuns + " --stacks " + kRuns);
  EXPECT_EQ(wrong.code, 3);
  EXPECT_THAT(wrong.err, HasSubstr("training_runs.csv"));
}

}  // namespace
}  // namespace shardlens
