// What-if of programs that gather their parameters themselves, recorded from PyTorch by
// tests/tools/rewritten_programs.py: two Gloo ranks, two steps.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

std::shared_ptr<const RecordedRun> recorded(const std::string& form) {
  static std::map<std::string, std::shared_ptr<const RecordedRun>> runs;
  std::shared_ptr<const RecordedRun>& run = runs[form];
  if (run == nullptr) {
    const std::filesystem::path path =
        std::filesystem::path(SHARDLENS_TEST_DATA) / "rewritten" / form;
    run = RecordedRun::open(std::span(&path, 1));
  }
  return run;
}

class ProgramGathers : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static Prediction with(const std::function<void(plan::Plan&)>& change) {
    Scenario scenario = own_scenario(recorded(GetParam()));
    change(scenario.plan);
    return evaluate(scenario, {.communication = true});
  }
  [[nodiscard]] static int64_t count_of(const Prediction& prediction, CollectiveKind kind) {
    int64_t out = 0;
    for (const analysis::CommunicationFigures& each : prediction.communication) {
      out += each.kind == kind ? each.count.value_or(0) : 0;
    }
    return out;
  }
};

TEST_P(ProgramGathers, EachInstantBelongsToOneItem) {
  const Observation& seen = recorded(GetParam())->observation();
  EXPECT_TRUE(seen.rewritten);
  EXPECT_FALSE(seen.one_pass);
  EXPECT_EQ(seen.steps.size(), 4U);
  for (const ObservedStep& step : seen.steps) {
    Nanoseconds sum = step.outside + step.norm_communication + step.outside_communication;
    for (const ObservedItem& item : step.items) {
      sum += item.host + item.waited + std::max<Nanoseconds>(0, item.run);
    }
    EXPECT_EQ(sum, step.duration);
  }
}

TEST_P(ProgramGathers, TheOwnPlanIsReplayed) {
  const Prediction own = with([](plan::Plan&) {});
  EXPECT_LT(std::abs(own.baseline->error()), 0.1);  // of two short steps
  const int64_t units = std::string(GetParam()) == "simple-buckets" ? 5 : 30;
  EXPECT_EQ(count_of(own, CollectiveKind::kAllGather), units);
  EXPECT_EQ(count_of(own, CollectiveKind::kReduceScatter), units);
}

// Each unit is gathered once more, which takes longer, and less memory.
TEST_P(ProgramGathers, GatheredAgainInBackward) {
  const Prediction own = with([](plan::Plan&) {});
  const Prediction again = with([](plan::Plan& plan) {
    plan.reshard_after_forward = {plan::Reshard::Kind::kYes, 0};
    for (plan::UnitEntry& entry : plan.units) {
      entry.reshard_after_forward.reset();
    }
  });
  EXPECT_EQ(count_of(again, CollectiveKind::kAllGather),
            2 * count_of(own, CollectiveKind::kAllGather));
  EXPECT_GT(again.step.duration, own.step.duration);
  EXPECT_LT(again.memory.peak_allocated, own.memory.peak_allocated);
}

// One unit for each block: the same bytes in fewer collectives.
TEST_P(ProgramGathers, BlocksAsUnits) {
  const Prediction own = with([](plan::Plan&) {});
  const Prediction merged = with([](plan::Plan& plan) {
    plan.units.clear();
    for (const char* block : {"layers.0", "layers.1", "layers.2", "embed", "norm", "head"}) {
      plan.units.emplace_back().globs = {block};
    }
    plan.forward_prefetch_lists.clear();
    plan.reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
  });
  // Its norm and head were one bucket, which cannot be divided.
  EXPECT_EQ(count_of(merged, CollectiveKind::kReduceScatter),
            std::string(GetParam()) == "simple-buckets" ? 5 : 6);
  if (count_of(own, CollectiveKind::kReduceScatter) > 6) {
    EXPECT_LT(merged.step.duration, own.step.duration);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         ProgramGathers,
                         testing::Values("simple", "simple-compiled", "simple-buckets"),
                         [](const auto& form) {
                           std::string name(form.param);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace shardlens::sim
