// One program as FSDP2 and as SimpleFSDP rewrite it, recorded from PyTorch by
// tests/tools/rewritten_programs.py on two Gloo ranks: the same units communicate as much.
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "tests/profiler/analysis/device_step.h"

namespace shardlens::analysis {
namespace {

namespace fs = std::filesystem;

Analysis analyzed_form(const std::string& form) {
  AnalysisOptions options;
  options.detail = DetailLevel::kAll;
  return analyze(trace::Run::open(fs::path(SHARDLENS_TEST_DATA) / "rewritten" / form), options);
}

// Bytes by kind and unit, of gathers in forward and of reductions.
using Moved = std::map<std::tuple<UnitSpan::Kind, std::string>, Bytes>;
Moved moved(const RankAnalysis& rank) {
  Moved out;
  for (const UnitSpan& span : rank.detail->spans) {
    const bool gathers = span.part == UnitPart::kAllGatherForward;
    if (gathers || span.part == UnitPart::kReduceScatter) {
      EXPECT_TRUE(span.is_unit) << span.name;
      out[{span.kind, span.owner}] += span.bytes;
    }
  }
  return out;
}

class RewrittenProgram : public testing::TestWithParam<const char*> {};

TEST_P(RewrittenProgram, UnitsCommunicateAsMuchAsUnderFsdp2) {
  const Analysis fsdp2 = analyzed_form("fsdp2"), rewritten = analyzed_form(GetParam());
  ASSERT_EQ(rewritten.ranks.size(), 2U);
  const Moved expected = moved(fsdp2.ranks.at(0));
  EXPECT_EQ(expected.size(), 2U * 4U);  // three blocks and the root
  for (const RankAnalysis& rank : rewritten.ranks) {
    EXPECT_EQ(moved(rank), expected);
    ASSERT_FALSE(rank.attribution.empty());
    for (const AttributionFigures& each : rank.attribution) {
      EXPECT_TRUE(each.nature != Nature::kCommunication || each.basis == Basis::kOrder);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         RewrittenProgram,
                         testing::Values("simple", "simple-compiled", "simple-buckets"),
                         [](const auto& form) {
                           std::string name(form.param);
                           std::erase(name, '-');
                           return name;
                         });

// A module is named where only one can have the size; the queries and keys of a block are alike.
TEST(RewrittenProgramTest, CollectivesOfOneParameterNameTheirModule) {
  std::map<std::string, int> modules;
  const Analysis analysis = analyzed_form("simple");
  for (const UnitSpan& span : analysis.ranks.at(0).detail->spans) {
    modules[span.module] += span.part == UnitPart::kAllGatherForward ? 1 : 0;
  }
  EXPECT_GT(modules["embed"] + modules["layers.1.w2"] + modules["norm"], 0);
  EXPECT_EQ(modules.count("layers.1 … layers.2"), 0U);
}

// Where the step waited for each is known, so its cause is.
TEST(RewrittenProgramTest, WhatWaitedIsKnown) {
  int known = 0, all = 0;
  const Analysis analysis = analyzed_form("simple-compiled");
  for (const UnitSpan& span : analysis.ranks.at(0).detail->spans) {
    if (span.part == UnitPart::kAllGatherForward) {
      ++all;
      known += span.needed_at ? 1 : 0;
    }
  }
  EXPECT_GT(all, 0);
  EXPECT_EQ(known, all);
}

// Forward and backward of each of two steps are one region; eager programs have none.
TEST(RewrittenProgramTest, CompiledRegionsHaveNames) {
  std::map<std::string, int> names;
  const Analysis analysis = analyzed_form("simple-compiled");
  for (const Region& each : analysis.ranks.at(0).detail->regions) {
    ++names[each.name];
    EXPECT_LT(each.when.start, each.when.end);
  }
  EXPECT_EQ(names["compiled backward"], 2);
  EXPECT_EQ(names["compiled 1/0"], 2);
  EXPECT_TRUE(analyzed_form("simple").ranks.at(0).detail->regions.empty());
}

// A step of a program that gathers its parameters itself, and a replay of it, in which each gather
// takes `gathers` microseconds.
test::DeviceStep replayed(Nanoseconds gathers) {
  using test::kComputeStream;
  using test::kGatherStream;
  using test::kReduceStream;
  using test::kUs;
  test::DeviceStep s;
  s.b.trace.metadata.groups = {{"fsdp", "mesh_fsdp", "", {0, 1, 2, 3}, 4}};
  s.b.trace.sharded_parameters = {{"layers.0.w.weight", "layers.0", 50, 4, 1, true},
                                  {"layers.1.w.weight", "layers.1", 60, 4, 1, true}};
  const auto wait = [&](Nanoseconds at) {
    s.b.op("_c10d_functional::wait_tensor", at * kUs, (at + 1) * kUs);
  };
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 10, 20, 30, "fsdp", 50);
  wait(12);
  s.kernel(14, 30, 130);
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 18, 40, 50, "fsdp", 60);
  wait(22);
  s.kernel(24, 130, 330);
  s.b.op("autograd::engine::evaluate_function: CompiledFunctionBackward", 40 * kUs, 90 * kUs);
  s.kernel(42, 330, 530);
  s.nccl(CollectiveKind::kReduceScatter, kReduceStream, 46, 530, 540, "fsdp", 60);
  s.kernel(54, 530, 630);
  s.nccl(CollectiveKind::kReduceScatter, kReduceStream, 56, 630, 640, "fsdp", 50);
  // The same work on streams of the graph's choice, launched once.
  constexpr Nanoseconds kReplay = 200'000;
  constexpr uint32_t kGraph = 1'000'000;
  s.b.step(2, kReplay * kUs, (kReplay + 100'000) * kUs);
  const uint32_t launch =
      s.b.trace.add_complete(trace::Category::kCudaRuntime, "cudaGraphLaunch", s.b.main,
                             (kReplay + 10) * kUs, (kReplay + 20) * kUs);
  s.b.trace.events[launch].correlation = kGraph;
  const auto captured = [&](const std::string& name, int64_t stream, Nanoseconds start,
                            Nanoseconds end) {
    const auto event = static_cast<uint32_t>(s.b.trace.events.size());
    s.b.device(trace::Category::kKernel, name, stream, -1, (kReplay + start) * kUs,
               (kReplay + end) * kUs);
    s.b.trace.events[event].correlation = kGraph;
  };
  const std::string gather = std::string(kernel_name(CollectiveKind::kAllGather)) + "_RING_LL";
  const std::string reduce = std::string(kernel_name(CollectiveKind::kReduceScatter)) + "_RING_LL";
  captured(gather, 81, 30 - gathers, 30);
  captured("gemm", kComputeStream, 30, 130);
  captured(gather, 81, 40, 40 + gathers);
  captured("gemm", kComputeStream, 130, 330);
  captured("gemm", kComputeStream, 330, 530);
  captured(reduce, 82, 530, 540);
  captured("gemm", kComputeStream, 530, 630);
  captured(reduce, 82, 630, 640);
  return s;
}

std::vector<std::string> slow_in_graph(const RankAnalysis& rank) {
  std::vector<std::string> out;
  for (const Waste& each : rank.waste) {
    if (each.kind == WasteKind::kSlowInGraph) {
      out.push_back(each.where);
    }
  }
  return out;
}

// A replay of a CUDA graph has neither calls nor sizes: its units are those of the step before.
TEST(RewrittenProgramTest, AReplayHasTheUnitsOfTheUncapturedStep) {
  using test::kUs;
  test::DeviceStep s = replayed(10);
  const RankAnalysis rank = s.analyzed().ranks.at(0);
  std::map<std::pair<std::string, UnitPart>, int> found;
  for (const UnitSpan& span : rank.detail->spans) {
    if (span.part && span.kind != UnitSpan::Kind::kCompute) {
      ++found[{span.owner, *span.part}];
    }
  }
  EXPECT_EQ(found, (std::map<std::pair<std::string, UnitPart>, int>{
                       {{"layers.0", UnitPart::kAllGatherForward}, 2},
                       {{"layers.0", UnitPart::kReduceScatter}, 2},
                       {{"layers.1", UnitPart::kAllGatherForward}, 2},
                       {{"layers.1", UnitPart::kReduceScatter}, 2}}));
  std::map<std::string, Nanoseconds> compute;
  for (const UnitFigures& unit : rank.units) {
    if (unit.is_unit) {
      compute[unit.fqn] = unit.compute_forward + unit.compute_backward;
    }
  }
  EXPECT_EQ(compute,
            (std::map<std::string, Nanoseconds>{{"layers.0", 400 * kUs}, {"layers.1", 800 * kUs}}));
  EXPECT_EQ(slow_in_graph(rank), std::vector<std::string>{});
  ASSERT_EQ(rank.groups.size(), 1U);  // with arguments, and without
  EXPECT_EQ(rank.groups[0].name, "mesh_fsdp");
  EXPECT_EQ(rank.groups[0].count, 8);
}

// Gathers of 10 us outside of the graph, and of 20 in it.
TEST(RewrittenProgramTest, CollectivesThatAGraphMakesSlowerAreNamed) {
  const RankAnalysis rank = replayed(20).analyzed().ranks.at(0);
  EXPECT_EQ(slow_in_graph(rank),
            (std::vector<std::string>{"all_gather of 100 B", "all_gather of 120 B"}));
}

// The same on a device, where the host only enqueues the waits; times in microseconds.
TEST(RewrittenProgramTest, AStepOnADevice) {
  using test::kGatherStream;
  using test::kReduceStream;
  using test::kUs;
  test::DeviceStep s;
  s.b.trace.sharded_parameters = {{"embed.weight", "", 100, 4, 1, true},
                                  {"layers.0.w.weight", "layers.0", 50, 4, 1, true},
                                  {"layers.1.w.weight", "layers.1", 50, 4, 1, true},
                                  {"head.weight", "", 60, 4, 1, true}};
  const auto gather = [&](Nanoseconds launched, Nanoseconds start, int64_t elements) {
    s.nccl(CollectiveKind::kAllGather, kGatherStream, launched, start, start + 10, "fsdp",
           elements);
  };
  const auto wait = [&](Nanoseconds at) {
    s.b.op("_c10d_functional::wait_tensor", at * kUs, (at + 1) * kUs);
  };
  const auto reduce = [&](Nanoseconds launched, Nanoseconds start, int64_t elements) {
    s.b.op("autograd::engine::evaluate_function: CompiledFunctionBackward", (launched - 1) * kUs,
           (launched + 4) * kUs);
    s.nccl(CollectiveKind::kReduceScatter, kReduceStream, launched, start, start + 10, "fsdp",
           elements);
  };
  gather(10, 20, 100);
  gather(11, 30, 50);  // prefetched
  wait(12);
  s.kernel(14, 30, 50);
  wait(16);  // for layers.0
  gather(18, 40, 50);
  s.kernel(20, 50, 150);
  wait(22);  // for layers.1
  gather(24, 50, 60);
  s.kernel(26, 150, 250);
  wait(28);  // for the head
  s.kernel(30, 250, 260);
  s.kernel(41, 260, 290);  // backward of the head
  s.b.op("autograd::engine::evaluate_function: MmBackward0", 40 * kUs, 44 * kUs);
  reduce(46, 290, 60);
  s.kernel(54, 300, 400);
  reduce(56, 400, 50);
  s.kernel(64, 410, 510);
  reduce(66, 510, 50);
  reduce(76, 520, 100);
  const RankAnalysis rank = s.analyzed().ranks.at(0);
  std::map<std::string, Nanoseconds> needed, forward, backward;
  for (const UnitSpan& span : rank.detail->spans) {
    if (span.part == UnitPart::kAllGatherForward) {
      EXPECT_EQ(span.basis, Basis::kOrder);
      needed[span.module.empty() ? span.owner : span.module] = span.needed_at.value_or(0);
    }
  }
  // Work launched after the wait could have begun when the stream had ended the work before it.
  EXPECT_EQ(needed, (std::map<std::string, Nanoseconds>{{"embed", 14 * kUs},
                                                        {"layers.0.w", 50 * kUs},
                                                        {"layers.1.w", 150 * kUs},
                                                        {"head", 250 * kUs}}));
  for (const UnitFigures& unit : rank.units) {
    if (unit.is_unit) {
      forward[unit.fqn] = unit.compute_forward;
      backward[unit.fqn] = unit.compute_backward;
    }
  }
  EXPECT_EQ(forward, (std::map<std::string, Nanoseconds>{
                         {"", 30 * kUs}, {"layers.0", 100 * kUs}, {"layers.1", 100 * kUs}}));
  EXPECT_EQ(backward, (std::map<std::string, Nanoseconds>{
                          {"", 30 * kUs}, {"layers.0", 100 * kUs}, {"layers.1", 100 * kUs}}));
}

}  // namespace
}  // namespace shardlens::analysis
