// `plan --engine`: the engine shards a model that does not fit in this machine's memory.
#include <chrono>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class PlanEngineTest : public ShardlensCommandTest {
 protected:
  // Meta's model of 70 billion parameters; each of 8 ranks has 8 819 213 312 of them.
  [[nodiscard]] std::string llama_70b() const {
    std::ofstream(folder_ + "/config.json") << R"({"model_type": "llama", "vocab_size": 128256,
      "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
      "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192})";
    return folder_ + "/config.json";
  }
};

TEST_F(PlanEngineTest, ShardsSeventyBillionParametersInTimeAndMemory) {
  const auto start = std::chrono::steady_clock::now();
  const CommandResult result = run("plan --model " + llama_70b() + " --world-size 8 --engine");
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  rusage children{};
  getrusage(RUSAGE_CHILDREN, &children);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("model.layers.79"), HasSubstr("(root)")));
  EXPECT_THAT(result.err, AllOf(StartsWith("engine: rank 0 of 8 holds 32.85 GiB in 81 "
                                           "units, as planned, none of them allocated; "),
                                HasSubstr(" MiB resident")));
  EXPECT_LT(elapsed.count(), 10);
  EXPECT_LT(children.ru_maxrss, 2L << 20);  // KiB
  RecordProperty("seconds", std::to_string(elapsed.count()));
  RecordProperty("mebibytes", std::to_string(children.ru_maxrss >> 10));
}

TEST_F(PlanEngineTest, TakesPlansOfEveryKind) {
  const std::string model = std::string(SHARDLENS_TEST_DATA) + "/llama-tiny";
  std::ofstream(folder_ + "/plan.json") << R"({"version": 1, "layout": "per_parameter",
    "mesh": {"replicate": 2, "shard": 3}, "ignored_modules": ["model.norm"],
    "frozen_parameters": ["model.layers.1.**", "model.layers.2.mlp.**"]})";
  const CommandResult mixed = run(
      "plan --model " + model + " --world-size 6 --engine --json --plan " + folder_ + "/plan.json");
  EXPECT_EQ(mixed.code, 0);
  EXPECT_THAT(mixed.out, StartsWith("{"));
  EXPECT_THAT(mixed.err, StartsWith("engine: rank 0 of 6 holds "));
  const CommandResult replicated = run("plan --model " + model + " --engine --strategy replicate");
  EXPECT_EQ(replicated.code, 2);
  EXPECT_THAT(replicated.err, HasSubstr("cannot be deferred"));
}

}  // namespace
}  // namespace shardlens
