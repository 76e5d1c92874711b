// Activations that shardlens.record counted, at the operators of a recorded pass. Sizes by hand.
#include "sim/calibrate/recorded_activations.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardlens::sim {
namespace {

using plan::Phase;

// Units: the root, layers.0, layers.1.
plan::ResolvedPlan two_layers() {
  plan::ResolvedPlan out;
  out.tree.modules.resize(3);
  out.tree.modules[1].fqn = "layers.0";
  out.tree.modules[2].fqn = "layers.1";
  out.units.resize(3);
  for (uint32_t unit = 0; unit < 3; ++unit) {
    out.units[unit].fqn = out.tree.modules[unit].fqn;
    out.units[unit].modules = {unit};
  }
  return out;
}

// Forward: the root's embedding, three operators of each layer, the root's head; then backward,
// three operators for each run.
plan::Workload pass() {
  plan::Workload out;
  const auto add = [&out](UnitId unit, Phase phase, int32_t forward) {
    plan::Operator op;
    op.unit = unit;
    op.phase = phase;
    op.forward = forward;
    out.operators.push_back(op);
  };
  const std::vector<UnitId> forward{0, 1, 1, 1, 2, 2, 2, 0};
  for (const UnitId unit : forward) {
    add(unit, Phase::kForward, -1);
  }
  for (const auto& [unit, end] :
       std::vector<std::pair<UnitId, int32_t>>{{0, 7}, {2, 6}, {1, 3}, {0, 0}}) {
    for (int i = 0; i < 3; ++i) {
      add(unit, Phase::kBackward, end);
    }
  }
  return out;
}

std::vector<Bytes> saved(const plan::Workload& workload) {
  std::vector<Bytes> out;
  for (size_t i = 0; i < 8; ++i) {
    out.push_back(workload.operators[i].saved);
  }
  return out;
}

TEST(RecordedActivationsTest, AreSavedAtTheEndOfTheirUnitsForward) {
  plan::Workload workload = pass();
  add_activations({{"emb", 10, 0},
                   {"layers.0.norm", 200, 0},
                   {"layers.0", 100, 0},
                   {"layers.1.up", 600, 0},
                   {"head", 40, 0},
                   {"", 7, 0}},
                  two_layers(), workload);
  EXPECT_THAT(saved(workload), testing::ElementsAre(10, 0, 0, 300, 0, 0, 600, 47));
  // layers.1: a third after each of the first two operators of its backward, the rest at its end.
  EXPECT_EQ(workload.operators[11].frees, 200);
  EXPECT_EQ(workload.operators[12].frees, 200);
  EXPECT_EQ(workload.operators[13].frees, 0);
}

TEST(RecordedActivationsTest, ACheckpointKeepsItsInputAndMakesTheRestInBackward) {
  plan::Workload workload = pass();
  // The root calls checkpoint(), whose inputs come before the layers' own amounts.
  add_activations({{"emb", 10, 0},
                   {"", 50, 0},
                   {"layers.0.norm", 0, 300},
                   {"", 50, 0},
                   {"layers.1", 0, 600},
                   {"head", 40, 0}},
                  two_layers(), workload);
  // The first is in one run of modules with the embedding.
  EXPECT_THAT(saved(workload), testing::ElementsAre(60, 0, 0, 0, 0, 0, 50, 40));
  for (const auto& [first, bytes] : {std::pair(11, 600), std::pair(14, 300)}) {
    const auto at = static_cast<size_t>(first);
    EXPECT_EQ(workload.operators[at].scratch, bytes);
    EXPECT_EQ(workload.operators[at + 1].scratch, bytes / 3 * 2);
    EXPECT_EQ(workload.operators[at + 2].scratch, bytes / 3);
  }
}

TEST(RecordedActivationsTest, WhatRunsAgainSavesAgain) {
  plan::Workload workload = pass();
  // The first operator of layers.1's backward runs again.
  workload.operators[11].phase = Phase::kRecompute;
  workload.operators[11].forward = 5;
  add_activations({{"layers.1", 50, 600}}, two_layers(), workload);
  EXPECT_EQ(workload.operators[6].saved, 50);
  EXPECT_EQ(workload.operators[11].saved, 600);
  EXPECT_EQ(workload.operators[11].forward, 6);
  EXPECT_EQ(workload.operators[12].scratch, 0);
}

// A unit with two checkpointed blocks of three operators, and a head that is in no checkpoint.
plan::ResolvedPlan two_blocks() {
  plan::ResolvedPlan out;
  out.tree.modules.resize(4);
  out.tree.modules[1].fqn = "blocks.0";
  out.tree.modules[2].fqn = "blocks.1";
  out.tree.modules[3].fqn = "head";
  out.units.resize(1);
  out.units[0].modules = {0};
  out.checkpointed_modules = {1, 2};
  return out;
}

// Forward, then backward, in which each block runs two of its operators again. `head`: operators of
// the head in forward, and of its backward.
plan::Workload blocks_pass(int head) {
  plan::Workload out;
  const auto add = [&out](Phase phase, int32_t forward) {
    plan::Operator op;
    op.phase = phase;
    op.forward = forward;
    out.operators.push_back(op);
  };
  for (int i = 0; i < 6 + head; ++i) {
    add(Phase::kForward, -1);
  }
  for (int i = 0; i < head; ++i) {
    add(Phase::kBackward, 5 + head);
  }
  for (const int32_t block : {3, 0}) {
    add(Phase::kRecompute, block);
    add(Phase::kRecompute, block + 1);
    for (int i = 0; i < 3; ++i) {
      add(Phase::kBackward, 5 + head);
    }
  }
  return out;
}

// Each block runs again before its own part of backward, so what one saves again is freed before
// the other runs again.
TEST(RecordedActivationsTest, EachCheckpointOfAUnitHasItsPart) {
  const std::vector<RecordedActivation> activations{{"blocks.0", 50, 0},
                                                    {"blocks.0.up", 0, 300},
                                                    {"blocks.1", 60, 0},
                                                    {"blocks.1", 0, 200},
                                                    {"blocks.1.up", 0, 400}};
  plan::Workload workload = blocks_pass(0);
  add_activations(activations, two_blocks(), workload);
  EXPECT_EQ(workload.operators[2].saved, 50);
  EXPECT_EQ(workload.operators[5].saved, 60);
  struct Part {
    size_t begin;
    int32_t end;
    Bytes again;
  };
  for (const Part& part : {Part{6, 5, 600}, Part{11, 2, 300}}) {
    EXPECT_EQ(workload.operators[part.begin + 1].saved, part.again);
    EXPECT_EQ(workload.operators[part.begin + 1].forward, part.end);
    for (size_t i = part.begin + 2; i < part.begin + 5; ++i) {
      EXPECT_EQ(workload.operators[i].forward, part.end);
    }
    EXPECT_EQ(workload.operators[part.begin + 2].frees, part.again / 3);
    EXPECT_EQ(workload.operators[part.begin + 4].frees, 0);
  }
}

// The head's backward comes first, and frees what the head saved. Where the last block ends is not
// known, only what it runs again.
TEST(RecordedActivationsTest, WhatIsInNoCheckpointOfTheUnitIsAPart) {
  plan::Workload workload = blocks_pass(3);
  add_activations({{"blocks.0", 50, 300}, {"blocks.1", 60, 600}, {"head", 90, 0}}, two_blocks(),
                  workload);
  EXPECT_EQ(workload.operators[2].saved, 50);
  EXPECT_EQ(workload.operators[4].saved, 60);
  EXPECT_EQ(workload.operators[8].saved, 90);
  EXPECT_EQ(workload.operators[9].forward, 8);
  EXPECT_EQ(workload.operators[9].frees, 30);
  EXPECT_EQ(workload.operators[13].saved, 600);
  EXPECT_EQ(workload.operators[13].forward, 4);
  EXPECT_EQ(workload.operators[18].saved, 300);
  EXPECT_EQ(workload.operators[18].forward, 2);
}

// If one of two checkpoints keeps nothing, it is not known which operators each runs again.
TEST(RecordedActivationsTest, MorePartsThanCheckpointsAreOne) {
  plan::Workload workload = blocks_pass(0);
  add_activations({{"blocks.0", 50, 600}}, two_blocks(), workload);
  EXPECT_EQ(workload.operators[2].saved, 0);
  EXPECT_EQ(workload.operators[5].saved, 50);
  EXPECT_EQ(workload.operators[12].saved, 600);
}

// A reentrant checkpoint runs forward again in backward, so its amounts come in that order.
TEST(RecordedActivationsTest, AmountsInTheOrderOfBackwardAreFoundByTheirUnit) {
  plan::Workload workload = pass();
  add_activations({{"", 100, 0}, {"layers.1", 0, 600}, {"layers.0.norm", 0, 300}}, two_layers(),
                  workload);
  EXPECT_EQ(workload.operators[11].scratch, 600);
  EXPECT_EQ(workload.operators[14].scratch, 300);
}

// Under DDP: two operators of forward have a backward of two operators each.
plan::Workload replicated_pass() {
  plan::Workload out;
  for (const auto& [phase, forward] :
       std::vector<std::pair<Phase, int32_t>>{{Phase::kForward, -1},
                                              {Phase::kForward, -1},
                                              {Phase::kBackward, 1},
                                              {Phase::kBackward, 1},
                                              {Phase::kBackward, 0},
                                              {Phase::kBackward, 0}}) {
    plan::Operator& op = out.operators.emplace_back();
    op.phase = phase;
    op.forward = forward;
  }
  return out;
}

TEST(RecordedActivationsTest, OfAReplicatedModelAreSpreadOverItsForward) {
  plan::Workload workload = replicated_pass();
  add_replicated_activations({{"emb", 100, 0}, {"layers.0", 400, 0}, {"head", 500, 0}}, {},
                             workload);
  EXPECT_EQ(workload.operators[0].saved, 500);  // those that begin in the first half of the bytes
  EXPECT_EQ(workload.operators[1].saved, 500);
}

TEST(RecordedActivationsTest, OfAReplicatedCheckpointAreThereTogether) {
  plan::Workload workload = replicated_pass();
  add_replicated_activations(
      {{"layers.0", 100, 0}, {"layers.0.up", 0, 400}, {"layers.0.down", 0, 500}}, {"layers.0"},
      workload);
  EXPECT_EQ(workload.operators[0].saved, 100);
  EXPECT_EQ(workload.operators[2].scratch, 900);
  EXPECT_EQ(workload.operators[3].scratch, 900);
  EXPECT_EQ(workload.operators[4].scratch, 400);
}

TEST(RecordedActivationsTest, ReadsRunJson) {
  const auto rows = recorded_activations(
      R"({"activations": [{"module": "a", "saved": 3, "recomputed": 4}, {"module": "b"}]})");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].module, "a");
  EXPECT_EQ(rows[0].saved, 3);
  EXPECT_EQ(rows[0].recomputed, 4);
  EXPECT_EQ(rows[1].saved, 0);
  // Older recordings have none; damaged ones are not used.
  for (const char* text :
       {"", "{}", "[]", R"({"activations": null})", R"({"activations": [1]})",
        R"({"activations": [{"module": 1}]})", R"({"activations": [{"module": "a", "saved": -1}]})",
        R"({"activations": [{"module": "a", "saved": 9223372036854775807}]})"}) {
    EXPECT_TRUE(recorded_activations(text).empty()) << text;
  }
}

}  // namespace
}  // namespace shardlens::sim
