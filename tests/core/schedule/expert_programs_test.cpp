#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/core/schedule/recorded_collectives.h"
#include "tests/support/case_name.h"

namespace shardlens::schedule {
namespace {

// Compared with the collectives that PyTorch issued over Gloo with torchtitan's MoE and
// ExpertParallel (tests/tools/expert_programs.py), on every rank: with a skew they send and receive
// different numbers of bytes.
class ExpertProgramsTest : public testing::TestWithParam<std::string> {};

TEST_P(ExpertProgramsTest, CollectivesAreThoseOfPyTorch) {
  const test::RecordedProgram program = test::recorded_program("expert", GetParam());
  for (int64_t rank = 0; rank < program.plan.world_size; ++rank) {
    const std::vector<std::string> expected = test::recorded_collectives(program, rank);
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(test::planned_collectives(program, rank), expected) << "rank " << rank;
  }
}

std::vector<std::string> programs_with_experts() {
  std::vector<std::string> out;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SHARDLENS_TEST_DATA) + "/expert")) {
    out.push_back(entry.path().stem().string());
  }
  std::ranges::sort(out);
  return out;
}

INSTANTIATE_TEST_SUITE_P(PyTorch,
                         ExpertProgramsTest,
                         testing::ValuesIn(programs_with_experts()),
                         [](const auto& info) { return shardlens::test::case_name(info.param); });

}  // namespace
}  // namespace shardlens::schedule
