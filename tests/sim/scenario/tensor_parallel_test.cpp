#include <algorithm>
#include <cmath>
#include <memory>

#include <gtest/gtest.h>

#include "core/plan/unit_sizes.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

// One layer: H 4096, I 16384, 32 heads of 128, 8 of keys and values, V 32000.
constexpr const char* kDecoder = R"({"model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 16384, "num_hidden_layers": 1, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768})";
constexpr int64_t kHidden = 4096, kInner = 16384, kKeys = 1024, kVocabulary = 32000, kRows = 4096;
constexpr double kGbps = 100;

// All ranks of one node divide the layers; rings of 100 GB/s connect them.
Scenario divided_scenario(int64_t tensor) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(kDecoder, "test"));
  out.plan.mesh.tensor = tensor;
  out.world_size = tensor;
  out.step = {.batch = 1, .seq = kRows};
  HardwareSpec hardware = load_hardware("8xH100");
  hardware.fabric.ring_gbps = kGbps;
  hardware.fabric.reduce_scatter_ratio = 1;
  hardware.fabric.curves.clear();
  hardware.fabric.nvls_gbps = 0;
  out.machine = std::make_shared<const TargetMachine>(hardware);
  return out;
}

// Of a large message: NCCL's latencies for rings of NVLink with its protocol Simple
// (src/graph/tuning.cc), and of the bytes what passes each link.
double ring_us(int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  return 8.4 + (n - 1) * 3.4 + bytes * (n - 1) / n / (kGbps * 1e3);
}

// All-gathers: before attention, MLP and head, of the logits, and in backward of the gradients of
// what attention, MLP and embedding add. Reduce-scatters: the reverse, without the logits.
TEST(TensorParallel, ALayersCollectivesTakeTheirTimeOnTheLinks) {
  const Bytes hidden = kRows * kHidden * 4, logits = kRows * kVocabulary * 4;
  for (const int64_t t : {2, 8}) {
    const Prediction now = evaluate(divided_scenario(t), {.timeline = true, .communication = true});
    int found = 0;
    for (const analysis::CommunicationFigures& each : now.communication) {
      if (each.purpose != Purpose::kActivations) {
        continue;
      }
      ++found;
      const bool gathers = each.kind == CollectiveKind::kAllGather;
      EXPECT_EQ(each.ranks, t);
      EXPECT_EQ(each.count, gathers ? 7 : 6);
      EXPECT_EQ(each.bytes, 6 * hidden + (gathers ? logits : 0));
      const double expected = 6 * ring_us(t, static_cast<double>(hidden)) +
                              (gathers ? ring_us(t, static_cast<double>(logits)) : 0);
      EXPECT_NEAR(static_cast<double>(each.busy) * 1e-3, expected, 0.1) << t;
      // Nothing can run meanwhile: what follows needs the result.
      EXPECT_EQ(each.exposed, each.busy);
    }
    EXPECT_EQ(found, 2);
  }
}

TEST(TensorParallel, StatesAreThoseOfAPart) {
  const int64_t divided = kHidden * (2 * kVocabulary + 2 * kHidden + 2 * kKeys + 3 * kInner);
  const int64_t norms = 3 * kHidden;
  for (const int64_t t : {1, 2, 8}) {
    const Prediction now = evaluate(divided_scenario(t));
    const Bytes parameters = 4 * (divided / t + norms);
    Bytes held = 0, stepped = 0;
    for (const plan::UnitSize& unit : plan::unit_sizes(*now.priced.plan)) {
      held += unit.sharded;
      stepped += unit.stepped * 4;
    }
    EXPECT_EQ(held, parameters) << t;
    EXPECT_EQ(stepped, parameters) << t;
    // The allocator rounds.
    const auto at_peak = [&](MemoryCategory category) {
      return static_cast<double>(now.memory.at_peak[static_cast<size_t>(category)]);
    };
    const auto exact = static_cast<double>(parameters);
    EXPECT_NEAR(at_peak(MemoryCategory::kParameters), exact, 0.01 * exact) << t;
    EXPECT_NEAR(at_peak(MemoryCategory::kOptimizer), 2 * exact, 0.02 * exact) << t;
  }
}

// Keys and values also share the links with the units that are gathered and reduced meanwhile.
TEST(ContextParallel, GroupsThatRunAtOnceShareTheLinks) {
  Scenario of = divided_scenario(1);
  of.plan.mesh = {.context = 8};
  of.plan.context_method = plan::ContextMethod::kRing;
  of.world_size = 8;
  of.step.seq = 8 * kRows;
  const auto busy = [&](int64_t gathered_layers) {
    of.plan.units.clear();
    if (gathered_layers == 0) {
      of.plan.units.emplace_back().globs = {""};
    }
    Nanoseconds out = 0;
    for (const analysis::CommunicationFigures& each :
         evaluate(of, {.timeline = true, .communication = true}).communication) {
      out += each.purpose == Purpose::kContext ? each.busy : 0;
    }
    return out;
  };
  EXPECT_GT(busy(1), busy(0));
}

// A ring of 8: keys and values of one rank go to the next in 7 of 8 steps of forward and of
// backward, their gradients in all 8 of backward, in fp32 as everything here. A rank sends all of
// them over its link.
TEST(ContextParallel, ARingPassesKeysAndValuesOn) {
  Scenario of = divided_scenario(1);
  of.plan.mesh = {.context = 8};
  of.plan.context_method = plan::ContextMethod::kRing;
  plan::UnitEntry root;
  root.globs = {""};
  of.plan.units = {root};  // gathered before and reduced after, so that nothing shares the links
  of.world_size = 8;
  of.step.seq = 8 * kRows;
  const Bytes part = kRows * 2 * kKeys * 4;
  // As one step of an all-gather of two ranks.
  const double send_us = 8.4 + 3.4 + static_cast<double>(part) / (kGbps * 1e3);
  const Prediction now = evaluate(of, {.timeline = true, .communication = true});
  int found = 0;
  for (const analysis::CommunicationFigures& each : now.communication) {
    if (each.purpose != Purpose::kContext) {
      continue;
    }
    ++found;
    EXPECT_EQ(each.group, "context");
    EXPECT_EQ(each.kind, CollectiveKind::kSendRecv);
    EXPECT_EQ(each.count, 7 + 7 + 8);
    EXPECT_EQ(each.bytes, (7 + 7 + 8) * part);
    // Those of keys and values run during products, which take longer.
    EXPECT_NEAR(static_cast<double>(each.busy) * 1e-3, (7 + 7 + 8) * send_us, 1);
    EXPECT_LT(each.exposed, each.busy);
  }
  EXPECT_EQ(found, 1);
  EXPECT_NEAR(now.tokens_per_s * static_cast<double>(now.step.duration) * 1e-9, 8 * kRows, 1e-6);
}

// Ranks that divide a sample do not have one each.
TEST(TensorParallel, TokensAreCountedOnce) {
  const Prediction now = evaluate(divided_scenario(8));
  EXPECT_NEAR(now.tokens_per_s * static_cast<double>(now.step.duration) * 1e-9, kRows, 1e-6);
}

}  // namespace
}  // namespace shardlens::sim
