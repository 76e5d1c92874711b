#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/core/schedule/recorded_collectives.h"
#include "tests/support/case_name.h"

namespace shardlens::schedule {
namespace {

// Compared with the collectives that PyTorch's parallelize_module and fully_shard issued over Gloo
// (tests/tools/tensor_programs.py). The optimizer's are not part of a workload. Without fully_shard
// it is the optimizer that sums partial gradients.
class TensorProgramsTest : public testing::TestWithParam<std::string> {};

TEST_P(TensorProgramsTest, CollectivesAreThoseOfPyTorch) {
  const test::RecordedProgram program = test::recorded_program("tensor", GetParam());
  const bool sums_in_backward = program.values.value("fully_shard", true);
  const std::vector<std::string> expected = test::recorded_collectives(program, 0);
  ASSERT_FALSE(expected.empty());
  EXPECT_EQ(test::planned_collectives(program, 0, sums_in_backward), expected);
}

// All files but those of sizes that are not divided, and those that gather keys and values
// themselves instead of with context_parallel().
std::vector<std::string> programs() {
  const std::string folder = std::string(SHARDLENS_TEST_DATA) + "/tensor";
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json") {
      continue;
    }
    const nlohmann::json program = test::read_json(entry.path().string());
    const bool by_hand = program.contains("gather") && program["gather"] != "ring" &&
                         program["gather"] != "all_gather";
    if (!name.ends_with("uneven") && !by_hand) {
      out.push_back(name);
    }
  }
  std::ranges::sort(out);
  return out;
}

INSTANTIATE_TEST_SUITE_P(PyTorch,
                         TensorProgramsTest,
                         testing::ValuesIn(programs()),
                         [](const auto& info) { return shardlens::test::case_name(info.param); });

}  // namespace
}  // namespace shardlens::schedule
