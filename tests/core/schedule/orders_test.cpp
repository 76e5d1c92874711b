// Every configuration recorded from PyTorch (tests/data/orders.json): same events in the same
// order, same counts, same sizes.
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "core/layout/shard_layout.h"
#include "tests/core/schedule/orders_case.h"
#include "tests/core/schedule/torch_program.h"

namespace shardlens::schedule::test {
namespace {

std::string join(const std::vector<std::string>& tokens) {
  std::string out;
  for (const std::string& token : tokens) {
    out += out.empty() ? token : " " + token;
  }
  return out;
}

// FSDP1 makes compute wait for its unshard stream before every use. If nothing was issued on that
// stream since the last wait, our schedule has no action for it.
class VacuousWaits {
 public:
  std::string drop(const std::string& events) {
    std::vector<std::string> kept;
    for (const std::string& token : tokens_of(events)) {
      const std::string unit = token.substr(1);
      if (token[0] == 'A') {
        pending_.insert(unit);
      } else if (token[0] == 'W' && pending_.erase(unit) == 0) {
        continue;
      }
      kept.push_back(token);
    }
    return join(kept);
  }

 private:
  std::set<std::string> pending_;
};

std::string without(const std::string& events, const std::string& codes) {
  std::vector<std::string> kept;
  for (const std::string& token : tokens_of(events)) {
    if (codes.find(token[0]) == std::string::npos) {
      kept.push_back(token);
    }
  }
  return join(kept);
}

const std::vector<OrdersCase>& cases() {
  static const std::vector<OrdersCase> all =
      read_orders(std::string(SHARDLENS_TEST_DATA) + "/orders.json");
  return all;
}

// World size 1 under FSDP2: PyTorch copies each shard into an unsharded parameter and frees the
// copy again. The shard is the whole parameter, so our schedule uses it directly: no waits, and one
// reshard, after backward.
bool is_copy_of_whole(const OrdersCase& test) {
  return test.api == "fsdp2" && test.world == 1;
}

// The events, with those of the final callback sorted and without its post_backward calls:
// kBackwardEnd finishes all units in one pass, PyTorch calls post_backward on each.
std::string unordered_final_callback(const std::string& events) {
  std::vector<std::string> kept, inside;
  bool in = false;
  for (const std::string& token : tokens_of(events)) {
    if (token[0] == 'c') {
      std::sort(inside.begin(), inside.end());
      kept.insert(kept.end(), inside.begin(), inside.end());
      inside.clear();
      in = false;
    }
    if (!in) {
      kept.push_back(token);
    } else if (token[0] != 'P' && token[0] != 'p') {
      inside.push_back(token);
    }
    in = in || token[0] == 'C';
  }
  return join(kept);
}

// Empty if the schedule does what PyTorch did.
std::string difference(const OrdersCase& test, plan::Layout layout, FinalCallback final_callback) {
  TorchProgram program(test, layout, final_callback);
  VacuousWaits waits;
  for (size_t i = 0; i < test.iterations.size(); ++i) {
    const OrdersCase::Iteration& expected = test.iterations[i];
    std::string found = program.run(expected.label);
    std::string events = test.fsdp1() ? waits.drop(expected.events) : expected.events;
    if (is_copy_of_whole(test)) {
      events = without(events, "WS");
      found = without(found, "WS");
    }
    if (final_callback == FinalCallback::kEngine) {
      events = unordered_final_callback(events);
      found = unordered_final_callback(found);
    }
    if (!program.failure().empty()) {
      return program.failure();
    }
    const std::vector<int64_t> counts(program.counts().begin(), program.counts().end());
    if (found != events || counts != expected.counts) {
      return "iteration " + std::to_string(i) + " (" + expected.label + ")\n  expected " + events +
             "\n  found    " + found;
    }
  }
  return {};
}

// Number of cases that match; the first few that do not are added as failures.
size_t matching(plan::Layout layout, FinalCallback final_callback, size_t& compared) {
  size_t matched = 0;
  int shown = 0;
  for (const OrdersCase& test : cases()) {
    if (!test.error.empty() || (test.fsdp1() && layout == plan::Layout::kPerParameter)) {
      continue;
    }
    ++compared;
    const std::string why = difference(test, layout, final_callback);
    matched += why.empty() ? 1 : 0;
    if (!why.empty() && ++shown <= 12) {
      ADD_FAILURE() << test.id << ": " << why;
    }
  }
  return matched;
}

TEST(OrdersTest, EveryRecordedOrderIsReproduced) {
  size_t compared = 0;
  const size_t matched = matching(plan::Layout::kFlat, FinalCallback::kPerUnit, compared);
  EXPECT_EQ(matched, compared);
  EXPECT_EQ(compared, 1086U);  // 1087 and the one that PyTorch fails on
}

TEST(OrdersTest, ThePerParameterLayoutHasTheSameOrders) {
  size_t compared = 0;
  const size_t matched = matching(plan::Layout::kPerParameter, FinalCallback::kPerUnit, compared);
  EXPECT_EQ(matched, compared);
  EXPECT_EQ(compared, 543U);
}

TEST(OrdersTest, BackwardEndFinishesWhatNoHookAnnounced) {
  for (const plan::Layout layout : {plan::Layout::kFlat, plan::Layout::kPerParameter}) {
    size_t compared = 0;
    const size_t matched = matching(layout, FinalCallback::kEngine, compared);
    EXPECT_EQ(matched, compared);
  }
}

// code, unit, group size, input bytes, output bytes, dtype
using Collective = std::tuple<char, std::string, int64_t, int64_t, int64_t, std::string>;

std::set<Collective> recorded_collectives(const OrdersCase& test) {
  std::set<Collective> rows;
  for (const nlohmann::json& row : test.sizes) {
    std::istringstream names(row[1].get<std::string>());
    for (std::string name; std::getline(names, name, ',');) {
      rows.insert({row[0].get<std::string>()[0], name, row[2], row[3], row[4], row[5]});
    }
  }
  return rows;
}

// Sizes of a unit's collectives, computed only from plan::ShardLayout.
class Sizes {
 public:
  Sizes(const OrdersCase& test, const OrdersUnit& unit) : test_(test) {
    const plan::Layout layout = test.fsdp1() ? plan::Layout::kFlat : plan::Layout::kPerParameter;
    // NO_SHARD pads to the world size like the other strategies.
    ranks_ = test.fsdp1() && test.shard == 1 ? test.world : test.shard;
    const plan::ShardLayout whole(layout, unit.shapes, ranks_, param_dtype());
    padded_ = reduced_ = whole.padded_numel();
    if (test.fsdp1() && !test.use_orig_params) {  // no alignment between parameters
      padded_ = reduced_ = (whole.numel() + ranks_ - 1) / ranks_ * ranks_;
    }
    if (!test.fsdp1() && test.frozen_bias &&
        unit.name != "r") {  // only what has gradients is reduced
      std::vector<std::vector<int64_t>> weights;
      std::ranges::copy_if(unit.shapes, std::back_inserter(weights),
                           [](const auto& shape) { return shape.size() > 1; });
      reduced_ = plan::ShardLayout(layout, weights, ranks_, DType::kF32).padded_numel();
    }
  }

  [[nodiscard]] Collective of(const Action& action, const std::string& unit) const {
    const int64_t param_bytes = test_.mixed ? 2 : 4;
    switch (action.op) {
      case Op::kAllGather: {
        const int64_t group =
            action.group > plan::kReplicateGroup ? test_.raf.get<int64_t>() : test_.shard;
        return {'A',
                unit,
                group,
                padded_ / group * param_bytes,
                padded_ * param_bytes,
                test_.mixed ? "bfloat16" : "float32"};
      }
      case Op::kReduceScatter:
        return {'R', unit, test_.shard, reduced_ * 4, reduced_ / ranks_ * 4, "float32"};
      default: {
        const bool shard = action.buffer.kind == BufferKind::kReduceOutput;
        const int64_t bytes = (shard ? reduced_ / ranks_ : reduced_) * 4;
        return {'X', unit, test_.replicate, bytes, bytes, "float32"};
      }
    }
  }

 private:
  [[nodiscard]] DType param_dtype() const { return test_.mixed ? DType::kBF16 : DType::kF32; }
  const OrdersCase& test_;
  int64_t ranks_ = 1, padded_ = 0, reduced_ = 0;
};

TEST(OrdersTest, CollectivesMoveWhatPyTorchMoves) {
  for (const OrdersCase& test : cases()) {
    if (!test.error.empty()) {
      continue;
    }
    const std::vector<OrdersUnit> units = units_of(test);
    TorchProgram program(test, test.fsdp1() ? plan::Layout::kFlat : plan::Layout::kPerParameter,
                         FinalCallback::kPerUnit);
    std::set<Collective> found;
    for (const OrdersCase::Iteration& iteration : test.iterations) {
      program.run(iteration.label);
      for (const Action& action : program.actions()) {
        if (action.op == Op::kAllGather || action.op == Op::kReduceScatter ||
            action.op == Op::kAllReduce) {
          const OrdersUnit& unit = units[action.unit];
          found.insert(Sizes(test, unit).of(action, unit.name));
        }
      }
    }
    ASSERT_EQ(found, recorded_collectives(test)) << test.id;
  }
}

// PyTorch 2.11 copies the pending all-gather over 2 ranks out as if it were over 4, and raises.
TEST(OrdersTest, SubShardedUnitThatTheFirstBackwardMissedIsGatheredOnce) {
  for (const OrdersCase& test : cases()) {
    if (test.error.empty()) {
      continue;
    }
    TorchProgram program(test, plan::Layout::kPerParameter, FinalCallback::kPerUnit);
    // As recorded for raf = true, with K for S in forward: unit 1's all-gather stays pending from
    // the first backward to the second.
    EXPECT_EQ(
        program.run("sync"),
        "Fr F0 A0 W0 K0 f0 F1 A1 W1 K1 f1 F2 A2 W2 K2 f2 fr | B2 A2 W2 A1 b2 Br br P2 S2 R2 p2 "
        "B0 A0 W0 b0 C2 P0 S0 R0 p0 P1 p1 c2 | B1 W1 A0 b1 Br br P1 S1 R1 p1 B0 W0 b0 C1 P0 S0 R0 "
        "p0 P2 p2 c1");
    EXPECT_EQ(program.failure(), "");
    EXPECT_TRUE(program.ledger().finish().ok()) << program.ledger().finish().message();
  }
}

TEST(OrdersTest, AbortAfterAnyIterationLeavesEverythingSharded) {
  for (const OrdersCase& test : cases()) {
    for (const plan::Layout layout : {plan::Layout::kFlat, plan::Layout::kPerParameter}) {
      if (test.fsdp1() && layout == plan::Layout::kPerParameter) {
        continue;
      }
      TorchProgram program(test, layout, FinalCallback::kEngine);
      for (const OrdersCase::Iteration& iteration : test.iterations) {
        program.run(iteration.label);
        program.abort();
        ASSERT_EQ(program.failure(), "") << test.id;
        const Result<void> end = program.ledger().finish();
        ASSERT_TRUE(end.ok()) << test.id << ": " << end.message();
      }
    }
  }
}

}  // namespace
}  // namespace shardlens::schedule::test
