// Replays of DDP's traces: recorded ones, and one whose times are known exactly.
#include "sim/calibrate/replicated_observation.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "core/plan/resolve.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/trace/run.h"
#include "sim/calibrate/calibration.h"
#include "sim/scenario/recorded_run.h"

namespace shardlens::sim {
namespace {

using testing::HasSubstr;

const std::string kRecordings = SHARDLENS_SOURCE_DIR "/tests/data/pytorch_traces/";
constexpr Nanoseconds kUs = 1000;

plan::ResolvedPlan replicated_under(const RecordedRun& run, const std::string& settings) {
  const std::string text =
      R"({"version": 1, "units": [{"modules": "", "api": "replicate"}])" + settings + "}";
  return plan::resolve(plan::parse_plan(text, "plan.json"), run.tree(), 2);
}

std::vector<Bytes> planned_buckets(const RecordedRun& run, const plan::ResolvedPlan& plan) {
  std::vector<Bytes> bytes;
  for (const auto& bucket :
       schedule::planned_step(run.workload(plan, run.observation().settings), plan, 3, 1, true)
           .buckets) {
    bytes.push_back(bucket.bytes);
  }
  return bytes;
}

std::shared_ptr<const RecordedRun> open(const std::string& name) {
  const std::filesystem::path path = kRecordings + name;
  return RecordedRun::open(std::span(&path, 1));
}

TEST(ReplicatedReplay, PlansTheBucketsThatDdpHad) {
  for (const std::string name : {"ddp-buckets", "ddp-accumulate"}) {
    const std::shared_ptr<const RecordedRun> run = open(name);
    const auto said =
        nlohmann::json::parse(plan::read_text_file(kRecordings + "../" + name + ".expected.json"));
    EXPECT_EQ(planned_buckets(*run, run->observation().plan),
              said["bytes"].get<std::vector<Bytes>>())
        << name;
    ASSERT_FALSE(run->observation().steps.empty());
    for (const ObservedStep& step : run->observation().steps) {
      Nanoseconds sum = step.outside + step.norm_communication + step.outside_communication;
      for (const ObservedItem& item : step.items) {
        sum += item.host + std::max<Nanoseconds>(0, item.run) + item.waited;
      }
      EXPECT_EQ(sum, step.duration) << name << " " << step.number;
    }
    EXPECT_GT(run->baseline().simulated, 0) << name;
  }
}

// A cap of 100 MiB joins all gradients in one bucket; smaller caps divide a recorded bucket by
// gradients.
TEST(ReplicatedReplay, OtherCapsMakeOtherBuckets) {
  const std::shared_ptr<const RecordedRun> run = open("ddp-buckets");
  const auto one = replicated_under(*run, R"(, "bucket_cap_mb": 100)");
  EXPECT_EQ(planned_buckets(*run, one), std::vector<Bytes>{494848});
  EXPECT_EQ(planned_buckets(*run, replicated_under(*run, R"(, "bucket_cap_mb": 0.00001)")).size(),
            21U);
}

TEST(ReplicatedReplay, ShardingIsNotKnown) {
  const std::shared_ptr<const RecordedRun> run = open("ddp-buckets");
  const plan::ResolvedPlan sharded =
      plan::resolve(plan::strategy_plan("full_shard", run->tree()), run->tree(), 2);
  try {
    (void)run->workload(sharded, run->observation().settings);
    FAIL() << "a DDP trace has no all-gathers";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all-gathers and reduce-scatters"));
    EXPECT_THAT(error.what(), HasSubstr("fully_shard"));
  }
}

// Only the program's plan knows the modules of a run of DDP.
TEST(ReplicatedReplay, OtherCheckpointsAreNotKnown) {
  Observation recorded = open("ddp-buckets")->observation();
  const auto plan_with = [](const std::string& checkpoints) {
    return plan::parse_plan(R"({"version": 1, "units": [{"modules": "", "api": "replicate"}],
                               "activation_checkpointing": )" +
                                checkpoints + "}",
                            "plan.json");
  };
  const auto refusal = [&](const std::string& checkpoints) -> std::string {
    try {
      (void)on_recorded_modules(recorded, plan_with(checkpoints));
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto says_what_to_record =
      testing::AllOf(HasSubstr("plan.json#/activation_checkpointing: "), HasSubstr("under DDP"),
                     HasSubstr("record a step with these checkpoints"));
  EXPECT_THAT(refusal(R"(["model.layers.*"])"), says_what_to_record);
  EXPECT_EQ(refusal("[]"), "accepted");
  const plan::ModuleTree tree =
      plan::module_tree(plan::load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny"));
  recorded.program = plan::resolve(plan_with(R"(["model.layers.0", "model.layers.1"])"), tree, 2);
  EXPECT_THAT(refusal(R"(["model.layers.*"])"), says_what_to_record);
  EXPECT_THAT(refusal(R"(["model.layer.*"])"), HasSubstr("did you mean 'model.layers.*'?"));
  // Those with which it ran, named in another way.
  const plan::Plan same =
      on_recorded_modules(recorded, plan_with(R"(["model.layers.1", "model.layers.0"])"));
  EXPECT_EQ(same.activation_checkpointing, std::vector<std::string>{});
  EXPECT_NO_THROW((void)plan::resolve(same, recorded.plan.tree, 2));
  // Units by other names than the root's.
  plan::Plan sharded = plan_with("[]");
  sharded.units.front().globs = {"model.layers.*"};
  sharded.units.front().api = plan::Api::kFullyShard;
  try {
    (void)on_recorded_modules(recorded, sharded);
    FAIL() << "a DDP trace has no all-gathers";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all-gathers and reduce-scatters"));
  }
}

// A rank's trace of DDP with two gradients of 1 MiB, each in its own bucket.
class Recorded {
 public:
  Recorded() {
    trace.metadata.source = "rank0.json";
    trace.metadata.rank = 0;
    trace.metadata.world_size = 2;
    main_ = trace.track(1, 1);
    gloo_ = trace.track(1, 2);
    for (int step = 0; step < 4; ++step) {
      add(step);
    }
  }

  trace::Trace trace;

 private:
  using Category = trace::Category;

  void op(std::string_view name, Nanoseconds start, Nanoseconds us, const std::string& dims) {
    const uint32_t event = trace.add_complete(Category::kCpuOp, name, main_, at_ + start * kUs,
                                              at_ + (start + us) * kUs);
    trace.set_args(event, R"({"Input Dims": )" + dims + R"(, "Input type": ["float", "float"]})");
  }
  void range(std::string_view name, uint32_t track, Nanoseconds start, Nanoseconds us) {
    (void)trace.add_complete(Category::kUserAnnotation, name, track, at_ + start * kUs,
                             at_ + (start + us) * kUs);
  }
  // Autograd's node with its product, and the gradient's node with the Reducer's copy and c10d's
  // call.
  void backward(Nanoseconds start) {
    op("autograd::engine::evaluate_function: MmBackward0", start, 200, "[]");
    op("aten::mm", start, 200, "[[512, 512], [512, 512]]");
    op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", start + 200, 60,
       "[]");
    op("torch::distributed::reducer::mul_out", start + 200, 40, "[[512, 512]]");
    op("c10d::allreduce_", start + 240, 20, "[[[262144]]]");
  }

  // Forward 0 to 200, backward to 720, the first bucket 260 to 660, the second 660 to 1060, copies
  // back at 720 and 1060, 30 each.
  void add(int step) {
    at_ = step * 1500 * kUs;
    range("ProfilerStep#" + std::to_string(step), main_, 0, 1200);
    range("DistributedDataParallel.forward", main_, 0, 200);
    op("aten::mm", 0, 100, "[[512, 512], [512, 512]]");
    op("aten::mm", 100, 100, "[[512, 512], [512, 512]]");
    backward(200);
    range("gloo:all_reduce", gloo_, 460, 400);
    backward(460);
    range("gloo:all_reduce", gloo_, 860, 200);
    op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 860, 30, "[[512, 512]]");
    op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 1060, 30, "[[512, 512]]");
    range("Optimizer.step#SGD.step", main_, 1090, 110);
    op("aten::add_", 1100, 100, "[[512, 512], [512, 512]]");
  }

  uint32_t main_ = 0, gloo_ = 0;
  Nanoseconds at_ = 0;
};

// Its time says how long a forward of another size takes.
TEST(ReplicatedReplay, AttentionThatRunsAgainIsOfTheClassOfForward) {
  plan::Operator op;
  op.kind = plan::OperatorKind::kAttention;
  op.phase = plan::Phase::kBackward;
  op.name = "aten::_scaled_dot_product_flash_attention_for_cpu";
  EXPECT_EQ(class_of(op), "attention");
  op.name += "_backward";
  EXPECT_EQ(class_of(op), "attention_backward");
}

// By hand: both products and their gradients 200 us + 2 * 260 us, the first bucket's copy back
// waits for its end at 860, the second's for 1060; 30 us copied back after each, and 110 us of the
// optimizer's step: 1200 us.
TEST(ReplicatedReplay, TakesAsLongAsWasRecorded) {
  trace::Run run;
  run.source = "by hand";
  run.traces.push_back(Recorded().trace);
  const std::shared_ptr<const RecordedRun> recorded = RecordedRun::of(run);
  EXPECT_EQ(planned_buckets(*recorded, recorded->observation().plan),
            (std::vector<Bytes>{1 << 20, 1 << 20}));
  EXPECT_EQ(recorded->observation().steps.size(), 4U);
  const Baseline baseline = recorded->baseline();
  EXPECT_EQ(baseline.measured, 1200 * kUs);
  EXPECT_NEAR(baseline.error(), 0, 0.03);
}

// The model's two parameters are in bf16, and so are their two moments: 4 bytes for each of 2^20
// elements. The plan of the trace has the 2 MiB of gradients as 2^19 elements of fp32.
TEST(ReplicatedReplay, KeepsAllStatesOfAModelInBf16) {
  plan::ModuleTree tree;
  tree.modules.push_back({.fqn = "", .type = "Net", .children = {}, .parameters = {0, 1}});
  for (const char* name : {"first", "second"}) {
    tree.parameters.push_back({.fqn = name,
                               .shape = {512, 1024},
                               .numel = 512 * 1024,
                               .aliases = {},
                               .dtype = DType::kBF16,
                               .state_bytes = 4});
  }
  trace::Run run;
  run.source = "by hand";
  run.traces.push_back(Recorded().trace);
  run.program.emplace().plan = plan::resolve(
      plan::parse_plan(R"({"version": 1, "units": [{"modules": "", "api": "replicate"}]})",
                       "plan.json"),
      tree, 2);
  const std::shared_ptr<const RecordedRun> recorded = RecordedRun::of(run);
  double bytes = 0;
  for (const plan::Parameter& each : recorded->observation().plan.tree.parameters) {
    ASSERT_TRUE(each.state_bytes);
    bytes += *each.state_bytes * static_cast<double>(each.numel);
  }
  EXPECT_EQ(bytes, 4 << 20);
}

}  // namespace
}  // namespace shardlens::sim
