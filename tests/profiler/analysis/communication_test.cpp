// What communication was for: how it is inferred, and that its figures are those of the kinds, the
// process groups and the units.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/report/analysis_report.h"
#include "tests/profiler/analysis/device_step.h"

namespace shardlens::analysis {
namespace {

namespace fs = std::filesystem;
using test::DeviceStep;
using test::kComputeStream;
using test::kGatherStream;
using test::kReduceStream;
using test::kTensorStream;
using test::kUs;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// "activations mesh_tp/2 all_reduce 6x 98304".
std::vector<std::string> rows_of(const RankAnalysis& rank) {
  std::vector<std::string> out;
  for (const CommunicationFigures& each : rank.communication) {
    out.push_back(fmt::format("{} {}/{} {} {}x {}", name_of(each.purpose), each.group, each.ranks,
                              each.kind ? name_of(*each.kind) : "unknown", each.count.value_or(-1),
                              each.bytes));
  }
  return out;
}

Analysis recorded(const fs::path& path, bool timelines = false) {
  AnalysisOptions options;
  options.keep_timelines = timelines;
  return analyze(trace::Run::open(path), options);
}

fs::path pytorch(const char* name) {
  return fs::path(SHARDLENS_TEST_DATA) / "pytorch_traces" / name / "rank0.pt.trace.json.gz";
}

// A collective of every axis, and in every section.
TEST(PurposesTest, TheSectionComesBeforeTheAxisOfTheGroup) {
  DeviceStep s;
  s.begin();
  Nanoseconds at = 200;
  const auto reduce = [&](Nanoseconds launched, std::string_view group,
                          CollectiveKind kind = CollectiveKind::kAllReduce) {
    s.nccl(kind, kTensorStream, launched, at, at + 10, group);
    at += 20;
  };
  s.range("FSDP::pre_forward (a)", 40, 45);
  reduce(50, "tp");
  reduce(51, "tp", CollectiveKind::kAllGather);  // of activations, not of parameters
  reduce(52, "ep", CollectiveKind::kAllToAll);
  reduce(53, "cp", CollectiveKind::kSendRecv);
  reduce(54, "pp", CollectiveKind::kSendRecv);
  reduce(55, "mystery");
  s.range("FSDP::post_forward (a)", 60, 62);
  s.range("FSDP::post_forward", 63, 64);
  reduce(70, "tp");  // of the loss
  s.range("FSDP::pre_backward (a)", 80, 82);
  reduce(85, "tp");
  s.range("FSDP::post_backward_reduce (a)", 90, 110);
  reduce(95, "shard", CollectiveKind::kReduceScatter);
  reduce(96, "replicate");
  s.range("FSDP::root_post_backward_callback", 120, 125);
  s.b.op("aten::_foreach_norm", 130 * kUs, 132 * kUs);
  reduce(135, "tp");
  s.range("Optimizer.step#AdamW.step", 140, 150);
  reduce(145, "tp");
  EXPECT_THAT(
      rows_of(s.analyzed().ranks.at(0)),
      ElementsAre("gather_parameters mesh_dp/4 all_gather 1x 2000",
                  "reduce_gradients mesh_shard/4 reduce_scatter 1x 2000",
                  "reduce_replicas mesh_replicate/4 all_reduce 1x 2000",
                  "activations mesh_tp/4 all_gather 1x 2000",
                  "activations mesh_tp/4 all_reduce 2x 4000", "tokens mesh_ep/4 all_to_all 1x 2000",
                  "context mesh_cp/4 send_recv 1x 2000", "norm mesh_tp/4 all_reduce 1x 2000",
                  "loss mesh_tp/4 all_reduce 1x 2000", "other mesh_tp/4 all_reduce 1x 2000",
                  "other mesh_pp/4 send_recv 1x 2000", "other mesh_mystery/4 all_reduce 1x 2000"));
}

// In each of two layers one all-reduce in forward, of the output of down_proj, and two in backward,
// of the inputs of gate_proj and up_proj, of 2 * 32 * 64 floats.
TEST(PurposesTest, TensorParallelTracesSayWhatTheyCommunicatedFor) {
  const Analysis analysis = recorded(pytorch("fsdp2-tensor"));
  EXPECT_THAT(rows_of(analysis.ranks.at(0)),
              testing::Contains("activations mesh_tp/2 all_reduce 6x 98304"));
  const std::string text = report::analysis_text(analysis, {});
  EXPECT_THAT(text, HasSubstr("communication by purpose on rank 0"));
  EXPECT_THAT(text, testing::ContainsRegex("activations +mesh_tp +all_reduce +6 "));
}

// Gloo's collectives name no group. An axis over all ranks has the default group; the others of the
// list have one rank, so all collectives are of that one.
TEST(PurposesTest, TheOnlyGroupWithSeveralRanksHasAllCollectives) {
  trace::Run run = trace::Run::open(pytorch("fsdp2-tensor"));
  for (trace::Trace& each : run.traces) {
    each.metadata.groups = {{"0", "default_pg", "", {0, 1}, 2}, {"1", "mesh_shard", "", {0}, 1}};
  }
  const Analysis analysis = analyze(run);
  ASSERT_FALSE(analysis.ranks.at(0).communication.empty());
  for (const CommunicationFigures& each : analysis.ranks.at(0).communication) {
    EXPECT_EQ(each.group, "default_pg");
    EXPECT_EQ(each.ranks, 2);
  }
}

TEST(PurposesTest, ARunThatOnlyShardsHasNoTableOfPurposes) {
  const Analysis analysis = recorded(pytorch("fsdp2-hybrid"));
  EXPECT_FALSE(analysis.ranks.at(0).communication.empty());
  EXPECT_THAT(report::analysis_text(analysis, {}), Not(HasSubstr("by purpose")));
}

struct Sum {
  int64_t count = 0;
  Bytes bytes = 0;
  Nanoseconds exposed = 0;
  friend bool operator==(const Sum&, const Sum&) = default;
  friend void PrintTo(const Sum& sum, std::ostream* out) {
    *out << sum.count << " of " << sum.bytes << " bytes, exposed " << sum.exposed;
  }
};

template <typename Figures>
void add(Sum& sum, const Figures& figures) {
  if constexpr (requires { figures.count.value(); }) {
    sum.count += figures.count.value();
  } else {
    sum.count += figures.count;
  }
  sum.bytes += figures.bytes;
  sum.exposed += figures.exposed;
}

// The time of some collectives within the windows, counted between all instants at which one of
// them or a window starts or ends.
struct Swept {
  Nanoseconds busy = 0;
  bool serial = true;  // no two at once
};
Swept swept(const std::vector<Interval>& collectives, const IntervalSet& windows) {
  std::map<Nanoseconds, std::pair<int, int>> changes;  // of running collectives, of open windows
  for (const Interval& each : collectives) {
    ++changes[each.start].first;
    --changes[each.end].first;
  }
  for (const Interval& each : windows) {
    ++changes[each.start].second;
    --changes[each.end].second;
  }
  Swept out;
  int running = 0, open = 0;
  Nanoseconds last = 0;
  for (const auto& [at, change] : changes) {
    out.busy += running > 0 && open > 0 ? at - last : 0;
    running += change.first;
    open += change.second;
    out.serial = out.serial && running <= 1;
    last = at;
  }
  return out;
}

class CommunicationSumsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    analysis_ = recorded(fs::path(SHARDLENS_TEST_DATA) / "../.." / GetParam(), true);
  }
  [[nodiscard]] const RankAnalysis& rank() const { return analysis_.ranks.front(); }

  Analysis analysis_;
};

TEST_P(CommunicationSumsTest, ExposedTimesSumToThoseOfTheWindow) {
  ASSERT_FALSE(rank().communication.empty());
  Nanoseconds exposed = 0;
  for (const CommunicationFigures& each : rank().communication) {
    exposed += each.exposed;
  }
  EXPECT_EQ(exposed, rank().figures.exposed_comm);
}

TEST_P(CommunicationSumsTest, KindsAndGroupsHaveTheSameSums) {
  std::map<std::string, Sum> kinds, groups, expected_kinds, expected_groups;
  for (const CommunicationFigures& each : rank().communication) {
    add(kinds[each.kind ? std::string(name_of(*each.kind)) : "unknown"], each);
    add(groups[each.group], each);
  }
  for (const auto& [kind, figures] : rank().figures.collectives) {
    add(expected_kinds[std::string(name_of(kind))], figures);
  }
  if (rank().figures.unknown.count > 0) {
    add(expected_kinds["unknown"], rank().figures.unknown);
  }
  for (const GroupFigures& group : rank().groups) {
    add(expected_groups[group.name], group);
  }
  EXPECT_EQ(kinds, expected_kinds);
  EXPECT_EQ(groups, expected_groups);
}

// The parts of units are the purposes for which FSDP and DDP communicate themselves, and the rest.
TEST_P(CommunicationSumsTest, UnitsHaveTheSameSums) {
  std::map<std::string, Sum> purposes, parts;
  for (const CommunicationFigures& each : rank().communication) {
    const bool sharding = each.purpose == Purpose::kGatherParameters ||
                          each.purpose == Purpose::kReduceGradients ||
                          each.purpose == Purpose::kReduceReplicas;
    add(purposes[sharding ? std::string(name_of(each.purpose)) : "other"], each);
  }
  const std::map<UnitPart, std::string> purpose_of{
      {UnitPart::kAllGatherForward, "gather_parameters"},
      {UnitPart::kAllGatherBackward, "gather_parameters"},
      {UnitPart::kReduceScatter, "reduce_gradients"},
      {UnitPart::kAllReduce, "reduce_replicas"},
      {UnitPart::kOther, "other"}};
  for (const UnitFigures& unit : rank().units) {
    for (const auto& [part, purpose] : purpose_of) {
      if (const auto& figures = unit.parts[static_cast<size_t>(part)]) {
        add(parts[purpose], *figures);
      }
    }
  }
  EXPECT_EQ(purposes, parts);
}

// Busy time is a union, so it can be added up where collectives do not overlap.
TEST_P(CommunicationSumsTest, BusyTimeIsTheUnionOfTheCollectives) {
  std::map<std::tuple<Purpose, std::optional<CollectiveKind>>, std::vector<Interval>> times;
  std::map<std::optional<CollectiveKind>, std::vector<Interval>> of_kind;
  for (const Collective& c : analysis_.timelines.front().collectives) {
    times[{c.purpose, c.kind}].push_back(c.when);
    of_kind[c.kind].push_back(c.when);
  }
  std::map<std::tuple<Purpose, std::optional<CollectiveKind>>, Nanoseconds> busy;
  std::map<std::optional<CollectiveKind>, Nanoseconds> busy_of_kind;
  for (const CommunicationFigures& each : rank().communication) {
    busy[{each.purpose, each.kind}] += each.busy;
    busy_of_kind[each.kind] += each.busy;
  }
  int added_up = 0;
  for (const auto& [key, list] : times) {
    const Swept all = swept(list, rank().window);
    EXPECT_GE(busy[key], all.busy);
    if (all.serial) {
      EXPECT_EQ(busy[key], all.busy);
      ++added_up;
    }
  }
  EXPECT_GT(added_up, 0);
  for (const auto& [kind, figures] : rank().figures.collectives) {
    EXPECT_GE(busy_of_kind[kind], figures.busy);
    if (swept(of_kind[kind], rank().window).serial) {
      EXPECT_EQ(busy_of_kind[kind], figures.busy);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runs,
                         CommunicationSumsTest,
                         testing::Values("tests/data/pytorch_traces/fsdp2-tensor",
                                         "tests/data/pytorch_traces/fsdp2-experts",
                                         "tests/data/pytorch_traces/fsdp2-hybrid",
                                         "tests/data/pytorch_traces/fsdp2-accumulate",
                                         "tests/data/pytorch_traces/fsdp1-full",
                                         "tests/data/pytorch_traces/ddp-buckets",
                                         "tests/data/recorded_run",
                                         "traces/llama-emulated8",
                                         "traces/llama-h200"),
                         [](const testing::TestParamInfo<std::string>& run) {
                           std::string name = run.param.substr(run.param.rfind('/') + 1);
                           std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
                           return name;
                         });

}  // namespace
}  // namespace shardlens::analysis
