// Captures of plans with replicated units: losses, the order of buckets, and their analysis.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiler/analysis/analysis.h"
#include "sim/calibrate/observation.h"
#include "tests/core/weights/checkpoint_builder.h"
#include "tests/support/case_name.h"

namespace shardlens {
namespace {

using models::testing::TemporaryDirectory;
using nlohmann::json;

const std::filesystem::path kData = SHARDLENS_TEST_DATA;

struct Captured {
  std::vector<double> losses;
  trace::Run run;
};

Captured capture(const std::string& model, const std::string& flags) {
  const TemporaryDirectory directory;
  const auto out = directory.path() / "out";
  const std::string log = (directory.path() / "log").string();
  const std::string command = std::string(SHARDLENS_BIN_DIR) + "/shardlens capture --model " +
                              (kData / model).string() + " --tokens " +
                              (kData / "tokens.u16.bin").string() + " --steps 4 --out " +
                              out.string() + " " + flags + " >" + log + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << std::ifstream(log).rdbuf();
  Captured result;
  std::ifstream metrics(out / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    result.losses.push_back(json::parse(line)["loss"]);
  }
  result.run = trace::Run::open(out);
  return result;
}

std::string plan_file(const TemporaryDirectory& directory, const std::string& plan) {
  return "--plan " + models::testing::write(directory.path() / "plan.json", plan).string();
}

// Expects that buckets are planned from config.json, issued by the Reducer and started by the
// communication thread in one order.
void expect_one_order(const trace::Run& run) {
  const analysis::Analysis found = analysis::analyze(run);
  for (const analysis::RankAnalysis& rank : found.ranks) {
    for (const auto& check : {rank.order.planned_vs_issued, rank.order.issued_vs_started}) {
      EXPECT_GT(check.compared, 0);
      if (const auto& difference = check.first_difference) {
        ADD_FAILURE() << "step " << difference->step << " at " << difference->index << ": expected "
                      << (difference->expected ? to_string(*difference->expected) : "none")
                      << ", found " << (difference->found ? to_string(*difference->found) : "none");
      }
    }
  }
}

void expect_losses(const std::vector<double>& found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(found[i], wanted[i], 1e-5 * wanted[i]) << "step " << i;
  }
}

struct Model {
  const char* name;
  const char* embedding;
  const char* blocks;
};

void PrintTo(const Model& model, std::ostream* out) {
  *out << model.name;
}

class ReplicateRunsTest : public ::testing::TestWithParam<Model> {};

TEST_P(ReplicateRunsTest, BucketsAreReducedInThePlannedOrder) {
  const TemporaryDirectory directory;
  for (const std::string flags : {R"("static_graph": false)", R"("static_graph": true)",
                                  R"("find_unused_parameters": true)"}) {
    SCOPED_TRACE(flags);
    const Captured run =
        capture(GetParam().name, plan_file(directory, R"({"version": 1, "bucket_cap_mb": 0.05,
            "units": [{"modules": "", "api": "replicate"}], )" +
                                                          flags + "}"));
    expect_one_order(run.run);
    std::set<std::string> buckets;
    const analysis::Analysis found = analysis::analyze(run.run);
    for (const analysis::UnitFigures& unit : found.ranks.at(0).units) {
      if (unit.fqn.starts_with("bucket ")) {
        buckets.insert(unit.fqn);
      }
    }
    EXPECT_GT(buckets.size(), 8U);
  }
}

TEST_P(ReplicateRunsTest, MixedPlansTrainLikeEitherApiAlone) {
  const TemporaryDirectory directory;
  const Captured replicated = capture(GetParam().name, "--strategy replicate");
  const Captured sharded = capture(GetParam().name, "--strategy full_shard");
  const Captured mixed =
      capture(GetParam().name,
              plan_file(directory, std::string(R"({"version": 1, "bucket_cap_mb": 0.05, "units": [
          {"modules": )") + GetParam().embedding +
                                       R"(, "api": "replicate"},
          {"modules": ")" + GetParam().blocks +
                                       R"("}, {"modules": ""}]})"));
  expect_losses(mixed.losses, replicated.losses);
  expect_losses(mixed.losses, sharded.losses);
  expect_one_order(mixed.run);
  expect_one_order(replicated.run);
  EXPECT_FALSE(sim::observe(mixed.run).steps.empty());
  EXPECT_FALSE(sim::observe(replicated.run).steps.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ReplicateRunsTest,
    ::testing::Values(Model{"llama-tiny", R"("model.embed_tokens")", "model.layers.*"},
                      Model{"gpt2-tiny", R"(["transformer.wte", "lm_head"])", "transformer.h.*"}),
    [](const auto& model) { return test::case_name(model.param.name); });

TEST(EmulatedReplicateTest, RanksHaveTheSameOrder) {
  const Captured run = [] {
    const TemporaryDirectory directory;
    const auto out = directory.path() / "out";
    const std::string command = std::string(SHARDLENS_BIN_DIR) + "/shardlens capture --model " +
                                (kData / "llama-tiny").string() + " --tokens " +
                                (kData / "tokens.u16.bin").string() + " --steps 3 --out " +
                                out.string() +
                                " --strategy replicate --backend emulated --world-size 8 --rank 1"
                                " --hardware ab:0:inf 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return Captured{{}, trace::Run::open(out)};
  }();
  expect_one_order(run.run);
}

}  // namespace
}  // namespace shardlens
