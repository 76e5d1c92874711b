// Programs that gather their parameters themselves, as FSDP would do the same: one recorded from
// PyTorch by tests/tools/rewritten_programs.py, and calls at known times.
#include "profiler/analysis/recover/program_units.h"

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "profiler/analysis/analyzed_run.h"
#include "tests/profiler/analysis/device_step.h"

namespace shardlens::analysis {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The plan that a recorded form is as.
RecoveredPlan plan_of_form(const std::string& form) {
  const std::filesystem::path path =
      std::filesystem::path(SHARDLENS_TEST_DATA) / "rewritten" / form;
  trace::ReadOptions options;
  options.keep_args = true;
  return AnalyzedRun::open(std::span(&path, 1), options).recovered_plan();
}

std::vector<std::string> units_of(const RecoveredPlan& plan) {
  std::vector<std::string> out;
  for (const RecoveredUnit& unit : plan.units) {
    out.push_back(unit.fqn);
  }
  return out;
}

// What the program was written to do: one bucket for each block and what is around them, each
// gathered while the one before is used, and kept until backward.
TEST(ProgramUnits, BucketsAreUnits) {
  const RecoveredPlan plan = plan_of_form("simple-buckets");
  EXPECT_EQ(plan.source, FsdpSource::kProgram);
  EXPECT_EQ(plan.world_size, 2);
  EXPECT_THAT(units_of(plan),
              ElementsAre("", "embed", "layers.0", "layers.1", "layers.2", "norm, head"));
  EXPECT_EQ(plan.units[2].padded_numel, 2 * 128 + 4 * 128 * 128 + 3 * 128 * 384);
  EXPECT_EQ(plan.units[5].padded_numel, 128 + 512 * 128);
  for (size_t i = 1; i < plan.units.size(); ++i) {
    EXPECT_EQ(plan.units[i].resharded, std::optional(false)) << plan.units[i].fqn;
  }
  EXPECT_EQ(plan.plan.forward_prefetch_lists, (plan::PrefetchLists{{"embed", {"layers.0"}},
                                                                   {"layers.0", {"layers.1"}},
                                                                   {"layers.1", {"layers.2"}},
                                                                   {"layers.2", {"norm, head"}}}));
}

// Each parameter by itself, and waited for where it is gathered.
TEST(ProgramUnits, ParametersAreUnits) {
  for (const char* form : {"simple", "simple-compiled"}) {
    const RecoveredPlan plan = plan_of_form(form);
    ASSERT_EQ(plan.units.size(), 31U) << form;
    EXPECT_THAT(units_of(plan), testing::IsSupersetOf({"embed", "layers.0.norm1", "layers.1.q",
                                                       "layers.2.w3", "norm", "head"}));
    EXPECT_TRUE(plan.plan.forward_prefetch_lists.empty()) << form;
    EXPECT_EQ(plan.plan.backward_prefetch, plan::BackwardPrefetch::kNone) << form;
  }
}

// Calls and waits of a step on a device, in microseconds; an operator launches each kernel.
class ProgramStep {
 public:
  explicit ProgramStep(std::vector<trace::ShardedParameter> parameters) {
    step.b.trace.sharded_parameters = std::move(parameters);
  }
  void gather(Nanoseconds at, int64_t elements) {
    step.nccl(CollectiveKind::kAllGather, test::kGatherStream, at, at + 5, at + 8, "fsdp",
              elements);
  }
  void reduce(Nanoseconds at, int64_t elements) {
    step.b.op("autograd::engine::evaluate_function: CompiledFunctionBackward", (at - 1) * test::kUs,
              (at + 2) * test::kUs);
    step.nccl(CollectiveKind::kReduceScatter, test::kReduceStream, at, at + 5, at + 8, "fsdp",
              elements);
  }
  void wait(Nanoseconds at) {
    step.b.op("_c10d_functional::wait_tensor", at * test::kUs, (at + 1) * test::kUs);
  }
  void product(Nanoseconds at) {
    step.b.op("aten::mm", at * test::kUs, (at + 1) * test::kUs);
    step.kernel(at, at + 1, at + 2);
  }
  Timeline timeline() {
    trace = step.b.finish();
    return with_program_units(trace, make_timeline(trace));
  }
  test::DeviceStep step;
  trace::Trace trace;
};

using Seen = std::tuple<FsdpCall, std::string, std::string, Nanoseconds>;  // unit, hook's unit, µs

std::vector<Seen> seen(const Timeline& timeline) {
  std::vector<Seen> out;
  for (const FsdpEvent& e : timeline.fsdp.events) {
    out.emplace_back(e.call, timeline.fsdp.units[e.unit].fqn, timeline.fsdp.units[e.hook_unit].fqn,
                     e.when.start / test::kUs);
  }
  return out;
}

TEST(ProgramUnits, HooksAreWhereTheStepWaits) {
  ProgramStep step({{"embed.weight", "", 100, 4, 1, true},
                    {"layers.0.w.weight", "layers.0", 50, 4, 1, true},
                    {"layers.1.w.weight", "layers.1", 50, 4, 1, true}});
  step.gather(10, 100);
  step.gather(11, 50);  // of layers.0, before embed is waited for
  step.wait(12);
  step.product(14);
  step.wait(16);  // for layers.0
  step.product(18);
  step.gather(20, 50);
  step.wait(22);
  step.product(24);
  step.step.b.op("autograd::engine::evaluate_function: MmBackward0", 30 * test::kUs,
                 32 * test::kUs);
  step.product(31);
  step.reduce(34, 50);
  step.product(38);
  step.reduce(40, 50);
  step.wait(43);  // for layers.1, right after the call
  step.product(46);
  step.reduce(48, 100);
  step.product(52);
  step.wait(54);
  step.wait(56);
  using enum FsdpCall;
  EXPECT_THAT(
      seen(step.timeline()),
      ElementsAre(
          Seen(kPreForward, "embed", "embed", 10), Seen(kUnshard, "embed", "embed", 10),
          Seen(kUnshard, "layers.0", "embed", 11), Seen(kCopyOut, "embed", "embed", 12),
          Seen(kPostForward, "embed", "embed", 16), Seen(kPreForward, "layers.0", "layers.0", 16),
          Seen(kCopyOut, "layers.0", "layers.0", 16),
          Seen(kPostForward, "layers.0", "layers.0", 20),
          Seen(kPreForward, "layers.1", "layers.1", 20), Seen(kUnshard, "layers.1", "layers.1", 20),
          Seen(kCopyOut, "layers.1", "layers.1", 22),
          Seen(kPostForward, "layers.1", "layers.1", 30),
          Seen(kPreBackward, "layers.1", "layers.1", 30),
          Seen(kPostBackward, "layers.1", "layers.1", 34),
          Seen(kReduce, "layers.1", "layers.1", 34), Seen(kPreBackward, "layers.0", "layers.0", 34),
          Seen(kPostBackward, "layers.0", "layers.0", 40),
          Seen(kReduce, "layers.0", "layers.0", 40), Seen(kPreBackward, "embed", "embed", 44),
          Seen(kPostBackward, "embed", "embed", 48), Seen(kReduce, "embed", "embed", 48),
          Seen(kReduceWait, "layers.0", "layers.0", 54), Seen(kReduceWait, "embed", "embed", 56)));
}

// Backward does not read the embedding, and of the bucket only one parameter.
TEST(ProgramUnits, BackwardGathersWhatItReads) {
  ProgramStep step({{"embed.weight", "", 100, 4, 1, true},
                    {"layers.0.norm.weight", "layers.0", 8, 4, 1, true},
                    {"layers.0.w.weight", "layers.0", 50, 4, 1, true}});
  step.gather(10, 100);
  step.wait(12);
  step.product(14);
  step.gather(16, 58);
  step.wait(18);
  step.product(20);
  step.step.b.op("autograd::engine::evaluate_function: CompiledFunctionBackward", 30 * test::kUs,
                 50 * test::kUs);
  step.gather(32, 50);
  step.wait(34);
  step.product(36);
  step.reduce(38, 58);
  step.product(42);
  step.reduce(44, 100);
  std::vector<std::string> gathered;
  const Timeline timeline = step.timeline();
  for (const FsdpEvent& e : timeline.fsdp.events) {
    if (e.call == FsdpCall::kUnshard && e.backward) {
      gathered.push_back(timeline.fsdp.units[e.unit].fqn);
    }
  }
  EXPECT_THAT(gathered, ElementsAre("layers.0"));
}

// Of the bucket backward gathers only the norm, in the middle of the unit's backward: autograd kept
// the rest, so the unit is kept, and this gather is communication of the program's own.
TEST(ProgramUnits, PartsThatAreGatheredAgainAreNoUnits) {
  ProgramStep step({{"layers.0.norm.weight", "layers.0", 8, 4, 1, true},
                    {"layers.0.w.weight", "layers.0", 50, 4, 1, true},
                    {"layers.1.norm.weight", "layers.1", 9, 4, 1, true},
                    {"layers.1.w.weight", "layers.1", 60, 4, 1, true}});
  step.gather(10, 58);
  step.wait(12);
  step.product(14);
  step.gather(16, 69);
  step.wait(18);
  step.product(20);
  step.step.b.op("autograd::engine::evaluate_function: CompiledFunctionBackward", 30 * test::kUs,
                 70 * test::kUs);
  step.product(31);
  step.gather(34, 9);
  step.wait(36);
  step.product(38);
  step.reduce(40, 69);
  step.product(44);
  step.wait(46);  // for the reduction
  step.gather(48, 8);
  step.wait(50);
  step.product(52);
  step.reduce(56, 58);
  const Timeline timeline = step.timeline();
  using enum FsdpCall;
  std::vector<Seen> backward = seen(timeline);
  std::erase_if(backward, [](const Seen& each) { return std::get<Nanoseconds>(each) < 30; });
  EXPECT_THAT(backward, ElementsAre(Seen(kPostForward, "layers.1", "layers.1", 30),
                                    Seen(kPreBackward, "layers.1", "layers.1", 30),
                                    Seen(kPostBackward, "layers.1", "layers.1", 40),
                                    Seen(kReduce, "layers.1", "layers.1", 40),
                                    Seen(kPreBackward, "layers.0", "layers.0", 40),
                                    Seen(kReduceWait, "layers.1", "layers.1", 46),
                                    Seen(kPostBackward, "layers.0", "layers.0", 56),
                                    Seen(kReduce, "layers.0", "layers.0", 56)));
  std::vector<Nanoseconds> waits;
  for (const Collective& each : timeline.collectives) {
    if (each.purpose == Purpose::kGatherParameters && each.part == UnitPart::kOther) {
      EXPECT_EQ(each.section, Section::kBackward);
      waits.push_back(step.trace.events.at(each.wait).start / test::kUs);
    }
  }
  EXPECT_THAT(waits, ElementsAre(36, 50));
}

// A plan has one unit for what it gathers and for what it reduces.
TEST(ProgramUnits, OtherBucketsOfReductionsAreRefused) {
  ProgramStep step({{"layers.0.w.weight", "layers.0", 50, 4, 1, true},
                    {"layers.1.w.weight", "layers.1", 60, 4, 1, true}});
  step.gather(10, 50);
  step.wait(12);
  step.product(14);
  step.gather(16, 60);
  step.wait(18);
  step.product(20);
  step.product(31);
  step.reduce(34, 110);
  try {
    (void)step.timeline();
    ADD_FAILURE() << "not refused";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the reduce_scatter of 'layers.0 … layers.1' in backward "
                                        "has other parameters together than the gathers of "
                                        "forward have"));
  }
}

}  // namespace
}  // namespace shardlens::analysis
