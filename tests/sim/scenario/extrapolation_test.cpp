#include "sim/scenario/extrapolation.h"

#include <memory>

#include <gtest/gtest.h>

#include "core/plan/grouped_blocks.h"
#include "core/plan/plan.h"
#include "sim/engine/simulated_run.h"
#include "sim/scenario/uncertainty.h"

namespace shardlens::sim {
namespace {

// A simulated run of eight equal blocks, each a unit, on hardware where every collective shows.
class EightBlocks {
 public:
  EightBlocks() {
    Scenario scenario;
    scenario.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
        R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
            "num_hidden_layers": 8, "num_attention_heads": 8, "vocab_size": 512,
            "max_position_embeddings": 256})",
        "test"));
    scenario.plan = plan::strategy_plan("full_shard", scenario.model->tree());
    scenario.step = {.batch = 1, .seq = 128};
    scenario.machine = std::make_shared<const TargetMachine>(load_hardware("4xPCIe"));
    scenario.world_size = 4;
    const Prediction own = evaluate(scenario, {.timeline = true});
    SimulatedRunOptions options;
    options.host = own.host;
    options.steps = 4;
    trace::Run run = simulated_run(own.priced, own.step, options);
    run.planned = trace::PlannedInputs{*own.priced.plan, *own.priced.workload, own.settings, {}};
    run_ = RecordedRun::of(run);
  }

  // With this many blocks in each unit.
  [[nodiscard]] Prediction grouped(int64_t blocks) const {
    Scenario changed = own_scenario(run_);
    changed.plan.units = plan::grouped_blocks(changed.model->tree(), blocks);
    Prediction out = evaluate(changed);
    Uncertainty(run_).add_to(changed, out);
    return out;
  }

 private:
  std::shared_ptr<const RecordedRun> run_;
};

TEST(Extrapolation, TheOwnPlanHasNone) {
  EXPECT_TRUE(EightBlocks().grouped(1).extrapolated.empty());
}

// Units of eight blocks: gathers and scatters of about eight times the largest measured size.
TEST(Extrapolation, LargeUnitsAreFarAndHaveWiderIntervals) {
  const EightBlocks machine;
  const Prediction far = machine.grouped(8), near = machine.grouped(2);
  const std::string text = far_extrapolations_text(far.extrapolated);
  EXPECT_NE(text.find("all_gather between 4 ranks at "), std::string::npos) << text;
  EXPECT_NE(text.find(" x the largest measured size ("), std::string::npos) << text;
  for (const Extrapolation& each : far.extrapolated) {
    EXPECT_NEAR(each.beyond, 8, 0.5) << each.work;
    EXPECT_GT(each.share, 0) << each.work;
  }
  const auto width = [](const Prediction& of) {
    return static_cast<double>(of.change_interval->high - of.change_interval->low);
  };
  EXPECT_GT(width(far), 1.5 * width(near));
  EXPECT_GT(far.interval->low, 0);
}

TEST(Extrapolation, OnlyWorkThatTakesTimeIsNamed) {
  Extrapolation each{"all_gather between 2 ranks", 3.25, 10, 0.5};
  EXPECT_EQ(far_extrapolations_text({&each, 1}),
            "all_gather between 2 ranks at 3.25 x the largest measured size (50.0 % of the step)");
  each.beyond = 0.25;
  EXPECT_EQ(far_extrapolations_text({&each, 1}),
            "all_gather between 2 ranks at 0.25 x the smallest measured size (50.0 % of the step)");
  each.share = 0.001;
  EXPECT_EQ(far_extrapolations_text({&each, 1}), "");
  each = {"gemm in bf16", 1.9, 10, 0.5};
  EXPECT_EQ(far_extrapolations_text({&each, 1}), "");
}

}  // namespace
}  // namespace shardlens::sim
