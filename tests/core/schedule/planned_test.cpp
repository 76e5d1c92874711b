// The planned step of a real model's workload, compared with PyTorch's step of a model with as many
// blocks.
#include "core/schedule/planned/planned.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/schedule/ledger.h"
#include "core/tree/module_tree.h"
#include "tests/core/schedule/orders_case.h"
#include "tests/core/schedule/planned_events.h"

namespace shardlens::schedule::test {
namespace {

constexpr int kLayers = 4;  // of llama-tiny

plan::ModelConfig llama() {
  return plan::load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny");
}

plan::ResolvedPlan resolved(const plan::ModelConfig& config,
                            const std::string& strategy,
                            int64_t world,
                            const std::function<void(plan::Plan&)>& change = {}) {
  const plan::ModuleTree tree = plan::module_tree(config);
  plan::Plan plan = plan::strategy_plan(strategy, tree);
  if (change) {
    change(plan);
  }
  return plan::resolve(plan, tree, world);
}

// The recorded events, except: no '|'; waits of FSDP1 that wait for nothing are left out; what
// FSDP2 does in its final callback comes before it, since here accumulators announce gradients.
std::string normal(const std::string& recorded, bool fsdp1) {
  std::vector<std::string> tokens;
  std::map<std::string, bool> pending;
  size_t callback = 0;
  bool inside = false;
  for (const std::string& token : tokens_of(recorded)) {
    const std::string unit = token.substr(1);
    if (token[0] == 'O' || token[0] == 'o') {  // FSDP1's post-backward of a frozen unit
      tokens.push_back((token[0] == 'O' ? "P" : "p") + unit);
      continue;
    }
    if (token == "|" || (fsdp1 && token[0] == 'W' && !pending[unit])) {
      continue;
    }
    if (token[0] == 'A' || token[0] == 'W') {
      pending[unit] = token[0] == 'A';
    }
    inside = token[0] == 'C' || (inside && token[0] != 'c');
    if (token[0] == 'C') {
      callback = tokens.size();
    }
    if (inside && token[0] != 'C') {
      tokens.insert(tokens.begin() + static_cast<ptrdiff_t>(callback++), token);
    } else {
      tokens.push_back(token);
    }
  }
  std::string out;
  for (const std::string& token : tokens) {
    out += (out.empty() ? "" : " ") + token;
  }
  return out;
}

const OrdersCase& recorded(const std::string& id) {
  static const std::vector<OrdersCase> all =
      read_orders(std::string(SHARDLENS_TEST_DATA) + "/orders.json");
  const auto found = std::ranges::find(all, id, &OrdersCase::id);
  if (found == all.end()) {
    throw std::runtime_error("no case " + id);
  }
  return *found;
}

// Compares the planned third step with the last recorded iteration: the third, or the second where
// both are the same.
void expect_as_recorded(const std::string& id,
                        const std::string& strategy,
                        int64_t world,
                        const std::function<void(plan::Plan&)>& change = {}) {
  SCOPED_TRACE(id);
  const OrdersCase& test = recorded(id);
  const plan::ModelConfig config = llama();
  const plan::ResolvedPlan plan = resolved(config, strategy, world, change);
  const PlannedStep step =
      planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan);
  const std::string expected = normal(test.iterations.back().events, test.fsdp1());
  EXPECT_EQ(events_of(step, test.fsdp1()), expected);
}

TEST(PlannedTest, Fsdp2StepsAreAsRecorded) {
  const std::string base = "api=fsdp2.N=4.root=1.raf=";
  expect_as_recorded(base + "null.plan=sync2", "full_shard", 2);
  expect_as_recorded(base + "false.plan=sync2", "shard_grad_op", 2);
  expect_as_recorded(base + "true.plan=sync2", "full_shard", 2, [](plan::Plan& plan) {
    plan.reshard_after_forward.kind = plan::Reshard::Kind::kYes;
  });
  expect_as_recorded(base + "null.mesh=[2,2].W=4.plan=sync2", "hybrid_shard", 4);
  expect_as_recorded(base + "null.rootp=1.fp=1.bp=1.plan=sync2", "full_shard", 2,
                     [](plan::Plan& plan) { plan.forward_prefetch = 1; });
}

TEST(PlannedTest, Fsdp1StepsAreAsRecorded) {
  for (const std::string strategy : {"FULL_SHARD", "SHARD_GRAD_OP"}) {
    for (const std::string prefetch : {"PRE", "POST", "null"}) {
      for (const int forward : {0, 1}) {
        const std::string id = "api=fsdp1.N=4.root=1.strategy=" + strategy + ".bp=" + prefetch +
                               ".fp=" + std::to_string(forward);
        expect_as_recorded(id, strategy == "FULL_SHARD" ? "full_shard" : "shard_grad_op", 2,
                           [&](plan::Plan& plan) {
                             plan.dialect = plan::Dialect::kFsdp1;
                             plan.forward_prefetch = forward;
                             plan.backward_prefetch =
                                 prefetch == "PRE"    ? plan::BackwardPrefetch::kPre
                                 : prefetch == "POST" ? plan::BackwardPrefetch::kPost
                                                      : plan::BackwardPrefetch::kNone;
                           });
      }
    }
  }
  expect_as_recorded("api=fsdp1.N=4.root=1.strategy=NO_SHARD.bp=PRE.fp=0", "no_shard", 2,
                     [](plan::Plan& plan) { plan.dialect = plan::Dialect::kFsdp1; });
}

TEST(PlannedTest, FrozenUnitsAreAsRecorded) {
  for (const int layer : {0, 1}) {
    const std::string frozen = ".frozen=[" + std::to_string(layer) + "]";
    const auto freeze = [layer](plan::Plan& plan) {
      plan.frozen_parameters = {"model.layers." + std::to_string(layer) + ".**"};
    };
    const std::string base = "api=fsdp2.N=4.root=1.raf=";
    expect_as_recorded(base + "null" + frozen + ".plan=sync2", "full_shard", 2, freeze);
    expect_as_recorded(base + "false" + frozen + ".plan=sync2", "shard_grad_op", 2, freeze);
    for (const std::string strategy : {"FULL_SHARD", "SHARD_GRAD_OP"}) {
      for (const std::string prefetch : {"PRE", "POST", "null"}) {
        const std::string id = "api=fsdp1.N=4.root=1.strategy=" + strategy + ".bp=" + prefetch +
                               frozen + ".plan=sync2";
        expect_as_recorded(id, strategy == "FULL_SHARD" ? "full_shard" : "shard_grad_op", 2,
                           [&](plan::Plan& plan) {
                             freeze(plan);
                             plan.dialect = plan::Dialect::kFsdp1;
                             plan.backward_prefetch =
                                 prefetch == "PRE"    ? plan::BackwardPrefetch::kPre
                                 : prefetch == "POST" ? plan::BackwardPrefetch::kPost
                                                      : plan::BackwardPrefetch::kNone;
                           });
      }
    }
  }
}

// Nothing before the first trainable parameter has a backward: no pre-backward, no gradients.
// FSDP2's prefetch still gathers one unit ahead (orders.json, root=0, frozen=[0]).
// Recorded from torch 2.13 by tests/tools/group_orders.py.
TEST(PlannedTest, UnitsOfTwoGroupsAreAsRecorded) {
  std::ifstream file(std::string(SHARDLENS_TEST_DATA) + "/meshes/group_orders.json");
  const nlohmann::json recorded = nlohmann::json::parse(file);
  const plan::ModelConfig config = llama();
  const auto layer = [](int index) { return "model.layers." + std::to_string(index); };
  for (const auto& [id, row] : recorded["cases"].items()) {
    SCOPED_TRACE(id);
    const nlohmann::json& test = row["case"];
    const plan::ResolvedPlan plan = resolved(config, "full_shard", 4, [&](plan::Plan& of) {
      of.layout = plan::Layout::kPerParameter;
      of.units.resize(2);
      of.units[0].globs = {"model.layers.*"};
      of.units[0].groups = {{.parameters = {"**.mlp.*.weight"}, .expert = true}, {}};
      of.units[1].globs = {""};
      if (test.value("keep", false)) {
        of.reshard_after_forward.kind = plan::Reshard::Kind::kNo;
      }
      if (test.value("checkpoint", false)) {
        of.activation_checkpointing = {"model.layers.*"};
      }
      for (int i = 0; i < kLayers; ++i) {
        for (int k = 1; k <= test.value("forward", 0) && i + k < kLayers; ++k) {
          of.forward_prefetch_lists[layer(i)].push_back(layer(i + k));
        }
        for (int k = 1; k <= test.value("backward", 0) && i >= k; ++k) {
          of.backward_prefetch_lists[layer(i)].push_back(layer(i - k));
        }
      }
    });
    ASSERT_EQ(plan.units.size(), 1 + 2 * kLayers);
    const PlannedStep step =
        planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan);
    const auto name_of = [](UnitId unit) {
      return unit == 0 ? "r" : std::to_string((unit - 1) / 2) + (unit % 2 == 0 ? "e" : "");
    };
    std::string planned;  // torch's groups have no hook where a checkpoint runs again
    for (const std::string& token : tokens_of(events_of(step, false, name_of))) {
      planned += token[0] == 'Q' ? "" : (planned.empty() ? "" : " ") + token;
    }
    EXPECT_EQ(planned, normal(row["events"], false));
  }
}

TEST(PlannedTest, FrozenPrefixHasNoBackward) {
  const plan::ModelConfig config = llama();
  const plan::ResolvedPlan plan = resolved(config, "full_shard", 2, [](plan::Plan& p) {
    p.frozen_parameters = {"model.embed_tokens.weight", "model.layers.0.**", "model.layers.1.**"};
  });
  const plan::Workload workload = plan::step_workload(config, plan, {.batch = 1, .seq = 8});
  const PlannedStep step = planned_step(workload, plan);
  std::string backward;
  for (const std::string& token : tokens_of(events_of(step, false))) {
    if (std::string("BAPR").find(token[0]) != std::string::npos) {
      backward += (backward.empty() ? "" : " ") + token;
    }
  }
  // The third block's inputs have no gradient, so the block is reduced at the end, after the root.
  EXPECT_EQ(backward, "Ar A0 A1 A2 A3 Br A3 B3 A2 P3 R3 B2 A1 Pr Rr P2 R2");
  for (const plan::Operator& op : workload.operators) {
    EXPECT_FALSE(op.phase == plan::Phase::kBackward && op.module.starts_with("model.layers.0"))
        << op.name;
  }
}

// "outside": checkpoint(fully_shard(block)) in PyTorch. Here a layer is the checkpoint, and the
// unit is the last part of that layer.
TEST(PlannedTest, CheckpointedStepsAreAsRecorded) {
  for (const std::string dialect : {"fsdp2", "fsdp1"}) {
    for (const bool keep : {false, true}) {
      for (const std::string where : {"inside", "outside"}) {
        const std::string how = dialect == "fsdp2" ? keep ? "raf=false" : "raf=null"
                                : keep             ? "strategy=SHARD_GRAD_OP"
                                                   : "strategy=FULL_SHARD";
        expect_as_recorded("api=" + dialect + ".N=4.root=1." + how + ".ac=" + where + ".plan=sync2",
                           keep ? "shard_grad_op" : "full_shard", 2, [&](plan::Plan& plan) {
                             if (dialect == "fsdp1") {
                               plan.dialect = plan::Dialect::kFsdp1;
                             }
                             plan.activation_checkpointing = {"model.layers.*"};
                             if (where == "outside") {
                               plan.units.assign(2, {});
                               plan.units[0].globs = {"model.layers.*.mlp"};
                               plan.units[1].globs = {""};
                             }
                           });
      }
    }
  }
}

TEST(PlannedTest, AccumulationWithoutSync) {
  const plan::ModelConfig config = llama();
  const plan::ResolvedPlan plan = resolved(config, "full_shard", 2);
  const PlannedStep step =
      planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan, 2, 3,
                   /*sync_every_microbatch=*/false);
  const OrdersCase& test = recorded("api=fsdp2.N=4.root=1.raf=null.plan=acc");
  std::string expected;
  for (size_t i = 3; i < 6; ++i) {  // the second round of acc, acc, sync
    expected += (expected.empty() ? "" : " ") + normal(test.iterations.at(i).events, false);
  }
  EXPECT_EQ(events_of(step, false), expected);
}

// The counts of PyTorch's test_gradient_accumulation with set_reshard_after_backward(False) in all
// but the last of M microbatches: G all-gathers in forward, (G - 1) · M in backward.
TEST(PlannedTest, UnitsThatStayWholeBetweenMicrobatches) {
  constexpr int kMicrobatches = 3;
  const plan::ModelConfig config = llama();
  for (const bool reshard : {true, false}) {
    const plan::ResolvedPlan plan = resolved(
        config, "full_shard", 2, [&](plan::Plan& p) { p.reshard_after_backward = reshard; });
    const PlannedStep step = planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}),
                                          plan, 2, kMicrobatches, /*sync_every_microbatch=*/false);
    int gathers[2] = {};  // in forward, in backward
    for (const PlannedAction& each : step.actions) {
      gathers[each.hook.hook != Hook::kPreForward] += each.action.op == Op::kAllGather;
    }
    EXPECT_EQ(gathers[0], reshard ? 5 * kMicrobatches : 5);
    EXPECT_EQ(gathers[1], 4 * kMicrobatches);
  }
}

// set_requires_all_reduce(False) for all but the last microbatch: every microbatch reduces over the
// shards, only the last one over the replicas.
TEST(PlannedTest, ReplicasMeetInTheLastMicrobatch) {
  const plan::ModelConfig config = llama();
  for (const auto& [every, shards] : {std::pair{true, 2}, {false, 2}, {false, 1}}) {
    const plan::ResolvedPlan plan =
        resolved(config, "hybrid_shard", 4, [every = every, shards = shards](plan::Plan& p) {
          p.mesh.replicate = 4 / shards;
          p.mesh.shard = shards;
          p.requires_all_reduce = every;
        });
    const PlannedStep step =
        planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan, 2, 3);
    const auto count = [&](Op op) {
      return std::ranges::count(step.actions, op,
                                [](const PlannedAction& each) { return each.action.op; });
    };
    EXPECT_EQ(count(Op::kReduceScatter), shards == 1 ? 0 : 5 * 3);
    EXPECT_EQ(count(Op::kAllReduce), every ? 5 * 3 : 5);
  }
}

TEST(PlannedTest, EmbeddingIsNotGatheredForItsBackward) {
  const plan::ModelConfig config = llama();
  for (const bool unshard : {true, false}) {
    const plan::ResolvedPlan plan = resolved(config, "full_shard", 2, [&](plan::Plan& p) {
      p.reshard_after_forward = {plan::Reshard::Kind::kYes, 0};
      p.units.assign(3, {});
      p.units[0].globs = {"model.layers.*"};
      p.units[1].globs = {"model.embed_tokens"};
      p.units[1].unshard_in_backward = unshard;
      p.units[2].globs = {""};
    });
    const PlannedStep step =
        planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan);
    const auto gathers = std::ranges::count_if(
        step.actions, [](const PlannedAction& each) { return each.action.op == Op::kAllGather; });
    EXPECT_EQ(gathers, unshard ? 12 : 11);
  }
}

// FSDP2 detects the end of a unit's backward at the gradients of the unit's inputs. Positions have
// none, so the position table is reduced last, even after the root. Source: PyTorch's run of the
// same plan, tests/data/parity/fsdp2-unshard-in-backward.json, which has the same collectives.
TEST(PlannedTest, UnitOfIndicesIsReducedAtTheEnd) {
  const plan::ModelConfig config =
      plan::load_model_config(std::string(SHARDLENS_TEST_DATA) + "/gpt2-tiny");
  const plan::ResolvedPlan plan = resolved(config, "full_shard", 2, [](plan::Plan& p) {
    p.units.assign(3, {});
    p.units[0].globs = {"transformer.h.*"};
    p.units[1].globs = {"transformer.wpe"};
    p.units[2].globs = {""};
  });
  const PlannedStep step =
      planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan);
  std::vector<std::string> reduced;
  for (const PlannedAction& each : step.actions) {
    if (each.action.op == Op::kReduceScatter) {
      reduced.push_back(plan.units[each.action.unit].fqn);
    }
  }
  EXPECT_THAT(reduced,
              ::testing::ElementsAre("transformer.h.3", "transformer.h.2", "transformer.h.1",
                                     "transformer.h.0", "", "transformer.wpe"));
}

// With views made once, up front, every backward comes first, then every reduce-scatter, and
// nothing overlaps. Source: engine facts in docs/develop/architecture.md, measured on LibTorch for
// four layers.
TEST(PlannedTest, FrozenViewsDelayEveryReduction) {
  const plan::ModelConfig config = llama();
  const plan::ResolvedPlan plan =
      resolved(config, "full_shard", 2, [](plan::Plan& p) { p.views = plan::Views::kFrozen; });
  const PlannedStep step =
      planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan);
  std::vector<std::string> order;
  for (const std::string& token : tokens_of(events_of(step, false))) {
    if (token[0] == 'B' || token[0] == 'R') {
      order.push_back(token);
    }
  }
  EXPECT_THAT(order,
              ::testing::ElementsAre("Br", "B3", "B2", "B1", "B0", "R3", "R2", "R1", "R0", "Rr"));
}

TEST(PlannedTest, ActionsAreNumberedAndKeepTheInvariants) {
  const plan::ModelConfig config = llama();
  for (const std::string strategy : {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard"}) {
    for (const plan::Layout layout : {plan::Layout::kFlat, plan::Layout::kPerParameter}) {
      const plan::ResolvedPlan plan =
          resolved(config, strategy, 4, [&](plan::Plan& p) { p.layout = layout; });
      const PlannedStep step =
          planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan, 1);
      Ledger ledger(unit_specs(plan), schedule_options(plan));
      for (size_t i = 0; i < step.actions.size(); ++i) {
        EXPECT_EQ(step.actions[i].seq, i + 1);
        const Result<void> kept = ledger.consume(step.actions[i].action);
        ASSERT_TRUE(kept.ok()) << kept.message();
      }
      EXPECT_TRUE(ledger.finish().ok()) << strategy << ": " << ledger.finish().message();
      ASSERT_FALSE(step.hooks.empty());
      EXPECT_EQ(step.hooks.front().hook, Hook::kRootPreForward);
      EXPECT_EQ(step.hooks.back().hook, Hook::kOptimizerDone);
    }
  }
  EXPECT_EQ(plan::module_tree(config).blocks.size(), static_cast<size_t>(kLayers));
}

// Written by hand: hooks without operators, and a block that is used twice.
TEST(PlannedTest, HandMadeWorkloads) {
  const plan::ModelConfig config = llama();
  const plan::ResolvedPlan plan = resolved(config, "full_shard", 2);
  plan::Workload workload;
  const auto hook = [&workload](Hook what, UnitId unit) {
    workload.order.push_back(
        {plan::WorkloadItem::Kind::kHook, static_cast<uint32_t>(workload.hooks.size())});
    workload.hooks.push_back({.hook = what, .unit = unit});
  };
  hook(Hook::kRootPreForward, 0);
  hook(Hook::kPreForward, 0);
  for (const UnitId unit : {1U, 2U, 2U}) {
    hook(Hook::kPreForward, unit);
    hook(Hook::kPostForward, unit);
  }
  hook(Hook::kPostForward, 0);
  hook(Hook::kPreBackward, 0);
  const PlannedStep step = planned_step(workload, plan, 1);
  std::vector<std::pair<Hook, UnitId>> backward;
  for (const HookEvent& event : step.hooks) {
    if (event.hook == Hook::kPreBackward || event.hook == Hook::kGradsReady) {
      backward.emplace_back(event.hook, event.unit);
    }
  }
  // The root's output is also the last block's, whose hook was registered first. Gradients of the
  // block that is used twice are not complete after the backward of its later use, but after that
  // of its earlier one, as in PyTorch (orders.json, calls).
  const auto at = [](Hook what, UnitId unit) { return std::pair(what, unit); };
  EXPECT_THAT(backward, ::testing::ElementsAre(at(Hook::kPreBackward, 2), at(Hook::kPreBackward, 0),
                                               at(Hook::kGradsReady, 2), at(Hook::kPreBackward, 2),
                                               at(Hook::kGradsReady, 2), at(Hook::kPreBackward, 1),
                                               at(Hook::kGradsReady, 1)));

  plan::Workload wrong;
  wrong.order.push_back({plan::WorkloadItem::Kind::kHook, 0});
  wrong.hooks.push_back({.hook = Hook::kPostForward, .unit = 1});
  EXPECT_THROW(planned_step(wrong, plan), RuntimeFault);
}

// With fresh views, autograd visits the forward in reverse, so the order is that of the workload.
void expect_order_of_workload(const plan::ModelConfig& config, const plan::ResolvedPlan& plan) {
  const plan::Workload workload = plan::step_workload(config, plan, {.batch = 1, .seq = 8});
  const PlannedStep step = planned_step(workload, plan);
  std::vector<plan::WorkloadItem> found;
  size_t actions = 0, hooks = 0;
  for (const PlannedItem& item : step.order) {
    if (item.kind == PlannedItem::Kind::kAction) {
      ASSERT_EQ(item.index, actions++);
      ASSERT_EQ(step.actions[item.index].hook, step.hooks.at(hooks - 1));
      continue;
    }
    const bool hook = item.kind == PlannedItem::Kind::kHook;
    hooks += hook ? 1 : 0;
    found.push_back(
        {hook ? plan::WorkloadItem::Kind::kHook : plan::WorkloadItem::Kind::kOperator, item.index});
  }
  EXPECT_EQ(actions, step.actions.size());
  ASSERT_EQ(found.size(), workload.order.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].kind, workload.order[i].kind) << i;
    if (found[i].kind == plan::WorkloadItem::Kind::kOperator) {
      ASSERT_EQ(found[i].index, workload.order[i].index) << i;
    } else {
      ASSERT_EQ(step.hooks[found[i].index], workload.hooks[workload.order[i].index]) << i;
    }
  }
}

TEST(PlannedTest, OrderHoldsHooksActionsAndOperators) {
  const plan::ModelConfig config = llama();
  for (const char* checkpointed : {"", "model.layers.*", "model.layers.*.self_attn", "model"}) {
    SCOPED_TRACE(checkpointed);
    expect_order_of_workload(config, resolved(config, "full_shard", 2, [&](plan::Plan& plan) {
                               if (*checkpointed != '\0') {
                                 plan.activation_checkpointing = {checkpointed};
                               }
                             }));
  }
}

// Operators follow the node that they belong to, not the unit's hooks: with views made up front
// (frozen) every unit's gradients come after the last operator.
TEST(PlannedTest, FrozenViewsKeepOperatorsAndMoveHooks) {
  const plan::ModelConfig config = llama();
  const plan::ResolvedPlan plan =
      resolved(config, "full_shard", 2, [](plan::Plan& p) { p.views = plan::Views::kFrozen; });
  const plan::Workload workload = plan::step_workload(config, plan, {.batch = 1, .seq = 8});
  const PlannedStep step = planned_step(workload, plan, 3, /*accumulate=*/2);
  std::vector<uint32_t> operators, expected;
  bool grads = false;
  for (const PlannedItem& item : step.order) {
    if (item.kind == PlannedItem::Kind::kOperator) {
      operators.push_back(item.index);
      EXPECT_FALSE(grads && workload.operators[item.index].phase == plan::Phase::kBackward);
    } else if (item.kind == PlannedItem::Kind::kHook) {
      const Hook hook = step.hooks[item.index].hook;
      grads = hook == Hook::kGradsReady || (grads && hook != Hook::kBackwardEnd);
    }
  }
  for (const bool last : {false, true}) {
    for (const plan::WorkloadItem& item : workload.order) {
      if (item.kind == plan::WorkloadItem::Kind::kOperator &&
          (last || workload.operators[item.index].phase != plan::Phase::kOptimizer)) {
        expected.push_back(item.index);
      }
    }
  }
  EXPECT_EQ(operators, expected);
}

}  // namespace
}  // namespace shardlens::schedule::test
