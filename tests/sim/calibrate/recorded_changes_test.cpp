// Recorded passes with other activation checkpoints, batches and sequences. Sizes by hand.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/schedule/planned/workload_outline.h"
#include "sim/calibrate/changes/recorded_batch.h"
#include "sim/calibrate/changes/recorded_checkpoints.h"
#include "sim/calibrate/changes/recorded_sequence.h"

namespace shardlens::sim {
namespace {

using plan::Operator;
using plan::OperatorKind;
using plan::Phase;
using plan::WorkloadItem;

constexpr int64_t kRows = 12, kWidth = 8, kInner = 32;  // 3 samples of 4 tokens
constexpr Bytes kInput = kRows * kWidth * 4, kHidden = kRows * kInner * 4;

// The root and one block, which are both units.
plan::ResolvedPlan one_block() {
  plan::ResolvedPlan out;
  out.tree.modules.resize(2);
  out.tree.modules[1].fqn = "block";
  out.tree.parameters.resize(1);
  out.tree.parameters[0].numel = kWidth * kInner;
  out.units.resize(2);
  for (uint32_t unit = 0; unit < 2; ++unit) {
    out.units[unit].fqn = out.tree.modules[unit].fqn;
    out.units[unit].modules = {unit};
  }
  return out;
}

class Pass {
 public:
  void hook(Hook hook, UnitId unit) {
    HookEvent event;
    event.hook = hook;
    event.unit = unit;
    out.order.push_back({WorkloadItem::Kind::kHook, static_cast<uint32_t>(out.hooks.size())});
    out.hooks.push_back(event);
  }
  Operator& op(std::string name, Phase phase, UnitId unit, Bytes written, int32_t forward = -1) {
    out.order.push_back(
        {WorkloadItem::Kind::kOperator, static_cast<uint32_t>(out.operators.size())});
    Operator& op = out.operators.emplace_back();
    op.name = std::move(name);
    op.phase = phase;
    op.unit = unit;
    op.read = op.written = written;
    op.forward = forward;
    return op;
  }
  void product(Phase phase, int64_t m, int64_t n, int64_t k, int32_t forward = -1) {
    Operator& op = this->op("aten::mm", phase, 1, m * n * 4, forward);
    op.kind = OperatorKind::kGemm;
    op.m = m;
    op.n = n;
    op.k = k;
    op.flops = 2 * m * n * k;
    op.read = (m * k + k * n) * 4;
  }
  plan::Workload out;
};

// norm, up, gelu, down and the sum; the block keeps 1000 bytes and its input.
plan::Workload block() {
  Pass pass;
  pass.hook(Hook::kRootPreForward, 0);
  pass.hook(Hook::kPreForward, 1);
  pass.op("aten::native_layer_norm", Phase::kForward, 1, kInput).kind = OperatorKind::kNorm;
  pass.product(Phase::kForward, kRows, kInner, kWidth);
  pass.op("aten::gelu", Phase::kForward, 1, kHidden);
  pass.product(Phase::kForward, kRows, kWidth, kInner);
  pass.op("aten::add", Phase::kForward, 1, kInput).saved = 1000 + kInput;
  pass.hook(Hook::kPostForward, 1);
  pass.hook(Hook::kPreBackward, 1);
  pass.product(Phase::kBackward, kInner, kWidth, kRows, 4);
  pass.product(Phase::kBackward, kRows, kInner, kWidth, 4);
  pass.op("aten::gelu_backward", Phase::kBackward, 1, kHidden, 4).frees = 500;
  pass.hook(Hook::kGradsReady, 1);
  pass.op("aten::_fused_adamw_", Phase::kOptimizer, 0, 64);
  return pass.out;
}

std::vector<std::string> names(const plan::Workload& workload, Phase phase) {
  std::vector<std::string> out;
  for (const WorkloadItem& item : workload.order) {
    if (item.kind == WorkloadItem::Kind::kOperator &&
        workload.operators[item.index].phase == phase) {
      out.push_back(workload.operators[item.index].name);
    }
  }
  return out;
}

TEST(RecordedCheckpointsTest, ABlockRunsAgainUpToItsLastSavedTensor) {
  plan::ResolvedPlan plan = one_block();
  const plan::ResolvedPlan before = plan;
  plan.checkpointed_modules = {1};
  const plan::Workload out = with_checkpoints(block(), before, plan, "run");
  // The last product saves its operand before it runs, so PyTorch stops in front of it.
  EXPECT_THAT(names(out, Phase::kRecompute),
              testing::ElementsAre("aten::native_layer_norm", "aten::mm", "aten::gelu"));
  EXPECT_EQ(out.operators[4].saved, kInput);
  // After the forward's five operators, the three that run again, then backward.
  EXPECT_EQ(out.operators[7].name, "aten::gelu");
  EXPECT_EQ(out.operators[7].saved, 1000);
  EXPECT_EQ(out.operators[7].forward, 4);
  EXPECT_EQ(out.operators[10].name, "aten::gelu_backward");
  EXPECT_EQ(out.operators[10].forward, 4);
  EXPECT_EQ(out.operators[10].frees, 333);
  EXPECT_EQ(out.order.size(), block().order.size() + 3);
}

TEST(RecordedCheckpointsTest, WithoutItsCheckpointABlockKeepsWhatItSavedAgain) {
  plan::ResolvedPlan plan = one_block();
  const plan::ResolvedPlan without = plan;
  plan.checkpointed_modules = {1};
  const plan::Workload checkpointed = with_checkpoints(block(), without, plan, "run");
  const plan::Workload out = with_checkpoints(checkpointed, plan, without, "run");
  plan::Workload expected = block();
  expected.operators[7].frees = 333;  // a third of what the checkpoint saved again
  EXPECT_EQ(out, expected);
}

TEST(RecordedCheckpointsTest, SaysWhatToRecord) {
  plan::ResolvedPlan plan = one_block();
  const plan::ResolvedPlan before = plan;
  plan.checkpointed_modules = {1};
  const auto message = [](const plan::Workload& workload, const plan::ResolvedPlan& from,
                          const plan::ResolvedPlan& to) {
    try {
      (void)with_checkpoints(workload, from, to, "run");
      return std::string();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  plan::Workload uncounted = block();
  uncounted.operators[4].saved = 0;
  EXPECT_THAT(message(uncounted, before, plan), testing::HasSubstr("record it with shardlens."));
  // Nothing is known to run again.
  EXPECT_THAT(message(block(), plan, before),
              testing::HasSubstr("record one step without checkpoints"));
  plan::ResolvedPlan merged = before;
  merged.units.pop_back();
  EXPECT_THAT(message(block(), merged, plan), testing::HasSubstr("it is no unit"));
}

// Two blocks in one unit, as after fully_shard([a, b]): its hooks are around both.
plan::ResolvedPlan unit_of_two_blocks() {
  plan::ResolvedPlan out = one_block();
  out.tree.modules[1].fqn = "a";
  out.tree.modules.push_back(out.tree.modules[1]);
  out.tree.modules[2].fqn = "b";
  out.units[1].fqn = "a, b";
  out.units[1].modules = {1, 2};
  return out;
}

plan::Workload pair() {
  Pass pass;
  pass.hook(Hook::kPreForward, 1);
  for (int i = 0; i < 2; ++i) {
    pass.op("aten::native_layer_norm", Phase::kForward, 1, kInput).kind = OperatorKind::kNorm;
    pass.product(Phase::kForward, kRows, kInner, kWidth);
    pass.op("aten::gelu", Phase::kForward, 1, kHidden);
    pass.product(Phase::kForward, kRows, kWidth, kInner);
    pass.op("aten::add", Phase::kForward, 1, kInput);
  }
  pass.out.operators[9].saved = 2 * (1000 + kInput);
  pass.hook(Hook::kPostForward, 1);
  pass.hook(Hook::kPreBackward, 1);
  for (int i = 0; i < 2; ++i) {
    pass.product(Phase::kBackward, kInner, kWidth, kRows, 9);
    pass.product(Phase::kBackward, kRows, kInner, kWidth, 9);
    pass.op("aten::gelu_backward", Phase::kBackward, 1, kHidden, 9);
  }
  pass.hook(Hook::kGradsReady, 1);
  return pass.out;
}

// "f" forward, "r" again, "b" backward: the operators in their order.
std::string phases(const plan::Workload& workload) {
  std::string out;
  for (const WorkloadItem& item : workload.order) {
    if (item.kind == WorkloadItem::Kind::kOperator) {
      const Phase phase = workload.operators[item.index].phase;
      out += phase == Phase::kForward ? 'f' : phase == Phase::kRecompute ? 'r' : 'b';
    }
  }
  return out;
}

TEST(RecordedCheckpointsTest, BlocksOfOneUnitRunAgainOneAfterTheOther) {
  plan::ResolvedPlan plan = unit_of_two_blocks();
  const plan::ResolvedPlan before = plan;
  plan.checkpointed_modules = {1, 2};
  const plan::Workload both = with_checkpoints(pair(), before, plan, "run");
  EXPECT_EQ(phases(both), "ffffffffffrrrbbbrrrbbb");
  EXPECT_EQ(both.operators[4].saved, kInput);  // of a and b: their inputs
  EXPECT_EQ(both.operators[9].saved, kInput);
  EXPECT_EQ(both.operators[12].saved, 1000);
  EXPECT_EQ(both.operators[12].forward, 9);  // b's backward is first
  EXPECT_EQ(both.operators[18].saved, 1000);
  EXPECT_EQ(both.operators[18].forward, 4);
  // Only the second, whose backward is the first.
  plan.checkpointed_modules = {2};
  const plan::Workload second = with_checkpoints(pair(), before, plan, "run");
  EXPECT_EQ(phases(second), "ffffffffffrrrbbbbbb");
  EXPECT_EQ(second.operators[4].saved, 1000 + kInput);
  EXPECT_EQ(second.operators[9].saved, kInput);
  plan.checkpointed_modules = {1};
  EXPECT_EQ(phases(with_checkpoints(pair(), before, plan, "run")), "ffffffffffbbbrrrbbb");
}

TEST(RecordedCheckpointsTest, CheckpointsOfOneUnitAreRemovedTogether) {
  const plan::ResolvedPlan without = unit_of_two_blocks();
  plan::ResolvedPlan with = without, one = without;
  with.checkpointed_modules = {1, 2};
  one.checkpointed_modules = {1};
  const plan::Workload checkpointed = with_checkpoints(pair(), without, with, "run");
  const plan::Workload out = with_checkpoints(checkpointed, with, without, "run");
  EXPECT_EQ(phases(out), "ffffffffffbbbbbb");
  EXPECT_EQ(out.operators[4].saved + out.operators[9].saved, 2 * (1000 + kInput));
  const auto message = [](const plan::Workload& workload, const plan::ResolvedPlan& from,
                          const plan::ResolvedPlan& to) -> std::string {
    try {
      (void)with_checkpoints(workload, from, to, "run");
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message(checkpointed, with, one),
              testing::HasSubstr("change the checkpoints of all modules of the unit"));
  // Modules that run other operators than each other.
  plan::Workload differ = pair();
  differ.operators[6].m = kRows + 1;
  EXPECT_THAT(message(differ, without, with), testing::HasSubstr("do not run the same ones"));
}

TEST(RecordedBatchTest, RowsAreScaledAndWeightsAreNot) {
  const plan::Workload out = with_batch(block(), one_block(), 3, 6);
  EXPECT_EQ(out.batch, 6);
  const Operator &norm = out.operators[0], &up = out.operators[1];
  EXPECT_EQ(norm.written, 2 * kInput);
  EXPECT_EQ(std::vector({up.m, up.n, up.k}), std::vector({2 * kRows, kInner, kWidth}));
  EXPECT_EQ(up.read, (2 * kRows * kWidth + kWidth * kInner) * 4);
  EXPECT_EQ(up.written, 2 * kHidden);
  EXPECT_EQ(out.operators[4].saved, 2 * (1000 + kInput));
  const Operator &of_weight = out.operators[5], &of_input = out.operators[6];
  EXPECT_EQ(std::vector({of_weight.m, of_weight.n, of_weight.k}),
            std::vector({kInner, kWidth, 2 * kRows}));
  EXPECT_EQ(of_weight.written, kInner * kWidth * 4);
  EXPECT_EQ(of_weight.flops, 2 * block().operators[5].flops);
  EXPECT_EQ(of_input.m, 2 * kRows);
  EXPECT_EQ(out.operators[7].frees, 1000);
  EXPECT_EQ(out.operators[8], block().operators[8]);  // the optimizer
}

TEST(RecordedBatchTest, OperatorsOfAParameterAreNotScaled) {
  plan::Workload workload = block();
  workload.operators[2].written = kWidth * kInner * 4;
  EXPECT_EQ(with_batch(workload, one_block(), 3, 6).operators[2].written, kWidth * kInner * 4);
}

// In a recorded pass a unit's backward follows one operator of forward, whatever runs again in it.
TEST(RecordedCheckpointsTest, AllThatRunsAgainInOneBackwardIsPlanned) {
  Pass pass;
  pass.op("aten::mm", Phase::kForward, 0, 8);
  pass.op("aten::gelu", Phase::kForward, 0, 8);
  pass.op("aten::gelu", Phase::kRecompute, 0, 8, 1);
  pass.op("aten::gelu_backward", Phase::kBackward, 0, 8, 1);
  pass.op("aten::mm", Phase::kRecompute, 0, 8, 0);
  pass.op("aten::mm", Phase::kBackward, 0, 8, 1);
  const schedule::WorkloadOutline out = schedule::workload_outline(pass.out);
  ASSERT_EQ(out.recomputed.size(), 1U);
  EXPECT_THAT(out.recomputed[0],
              testing::ElementsAre(WorkloadItem{WorkloadItem::Kind::kOperator, 2},
                                   WorkloadItem{WorkloadItem::Kind::kOperator, 4}));
}

// A block with attention on 2 samples of `s` tokens, as its shapes are.
Observation of_tokens(int64_t s) {
  constexpr int64_t kHeads = 3, kHead = 4, kSamples = 2;
  const int64_t pairs = kSamples * kHeads * s * s;
  Pass pass;
  pass.hook(Hook::kRootPreForward, 0);
  pass.hook(Hook::kPreForward, 1);
  pass.product(Phase::kForward, kSamples * s, kInner, kWidth);  // reads weights too
  Operator& attention = pass.op("aten::scaled_dot_product_attention", Phase::kForward, 1,
                                kSamples * s * kHeads * kHead * 4);
  attention.kind = OperatorKind::kAttention;
  attention.batch = kSamples * kHeads;
  attention.m = attention.n = s;
  attention.k = kHead;
  attention.flops = 4 * pairs * kHead;
  Operator& scores = pass.op("aten::_softmax", Phase::kForward, 1, pairs * 4);
  scores.flops = 5 * pairs;
  scores.saved = pairs * 4 + 100 * kSamples * s;  // scores, and rows
  pass.hook(Hook::kPostForward, 1);
  pass.hook(Hook::kPreBackward, 1);
  pass.product(Phase::kBackward, kInner, kWidth, kSamples * s, 2);
  pass.hook(Hook::kGradsReady, 1);
  pass.op("aten::_fused_adamw_", Phase::kOptimizer, 0, 64);
  Observation out;
  out.source = "tokens-" + std::to_string(s);
  out.workload = pass.out;
  out.workload.batch = kSamples;
  out.workload.seq = s;
  out.settings.batch = kSamples;
  out.settings.seq = s;
  return out;
}

TEST(RecordedSequenceTest, TwoLengthsDescribeAllOthers) {
  for (const auto& [first, second] : std::vector<std::pair<int64_t, int64_t>>{{16, 24}, {64, 48}}) {
    const Observation a = of_tokens(first), b = of_tokens(second);
    for (const int64_t tokens : {1, 7, 32, 4096}) {
      const plan::Workload out = with_sequence(a.workload, first, other_sequence(a, b), tokens);
      EXPECT_EQ(out.seq, tokens);
      EXPECT_EQ(out.operators, of_tokens(tokens).workload.operators) << first << " " << tokens;
    }
  }
}

TEST(RecordedSequenceTest, RunsOfOtherProgramsAreRefused) {
  const Observation a = of_tokens(16);
  const auto refusal = [&a](const Observation& other) -> std::string {
    try {
      (void)other_sequence(a, other);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(of_tokens(32)), "accepted");
  EXPECT_THAT(refusal(of_tokens(16)), testing::HasSubstr("its sequences have 16 tokens too"));
  Observation other = of_tokens(32);
  other.settings.seq.reset();
  EXPECT_THAT(refusal(other), testing::HasSubstr("does not say the length"));
  other = of_tokens(32);
  other.settings.batch = 3;
  EXPECT_THAT(refusal(other), testing::HasSubstr("tokens-32: it has 1 microbatches of 3 samples"));
  other = of_tokens(32);
  other.workload.operators[2].name = "aten::gelu";
  EXPECT_THAT(refusal(other),
              testing::HasSubstr("operator 2 of a pass is aten::gelu instead of aten::_softmax"));
  other = of_tokens(32);
  other.workload.order.pop_back();
  EXPECT_THAT(refusal(other), testing::HasSubstr("or another order of them"));
  // More than any operator has.
  EXPECT_THROW(
      (void)with_sequence(a.workload, 16, other_sequence(a, of_tokens(32)), int64_t{1} << 50),
      InputError);
}

}  // namespace
}  // namespace shardlens::sim
