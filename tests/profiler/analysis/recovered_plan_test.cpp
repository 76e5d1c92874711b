// plan --from-trace recovers the plan that was run: from PyTorch's recordings, each made with a
// known plan (tests/tools/record_pytorch_traces.py), and from our own committed capture.
#include "profiler/analysis/recover/recovered_plan.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/schedule/planned/planned.h"
#include "profiler/trace/run.h"
#include "tests/profiler/analysis/trace_builder.h"
#include "tests/support/case_name.h"

namespace shardlens::analysis {
namespace {

using testing::HasSubstr;

const std::filesystem::path kData = SHARDLENS_TEST_DATA;

RecoveredPlan recovered(const std::filesystem::path& path) {
  trace::ReadOptions options;
  options.keep_args = true;
  return recover_plan(trace::Run::open(path, options).traces.front());
}

// The fixture's model cut to `layers` layers.
plan::ModuleTree tree_of(const std::string& model, int layers) {
  const std::filesystem::path path = kData / model / "config.json";
  nlohmann::json config = nlohmann::json::parse(plan::read_text_file(path));
  config[model == "gpt2-tiny" ? "n_layer" : "num_hidden_layers"] = layers;
  return plan::module_tree(plan::parse_model_config(config.dump(), path.string()));
}

struct Recording {
  const char* name;
  const char* model = "llama-tiny";
  int layers = 2;
  int64_t ranks = 2;
};

void PrintTo(const Recording& recording, std::ostream* out) {
  *out << recording.name;
}

class RecoveredPlanTest : public testing::TestWithParam<Recording> {};

TEST_P(RecoveredPlanTest, IsThePlanThatWasRun) {
  const Recording& r = GetParam();
  const std::filesystem::path folder = kData / "pytorch_traces" / r.name;
  const plan::ModuleTree tree = tree_of(r.model, r.layers);
  RecoveredPlan found = recovered(folder / "rank0.pt.trace.json.gz");
  if (!found.names_units) {
    ASSERT_TRUE(name_units(found, tree));
  }
  EXPECT_EQ(found.world_size, r.ranks);
  const plan::ResolvedPlan ran =
      plan::resolve(plan::load_plan(folder / "plan.json"), tree, r.ranks);
  // Through a plan file, as a user gets it.
  const plan::Plan written = plan::parse_plan(plan::to_json(found.plan), "recovered");
  const plan::ResolvedPlan again = plan::resolve(written, tree, found.world_size);
  EXPECT_EQ(again.plan.dialect, ran.plan.dialect);
  EXPECT_EQ(again.plan.layout, ran.plan.layout);
  EXPECT_EQ(again.plan.reshard_after_forward, ran.plan.reshard_after_forward);
  EXPECT_EQ(again.plan.backward_prefetch, ran.plan.backward_prefetch);
  EXPECT_EQ(again.plan.backward_prefetch_lists, ran.plan.backward_prefetch_lists);
  EXPECT_EQ(again.plan.forward_prefetch, ran.plan.forward_prefetch);
  EXPECT_EQ(again.plan.forward_prefetch_lists, ran.plan.forward_prefetch_lists);
  EXPECT_EQ(again.plan.limit_all_gathers, ran.plan.limit_all_gathers);
  EXPECT_EQ(again.plan.mixed_precision, ran.plan.mixed_precision);
  EXPECT_EQ(again.replicas(), ran.replicas());
  EXPECT_EQ(again.shards(), ran.shards());
  EXPECT_EQ(again.checkpointed_modules, ran.checkpointed_modules);
  ASSERT_EQ(again.units.size(), ran.units.size());
  for (UnitId id = 0; id < ran.units.size(); ++id) {
    EXPECT_EQ(again.units[id].fqn, ran.units[id].fqn);
    EXPECT_EQ(again.units[id].parameters, ran.units[id].parameters);
    EXPECT_EQ(again.units[id].reshard_after_forward, ran.units[id].reshard_after_forward)
        << ran.units[id].fqn;
    // Sizes come from messages, layouts from the model.
    for (const RecoveredUnit& unit : found.units) {
      if (unit.fqn == ran.units[id].fqn) {
        EXPECT_EQ(unit.padded_numel, ran.layout(id).padded_numel()) << unit.fqn;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recordings,
                         RecoveredPlanTest,
                         testing::Values(Recording{"fsdp2-default"},
                                         Recording{"fsdp2-reshard"},
                                         Recording{"fsdp2-no-reshard"},
                                         Recording{"fsdp2-prefetch", "llama-tiny", 3},
                                         Recording{"fsdp2-group"},
                                         Recording{"fsdp2-bf16", "gpt2-tiny"},
                                         Recording{"fsdp2-checkpoint"},
                                         Recording{"fsdp2-hybrid", "llama-tiny", 2, 4},
                                         Recording{"fsdp1-full"},
                                         Recording{"fsdp1-grad-op"},
                                         Recording{"fsdp1-post", "llama-tiny", 3},
                                         Recording{"fsdp1-forward", "llama-tiny", 3},
                                         Recording{"fsdp1-none"},
                                         Recording{"fsdp1-bf16", "gpt2-tiny"}),
                         [](const auto& each) { return test::case_name(each.param.name); });

// Our capture has its plan in a file next to the trace; the trace by itself must give the same.
TEST(RecoveredPlanOfACaptureTest, OrdersWhatThePlanOrders) {
  const std::filesystem::path capture = SHARDLENS_SOURCE_DIR "/traces/llama-emulated8";
  const RecoveredPlan found = recovered(capture);
  const plan::ModelConfig config = plan::load_model_config(capture);
  const plan::ModuleTree tree = plan::module_tree(config);
  const plan::ResolvedPlan ran = plan::resolve(plan::load_plan(capture / "plan.json"), tree, 8);
  const plan::ResolvedPlan again = plan::resolve(found.plan, tree, found.world_size);
  ASSERT_EQ(again.units.size(), ran.units.size());
  EXPECT_EQ(again.shards(), ran.shards());
  EXPECT_EQ(again.plan.layout, ran.plan.layout);
  // The schedules of both plans have the same actions.
  const auto planned = [&](const plan::ResolvedPlan& plan) {
    std::vector<std::string> out;
    for (const auto& each :
         schedule::planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 32}), plan, 3)
             .actions) {
      const bool collective = each.action.op == schedule::Op::kAllGather ||
                              each.action.op == schedule::Op::kReduceScatter;
      if (collective || each.action.op == schedule::Op::kFree) {
        out.push_back(std::string(name_of(each.action.op)) + " " +
                      plan.units[each.action.unit].fqn);
      }
    }
    return out;
  };
  EXPECT_EQ(planned(again), planned(ran));
}

TEST(RecoveredWorkloadTest, DrivesTheScheduleLikeTheModels) {
  const std::filesystem::path folder = kData / "pytorch_traces" / "fsdp2-default";
  const RecoveredPlan found = recovered(folder / "rank0.pt.trace.json.gz");
  const plan::ModuleTree tree = tree_of("llama-tiny", 2);
  plan::ResolvedPlan resolved = plan::resolve(found.plan, tree, 2);
  EXPECT_EQ(found.recorded.workload.batch, 2);
  EXPECT_EQ(found.recorded.workload.seq, 32);
  const plan::Workload read =
      plan::parse_workload(plan::to_json(found.recorded.workload, resolved), "recovered", resolved);
  EXPECT_EQ(read, found.recorded.workload);
  // The hooks are those of the model's own workload, which the schedule expects.
  const std::filesystem::path config_path = kData / "llama-tiny" / "config.json";
  nlohmann::json config = nlohmann::json::parse(plan::read_text_file(config_path));
  config["num_hidden_layers"] = 2;
  const plan::Workload own = plan::step_workload(
      plan::parse_model_config(config.dump(), "config.json"), resolved, {.batch = 2, .seq = 32});
  const auto hooks = [](const plan::Workload& w) {
    std::vector<std::string> out;
    for (const plan::WorkloadItem& item : w.order) {
      if (item.kind == plan::WorkloadItem::Kind::kHook) {
        out.push_back(std::string(name_of(w.hooks[item.index].hook)) +
                      std::to_string(w.hooks[item.index].unit));
      }
    }
    return out;
  };
  EXPECT_EQ(hooks(read), hooks(own));
  // The arithmetic of one layer's forward by hand: q 64x64, k and v 64x32, o 64x64, gate, up and
  // down 64x172, over 2 · 32 rows.
  int64_t flops = 0;
  for (const plan::Operator& op : read.operators) {
    const bool of_layer =
        resolved.units[op.unit].fqn == "model.layers.0" && op.phase == plan::Phase::kForward;
    flops += of_layer && op.kind == plan::OperatorKind::kGemm ? op.flops : 0;
  }
  EXPECT_EQ(flops, 2 * 64 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 172 * 3));
}

TEST(RecoveredPlanOfOtherTracesTest, SayWhatWasLookedFor) {
  trace::Trace other;
  other.metadata.source = "other.json";
  other.add_complete(trace::Category::kUserAnnotation, "ProfilerStep#1", other.track(1, 1), 0, 10);
  try {
    (void)recover_plan(other);
    FAIL() << "expected an InputError";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("other.json"));
    EXPECT_THAT(error.what(), HasSubstr("FSDP::"));
    EXPECT_THAT(error.what(), HasSubstr("FullyShardedDataParallel."));
    EXPECT_THAT(error.what(), HasSubstr("record the training loop with torch.profiler"));
  }
  test::TraceBuilder tensor_parallel;  // whose all-reduces no wrapper issues
  tensor_parallel.step(1, 0, 100);
  tensor_parallel.communication({CollectiveKind::kAllReduce, "", 10, 20, 30}, 0);
  tensor_parallel.communication({CollectiveKind::kAllReduce, "", 40, 50, 60}, 0);
  try {
    (void)recover_plan(tensor_parallel.finish());
    FAIL() << "expected an InputError";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the trace, which has 2 collectives; looked for"));
    EXPECT_THAT(error.what(), HasSubstr("no plan describes them: use `shardlens analyze`"));
  }
  trace::Trace half;
  half.metadata.source = "half.json";
  half.add_complete(trace::Category::kUserAnnotation, "FSDP::pre_forward (a)", half.track(1, 1), 0,
                    10);
  try {
    (void)recover_plan(half);
    FAIL() << "expected an InputError";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("whole training step"));
  }
}

}  // namespace
}  // namespace shardlens::analysis
