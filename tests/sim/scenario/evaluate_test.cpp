#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "profiler/analysis/analysis.h"
#include "sim/cost/gpu_cost_model.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 1024,
  "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8,
  "vocab_size": 32000, "max_position_embeddings": 2048})";

// A node of eight H100s, on which a plan's step is simulated with its timeline.
Scenario scenario_of(std::string_view strategy = "full_shard", int64_t ranks = 8) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(kModel, "test"));
  out.plan = plan::strategy_plan(strategy, out.model->tree());
  out.world_size = ranks;
  out.step = {.batch = 2, .seq = 1024};
  out.machine = std::make_shared<const TargetMachine>(load_hardware("8xH100"));
  return out;
}

Prediction predicted(const Scenario& scenario) {
  return evaluate(scenario, {.timeline = true});
}

TEST(Evaluate, PartsSumToTheStepAndTokensFollow) {
  Scenario of = scenario_of();
  of.step.accumulate = 3;
  const Prediction now = evaluate(of);
  EXPECT_EQ(now.figures.duration(), now.step.duration);
  EXPECT_EQ(now.figures.overlap + now.figures.exposed_comm, now.figures.comm);
  EXPECT_DOUBLE_EQ(now.tokens_per_s,
                   8.0 * 2 * 1024 * 3 / (static_cast<double>(now.step.duration) * 1e-9));
}

// SGD without momentum reads parameter and gradient and writes the parameter: 3 of the 7 numbers
// that AdamW moves, and no states are kept.
TEST(Evaluate, TheOptimizerIsTheStepsOwn) {
  Scenario of = scenario_of();
  const Prediction adamw = evaluate(of);
  of.step.optimizer = plan::Optimizer::kSgd;
  of.step.momentum = 0;
  const Prediction sgd = evaluate(of);
  const plan::Operator &before = adamw.priced.workload->operators.back(),
                       &after = sgd.priced.workload->operators.back();
  EXPECT_EQ(after.name, "aten::_fused_sgd_");
  EXPECT_EQ((after.read + after.written) * 7, (before.read + before.written) * 3);
  EXPECT_LT(sgd.figures.duration(), adamw.figures.duration());
  const auto states = static_cast<size_t>(MemoryCategory::kOptimizer);
  EXPECT_EQ(sgd.memory.at_peak[states], 0);
  EXPECT_GT(adamw.memory.at_peak[states], 0);
}

// A GPU whose memory is what the step reserves and what is outside of the allocator.
TEST(Evaluate, WhatIsOutsideOfTheAllocatorHasToFitToo) {
  Scenario of = scenario_of();
  HardwareSpec hardware = load_hardware("8xH100");
  EXPECT_GT(hardware.outside.total(), 0);
  const Prediction now = evaluate(of);
  EXPECT_EQ(now.outside_memory, hardware.outside);
  hardware.gpu.memory = now.memory.peak_reserved + hardware.outside.total();
  of.machine = std::make_shared<const TargetMachine>(hardware);
  EXPECT_TRUE(evaluate(of).memory.fits);
  // The allocator gives cached segments back, but not what is allocated.
  hardware.gpu.memory = now.memory.peak_allocated + hardware.outside.total() - 1;
  of.machine = std::make_shared<const TargetMachine>(hardware);
  EXPECT_FALSE(evaluate(of).memory.fits);
}

TEST(Evaluate, UtilizationIsOfTheFormulaInTheDocs) {
  const Scenario of = scenario_of();
  const Prediction now = evaluate(of);
  // Parameters by hand: embedding and head, four layers of q, k, v, o, three of the MLP, two norms,
  // and the last norm. fp32: H100's vector rate.
  const double parameters =
      2.0 * 32000 * 1024 + 4.0 * (4.0 * 1024 * 1024 + 3.0 * 1024 * 4096 + 2 * 1024) + 1024;
  const double per_token = 6 * parameters + 12.0 * 4 * 1024 * 1024;
  EXPECT_NEAR(model_flops_utilization(*of.model->config(), *now.priced.plan, *of.machine->spec(),
                                      1024, 1e5),
              per_token * 1e5 / (8 * 66.9e12), 1e-9);
  plan::ResolvedPlan frozen = *now.priced.plan;  // the embedding: no product for its gradient
  frozen.tree.parameters.front().requires_grad = false;
  EXPECT_NEAR(model_flops_utilization(*of.model->config(), frozen, *of.machine->spec(), 1024, 1e5),
              (per_token - 2.0 * 32000 * 1024) * 1e5 / (8 * 66.9e12), 1e-9);
}

TEST(Evaluate, TheRunHasEveryRankOfTheStep) {
  const Prediction now = predicted(scenario_of("full_shard", 4));
  const trace::Run run = predicted_run(now);
  EXPECT_EQ(run.traces.size(), 4U);
  ASSERT_TRUE(run.planned);
  EXPECT_EQ(run.planned->workload, *now.priced.workload);
}

// The capture's gradient norm needs an all-reduce, since its gradients are sharded: the emulated
// latency of 5 ms. Copies of the whole gradients have the same norm on every rank.
TEST(Evaluate, OnlyShardedGradientsCommunicateForTheirNorm) {
  const auto run = RecordedRun::of(
      trace::Run::open(std::string(SHARDLENS_TEST_DATA) + "/../../traces/llama-emulated8"));
  const Target& target = run->machine()->target();
  EXPECT_NEAR(static_cast<double>(target.norm_communication), 5e6, 0.1e6);
  EXPECT_EQ(target.outside_communication, 0);
  Scenario of = own_scenario(run);
  of.plan = plan::strategy_plan("replicate", of.model->tree());
  const Prediction now = evaluate(of);
  ASSERT_EQ(now.step.ranks.size(), 1U);
  EXPECT_EQ(now.figures.comm, now.step.ranks.front().figures.comm);
  of.plan = plan::strategy_plan("shard_grad_op", of.model->tree());
  const Prediction sharded = evaluate(of);
  EXPECT_EQ(sharded.figures.comm,
            sharded.step.ranks.front().figures.comm + target.norm_communication);
}

std::vector<std::string> rows_of(const std::vector<analysis::CommunicationFigures>& all) {
  std::vector<std::string> out;
  for (const analysis::CommunicationFigures& each : all) {
    out.push_back(fmt::format("{} {}/{} {} {}x {}, busy {}, exposed {}", name_of(each.purpose),
                              each.group, each.ranks, each.kind ? name_of(*each.kind) : "unknown",
                              each.count.value_or(-1), each.bytes, each.busy, each.exposed));
  }
  return out;
}

// 4 blocks of 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024 parameters; embedding, last norm and
// head have 2 * 32000 * 1024 + 1024 in the root, which is gathered once. On two nodes of two ranks,
// what is left of a gradient is reduced between the nodes.
TEST(Evaluate, CommunicationIsByPurpose) {
  const int64_t block = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024,
                root = 2 * 32000 * 1024 + 1024;
  Scenario of = scenario_of("full_shard", 4);
  of.plan.mesh.replicate = 2;
  const Prediction now = evaluate(of, {.communication = true});
  ASSERT_EQ(now.communication.size(), 3U);
  const analysis::CommunicationFigures &gathers = now.communication[0],
                                       &gradients = now.communication[1],
                                       &replicas = now.communication[2];
  EXPECT_EQ(gathers.purpose, Purpose::kGatherParameters);
  EXPECT_EQ(gathers.count, 1 + 2 * 4);
  EXPECT_EQ(gathers.bytes, 4 * (root + 2 * 4 * block));
  EXPECT_EQ(gathers.group, "shard");
  EXPECT_EQ(gathers.ranks, 2);
  EXPECT_EQ(gradients.purpose, Purpose::kReduceGradients);
  EXPECT_EQ(gradients.count, 1 + 4);
  EXPECT_EQ(gradients.bytes, 4 * (root + 4 * block));
  EXPECT_EQ(replicas.purpose, Purpose::kReduceReplicas);
  EXPECT_EQ(replicas.bytes, gradients.bytes / 2);
  EXPECT_EQ(replicas.group, "replicate");
  EXPECT_EQ(replicas.ranks, 2);
  EXPECT_EQ(gathers.exposed + gradients.exposed + replicas.exposed, now.figures.exposed_comm);
  EXPECT_TRUE(evaluate(of).communication.empty());
}

// The analysis of the step's traces counts the same.
TEST(Evaluate, CommunicationIsThatOfTheTraces) {
  Scenario hybrid = scenario_of("full_shard", 4), microbatches = scenario_of(),
           kept = scenario_of();
  hybrid.plan.mesh.replicate = 2;
  microbatches.step.accumulate = 3;
  kept.plan.reshard_after_forward = {plan::Reshard::Kind::kSubMesh, 2};
  const Scenario on_cpu = own_scenario(RecordedRun::of(
      trace::Run::open(std::string(SHARDLENS_TEST_DATA) + "/../../traces/llama-emulated8")));
  for (const Scenario& of : {hybrid, microbatches, kept, scenario_of("replicate"), on_cpu}) {
    const Prediction now = evaluate(of, {.timeline = true, .communication = true});
    const analysis::Analysis found = analysis::analyze(predicted_run(now, 0));
    std::vector<analysis::CommunicationFigures> of_plan = now.communication;
    std::erase_if(of_plan, [](const auto& each) { return !each.count; });
    EXPECT_FALSE(of_plan.empty());
    EXPECT_EQ(rows_of(of_plan), rows_of(found.ranks.at(0).communication));
  }
}

// The capture's gradient norm is measured, but not in how many collectives.
TEST(Evaluate, WhatIsOutsideOfThePlanIsCommunicationToo) {
  const auto run = RecordedRun::of(
      trace::Run::open(std::string(SHARDLENS_TEST_DATA) + "/../../traces/llama-emulated8"));
  const Prediction now = evaluate(own_scenario(run), {.communication = true});
  Nanoseconds exposed = 0, norm = 0;
  for (const analysis::CommunicationFigures& each : now.communication) {
    exposed += each.exposed;
    if (each.purpose == Purpose::kNorm) {
      norm = each.exposed;
      EXPECT_EQ(each.count, std::nullopt);
    }
  }
  EXPECT_EQ(norm, run->machine()->target().norm_communication);
  EXPECT_GT(norm, 0);
  EXPECT_EQ(exposed, now.figures.exposed_comm);
}

// Every gradient is reduced once, in the buckets of the plan, by one communicator.
TEST(Evaluate, ReplicatedUnitsReduceTheirBuckets) {
  const Scenario of = scenario_of("replicate");
  const Prediction now = predicted(of);
  ASSERT_GT(now.priced.planned->buckets.size(), 3U);
  const GpuCostModel model(*of.machine->spec());
  Bytes bytes = 0, parameters = 0;
  Nanoseconds least = 0;
  for (const schedule::PlannedBucket& bucket : now.priced.planned->buckets) {
    bytes += bucket.bytes;
    least += model.duration(CollectiveKind::kAllReduce, 8, bucket.bytes);
  }
  for (const plan::Parameter& parameter : now.priced.plan->tree.parameters) {
    parameters += parameter.numel * 4;
  }
  EXPECT_EQ(bytes, parameters);
  EXPECT_EQ(now.figures.comm, least);
  EXPECT_LT(now.figures.exposed_comm, now.figures.comm);  // overlaps the backward of the rest
  // The last bucket is complete when backward ends: only the copies of the other buckets back to
  // their gradients can hide it.
  const Bytes last = now.priced.planned->buckets.back().bytes;
  EXPECT_GE(now.figures.exposed_comm + model.copy(bytes - last, bytes - last),
            model.duration(CollectiveKind::kAllReduce, 8, last) * 9 / 10);
  const auto category = [&](MemoryCategory of_category) {
    return now.memory.at_peak[static_cast<size_t>(of_category)];
  };
  EXPECT_NEAR(static_cast<double>(category(MemoryCategory::kParameters)),
              static_cast<double>(parameters), 0.05 * static_cast<double>(parameters));
  EXPECT_GE(category(MemoryCategory::kCommunication), bytes);
  const trace::Run run = predicted_run(now);
  int64_t elements = 0;
  for (const trace::CollectiveArgs& each : run.traces[0].collectives) {
    elements += each.in_nelems;
  }
  EXPECT_EQ(elements * 4, parameters);
}

// Traces of a simulated step are like those of a capture: with each of these plans, the run that
// they record predicts its own step. Hooks without work, for example where parameters are kept, are
// in order, too.
TEST(Evaluate, ASimulatedRunTeachesItsOwnStep) {
  for (const char* plan : {R"({"version": 1})", R"({"version": 1, "reshard_after_forward": false})",
                           R"({"version": 1, "dialect": "fsdp1", "reshard_after_forward": false})",
                           R"({"version": 1, "layout": "per_parameter", "forward_prefetch": 2})"}) {
    SCOPED_TRACE(plan);
    Scenario of = scenario_of("full_shard", 2);
    of.plan = plan::parse_plan(plan, "plan.json");
    const trace::Run run = predicted_run(predicted(of));
    const Prediction again = evaluate(own_scenario(RecordedRun::of(run)));
    EXPECT_NEAR(again.baseline->error(), 0, 0.02);
  }
}

TEST(Evaluate, RefusesMoreRanksThanThereAreGpus) {
  const Scenario of = scenario_of("full_shard", 16);
  EXPECT_THROW((void)evaluate(of), InputError);
  EXPECT_NE(refusal_of(of), "");
  EXPECT_EQ(refusal_of(scenario_of()), "");
}

TEST(Evaluate, SlowestRankIsShown) {
  Scenario of = scenario_of();
  const Prediction alike = evaluate(of);
  of.rank_slowdown = {1, 1, 1, 1, 1, 2, 1, 1};
  EXPECT_GT(evaluate(of).figures.compute, alike.figures.compute * 19 / 10);
}

}  // namespace
}  // namespace shardlens::sim
