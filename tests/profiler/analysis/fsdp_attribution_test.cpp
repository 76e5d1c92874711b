// Which unit work belongs to, in traces that PyTorch recorded (tests/data/RECORDED.md) and in built
// ones.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/analysis/timeline/timeline.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using testing::ElementsAre;
using trace::Category;

const std::filesystem::path kRecorded = SHARDLENS_TEST_DATA "/pytorch_traces";

Analysis recorded(const std::string& name, DetailLevel detail = DetailLevel::kNone) {
  AnalysisOptions options;
  options.detail = detail;
  return analyze(trace::Run::open(kRecorded / name / "rank0.pt.trace.json.gz"), options);
}

const UnitFigures& unit(const Analysis& result, std::string_view fqn) {
  for (const UnitFigures& u : result.ranks.at(0).units) {
    if (u.fqn == fqn) {
      return u;
    }
  }
  throw std::runtime_error("no such unit");
}

bool has_diagnostic(const RecoveredPlan& plan, const std::string& part) {
  return std::ranges::any_of(plan.diagnostics, [&part](const trace::Diagnostic& each) {
    return each.message.find(part) != std::string::npos;
  });
}

void expect_sums(const RankAnalysis& rank) {
  Nanoseconds compute = 0, copy = 0, exposed = 0;
  for (const UnitFigures& u : rank.units) {
    compute += u.compute;
    copy += u.exposed_copy;
    exposed += u.exposed();
  }
  EXPECT_EQ(compute, rank.figures.compute);
  EXPECT_EQ(copy, rank.figures.exposed_copy);
  EXPECT_EQ(exposed, rank.figures.exposed_comm);
}

// Expected values are from tests/tools/unit_oracle.py, which shares no code with the program.
// Bytes by hand: a layer has 45 440 parameters, embedding, last norm and head 32 832; 4 bytes each,
// two steps.
TEST(FsdpAttributionTest, Fsdp2UnitsAreThoseOfAnIndependentCount) {
  const Analysis result = recorded("fsdp2-default");
  expect_sums(result.ranks.at(0));
  struct Row {
    const char* fqn;
    Nanoseconds forward, backward;
    int64_t bytes;
    int backward_gathers;
  };
  for (const Row& row : {Row{"", 626167, 394310, 2 * 32832 * 4, 0},
                         Row{"model.layers.0", 1104737, 1122498, 2 * 45440 * 4, 2},
                         Row{"model.layers.1", 1112801, 1206480, 2 * 45440 * 4, 2}}) {
    const UnitFigures& u = unit(result, row.fqn);
    EXPECT_EQ(u.compute_forward, row.forward) << row.fqn;
    EXPECT_EQ(u.compute_backward, row.backward) << row.fqn;
    ASSERT_TRUE(u.parts[0] && u.parts[2]) << row.fqn;
    EXPECT_EQ(u.parts[0]->count, 2);
    EXPECT_EQ(u.parts[0]->bytes, row.bytes);
    EXPECT_EQ(u.parts[0]->issued_by, schedule::Cause::kOwn);
    EXPECT_EQ(u.parts[2]->count, 2);
    EXPECT_EQ(u.parts[2]->bytes, row.bytes);
    EXPECT_EQ(u.parts[1] ? u.parts[1]->count : 0, row.backward_gathers);
    if (u.parts[1]) {
      EXPECT_EQ(u.parts[1]->issued_by, schedule::Cause::kBackwardPrefetch);
      // Gloo: the call that prefetches also waits, so nothing can overlap it.
      EXPECT_EQ(u.parts[1]->cause, ExposedCause::kHostIsCompute);
    }
  }
  EXPECT_GT(unit(result, "<optimizer>").compute, 0);
  EXPECT_GT(unit(result, "<loss>").compute, 0);
}

// The same for FSDP1, whose list form of all-gather records only the number of its inputs; Gloo's
// range has their type.
TEST(FsdpAttributionTest, Fsdp1UnitsAreThoseOfAnIndependentCount) {
  const Analysis result = recorded("fsdp1-full");
  expect_sums(result.ranks.at(0));
  struct Row {
    const char* fqn;
    Nanoseconds forward, backward;
    int64_t bytes;
  };
  for (const Row& row :
       {Row{"", 614829, 447336, 2 * 32832 * 4}, Row{"unit 1", 1236582, 1355349, 2 * 45440 * 4},
        Row{"unit 2", 1111442, 1325563, 2 * 45440 * 4}}) {
    const UnitFigures& u = unit(result, row.fqn);
    EXPECT_EQ(u.compute_forward, row.forward) << row.fqn;
    EXPECT_EQ(u.compute_backward, row.backward) << row.fqn;
    ASSERT_TRUE(u.parts[0] && u.parts[2]) << row.fqn;
    EXPECT_EQ(u.parts[0]->bytes, row.bytes) << row.fqn;
    EXPECT_EQ(u.parts[2]->bytes, row.bytes) << row.fqn;
    EXPECT_EQ(u.parts[1] ? u.parts[1]->bytes : row.bytes, row.bytes) << row.fqn;
  }
}

// Parameters are gathered as bf16 and gradients reduced as fp32: at least 32 832 elements per unit,
// twice.
TEST(FsdpAttributionTest, Fsdp1GathersInTheTypeOfItsParameters) {
  const Analysis result = recorded("fsdp1-bf16");
  for (const char* fqn : {"", "unit 1", "unit 2"}) {
    const UnitFigures& u = unit(result, fqn);
    ASSERT_TRUE(u.parts[0] && u.parts[2]) << fqn;
    EXPECT_GE(u.parts[0]->bytes, 2 * 32832 * 2) << fqn;
    EXPECT_EQ(u.parts[0]->bytes * 2, u.parts[2]->bytes) << fqn;
  }
}

// The first step's observed events as text. FSDP's default, by its code: the last unit's backward
// prefetches the unit before it, and the root is kept after forward.
std::string in_words(const RankAnalysis& rank) {
  std::string out;
  for (const ObservedEvent& e : rank.observed.at(0).events) {
    out += std::string(name_of(e.what).substr(0, 3)) + (e.backward ? "-b " : "-f ") +
           rank.unit_names[e.unit];
    out += e.unit == e.hook_unit ? "; " : " from " + rank.unit_names[e.hook_unit] + "; ";
  }
  return out;
}

TEST(FsdpAttributionTest, ObservedOrderOfADefaultStep) {
  const char* expected =
      "uns-f ; uns-f A; res-f A; uns-f B; res-f B; uns-b B from ; uns-b A from B; res-b B; red-b "
      "B; res-b A; "
      "red-b A; res-b ; red-b ; ";
  const auto with_names = [&](std::string a, std::string b) {
    std::string out;
    for (const char* c = expected; *c != 0; ++c) {
      out += *c == 'A' ? a : *c == 'B' ? b : std::string(1, *c);
    }
    return out;
  };
  for (const auto& [name, a, b] : {std::tuple{"fsdp2-default", "model.layers.0", "model.layers.1"},
                                   std::tuple{"fsdp1-full", "unit 1", "unit 2"}}) {
    const RankAnalysis rank = recorded(name).ranks.at(0);
    ASSERT_EQ(rank.observed.size(), 1U) << name;
    EXPECT_THAT(rank.observed[0].steps, ElementsAre(2, 3)) << name;
    EXPECT_EQ(in_words(rank), with_names(a, b)) << name;
  }
}

TEST(FsdpAttributionTest, ClippingIsItsOwn) {
  for (const char* name : {"fsdp2-reshard", "fsdp1-grad-op"}) {
    const Analysis result = recorded(name);
    expect_sums(result.ranks.at(0));
    const UnitFigures& clip = unit(result, "<clip>");
    EXPECT_GT(clip.compute, 0) << name;
    ASSERT_TRUE(clip.parts[static_cast<size_t>(UnitPart::kOther)]) << name;
    EXPECT_EQ(clip.parts[static_cast<size_t>(UnitPart::kOther)]->count, 2)
        << name;  // the norm, each step
  }
}

TEST(FsdpAttributionTest, EveryRecordingSumsAndNamesEveryCollective) {
  for (const auto& entry : std::filesystem::directory_iterator(kRecorded)) {
    const std::string name = entry.path().filename().string();
    const Analysis result = recorded(name, DetailLevel::kAll);
    const RankAnalysis& rank = result.ranks.at(0);
    if (!name.starts_with("ddp-")) {  // DDP has no ranges that assign compute to units
      expect_sums(rank);
    }
    Nanoseconds exposed = 0;
    for (const UnitSpan& span : rank.detail->spans) {
      const bool collective = span.kind <= UnitSpan::Kind::kOther;
      exposed += collective ? span.exposed : 0;
      if (collective) {
        if (!name.starts_with("ddp-") || span.kind == UnitSpan::Kind::kAllReduce) {
          // DDP's broadcasts of buffers belong to no bucket.
          EXPECT_NE(span.owner, "<none>") << name;
        }
        EXPECT_EQ(span.exposed > 0, span.cause.has_value()) << name;
        ASSERT_TRUE(span.issued) << name;
        EXPECT_LE(*span.issued, span.when.start) << name;
      }
    }
    EXPECT_EQ(exposed, rank.figures.exposed_comm) << name;
  }
}

int64_t count_of(const Analysis& result, std::string_view fqn, UnitPart part) {
  const auto& figures = unit(result, fqn).parts[static_cast<size_t>(part)];
  return figures ? figures->count : 0;
}

std::string waste_of(const Analysis& result) {
  std::string out;
  for (const Waste& each : result.ranks.at(0).waste) {
    out += std::string(name_of(each.kind)) + " " + each.where + " " + std::to_string(each.count) +
           "; ";
  }
  return out;
}

// Tensor parallel MLPs in the units of FSDP2. Counted by hand in the trace: in each layer one
// all-reduce in forward, of the output of down_proj, and two in backward, of the inputs of
// gate_proj and up_proj. Each has 2 * 32 * 64 floats. They are no reductions of FSDP.
TEST(FsdpAttributionTest, TensorParallelCollectivesBelongToTheirUnits) {
  const Analysis result = recorded("fsdp2-tensor");
  expect_sums(result.ranks.at(0));
  for (const char* fqn : {"model.layers.0", "model.layers.1"}) {
    const UnitFigures& u = unit(result, fqn);
    ASSERT_EQ(u.others.size(), 1U) << fqn;
    // Gloo's traces do not name the group, but list both: one shards, the other divides the layers.
    EXPECT_EQ(u.others[0].name, "all_reduce (mesh_tp)");
    EXPECT_EQ(u.others[0].figures.count, 3) << fqn;
    EXPECT_EQ(u.others[0].figures.bytes, 3 * 2 * 32 * 64 * 4) << fqn;
    EXPECT_EQ(u.others[0].figures.cause, ExposedCause::kHostIsCompute) << fqn;
    EXPECT_EQ(count_of(result, fqn, UnitPart::kAllGatherForward), 1) << fqn;
    EXPECT_EQ(count_of(result, fqn, UnitPart::kAllGatherBackward), 1) << fqn;
    EXPECT_EQ(count_of(result, fqn, UnitPart::kReduceScatter), 1) << fqn;
    EXPECT_EQ(count_of(result, fqn, UnitPart::kAllReduce), 0) << fqn;
  }
  EXPECT_EQ(count_of(result, "", UnitPart::kOther), 0);
  EXPECT_EQ(count_of(result, "", UnitPart::kAllGatherForward), 1);
  EXPECT_EQ(count_of(result, "", UnitPart::kAllGatherBackward), 0);
  EXPECT_EQ(count_of(result, "", UnitPart::kReduceScatter), 1);
  EXPECT_EQ(waste_of(result), "");
  EXPECT_THAT(
      result.diagnostics,
      testing::Not(testing::Contains(testing::Field(
          &trace::Diagnostic::message, testing::HasSubstr("the run has several process groups")))));
}

// Each of three layers sends its tokens to the experts and back, in forward and in backward.
TEST(FsdpAttributionTest, AllToAllsOfExpertsBelongToTheirUnits) {
  const Analysis result = recorded("fsdp2-experts");
  expect_sums(result.ranks.at(0));
  for (const char* fqn : {"layers.0", "layers.1", "layers.2"}) {
    const UnitFigures& u = unit(result, fqn);
    ASSERT_EQ(u.others.size(), 1U) << fqn;
    EXPECT_EQ(u.others[0].name, "all_to_all");
    EXPECT_EQ(u.others[0].figures.count, 4) << fqn;
    EXPECT_EQ(u.others[0].figures.bytes, 4 * 2 * 32 * 64 * 4) << fqn;
    EXPECT_EQ(count_of(result, fqn, UnitPart::kReduceScatter), 1) << fqn;
  }
  ASSERT_EQ(result.ranks[0].blocks.size(), 1U);
  EXPECT_EQ(result.ranks[0].blocks[0].name, "layers.0 to 2");
  EXPECT_EQ(waste_of(result), "");
}

// The head is called for each half of the sequence: in each of two steps it is gathered twice in
// forward and twice in backward, and reduced once. Layer and root are gathered as often as needed.
TEST(FsdpAttributionTest, AHeadThatIsCalledTwiceIsGatheredTooOften) {
  const Analysis result = recorded("fsdp2-head-twice");
  EXPECT_EQ(count_of(result, "lm.lm_head", UnitPart::kAllGatherForward), 4);
  EXPECT_EQ(count_of(result, "lm.lm_head", UnitPart::kAllGatherBackward), 4);
  EXPECT_EQ(count_of(result, "lm.lm_head", UnitPart::kReduceScatter), 2);
  EXPECT_EQ(count_of(result, "lm.model.layers.0", UnitPart::kAllGatherForward), 2);
  EXPECT_EQ(count_of(result, "", UnitPart::kAllGatherForward), 2);
  EXPECT_EQ(waste_of(result), "gathered_again lm.lm_head 4; ");
}

// Two microbatches in bf16: each layer is gathered four times for one step of the optimizer, and
// cast each time; the root, which is kept after forward, twice.
TEST(FsdpAttributionTest, AccumulationCastsTheSameParametersAgain) {
  const Analysis result = recorded("fsdp2-accumulate");
  expect_sums(result.ranks.at(0));
  std::map<std::string, int64_t> casts;
  for (const Waste& each : result.ranks.at(0).waste) {
    EXPECT_EQ(each.kind, WasteKind::kCastAgain);
    casts[each.where] = each.count;
    EXPECT_GT(each.lost, 0);
  }
  const std::map<std::string, int64_t> expected{
      {"", 1}, {"model.layers.0", 3}, {"model.layers.1", 3}};
  EXPECT_EQ(casts, expected);
  for (const char* layer : {"model.layers.0", "model.layers.1"}) {
    EXPECT_EQ(count_of(result, layer, UnitPart::kAllGatherForward), 2) << layer;
    EXPECT_EQ(count_of(result, layer, UnitPart::kAllGatherBackward), 2) << layer;
    EXPECT_EQ(count_of(result, layer, UnitPart::kReduceScatter), 1) << layer;
  }
  EXPECT_EQ(count_of(result, "", UnitPart::kAllGatherForward), 2);
  EXPECT_EQ(count_of(result, "", UnitPart::kAllGatherBackward), 0);
  EXPECT_EQ(count_of(result, "", UnitPart::kReduceScatter), 1);
}

// Two nodes of two ranks: each gradient is reduce-scattered within its node (16 416 or 22 720 of
// 32 832 and 45 440 elements remain), and then all-reduced between the nodes. Times from
// tests/tools/unit_oracle.py; the host waits for each, so that all of it is exposed.
TEST(FsdpAttributionTest, HybridUnitsAreThoseOfAnIndependentCount) {
  const Analysis result = recorded("fsdp2-hybrid");
  expect_sums(result.ranks.at(0));
  struct Row {
    const char* fqn;
    int64_t elements;
    Nanoseconds forward, backward, gather_forward, gather_backward, reduce_scatter, all_reduce;
  };
  for (const Row& row :
       {Row{"", 32832, 725409, 525804, 14939239, 0, 3271815, 8351022},
        Row{"model.layers.0", 45440, 1284857, 1513791, 3911904, 1188543, 845644, 29085951},
        Row{"model.layers.1", 45440, 1374694, 8310140, 8175311, 906926, 2806585, 106751189}}) {
    const UnitFigures& u = unit(result, row.fqn);
    EXPECT_EQ(u.compute_forward, row.forward) << row.fqn;
    EXPECT_EQ(u.compute_backward, row.backward) << row.fqn;
    const auto expect_part = [&](UnitPart part, int64_t elements, Nanoseconds busy) {
      const auto& figures = u.parts[static_cast<size_t>(part)];
      ASSERT_EQ(figures.has_value(), busy > 0) << row.fqn << name_of(part);
      if (figures) {
        EXPECT_EQ(figures->count, 2) << row.fqn << name_of(part);
        EXPECT_EQ(figures->bytes, 2 * elements * 4) << row.fqn << name_of(part);
        EXPECT_EQ(figures->busy, busy) << row.fqn << name_of(part);
        EXPECT_EQ(figures->exposed, busy) << row.fqn << name_of(part);
      }
    };
    expect_part(UnitPart::kAllGatherForward, row.elements, row.gather_forward);
    expect_part(UnitPart::kAllGatherBackward, row.elements, row.gather_backward);
    expect_part(UnitPart::kReduceScatter, row.elements, row.reduce_scatter);
    expect_part(UnitPart::kAllReduce, row.elements / 2, row.all_reduce);
    EXPECT_TRUE(u.others.empty()) << row.fqn;
  }
  EXPECT_EQ(waste_of(result), "");
}

// Sizes by hand: bucket 0 is the head, 256 * 64; bucket 2 an attention's output projection, a norm
// and one projection of an MLP, 64 * 64 + 64 + 172 * 64; bucket 5 begins with the last norm before
// the embedding, 64 + 64 * 64 + 2 * 32 * 64 + 64 * 64 + 64 + 256 * 64. Times from
// tests/tools/unit_oracle.py. In the second of two steps, bucket 2 waited 309 of 390 us for its
// last gradient, but bucket 1 was being reduced during 251 of them: it is not late.
TEST(FsdpAttributionTest, BucketsOfDdpAreThoseOfAnIndependentCount) {
  const Analysis result = recorded("ddp-buckets");
  struct Row {
    const char* name;
    int64_t elements;
    Nanoseconds busy, exposed;
  };
  for (const Row& row :
       {Row{"bucket 0", 16384, 840109, 465233}, Row{"bucket 2", 15168, 665363, 402348},
        Row{"bucket 5", 28800, 14060782, 11663884}}) {
    const UnitFigures& u = unit(result, row.name);
    const auto& figures = u.parts[static_cast<size_t>(UnitPart::kAllReduce)];
    ASSERT_TRUE(figures) << row.name;
    EXPECT_EQ(figures->count, 2) << row.name;
    EXPECT_EQ(figures->bytes, 2 * row.elements * 4) << row.name;
    EXPECT_EQ(figures->busy, row.busy) << row.name;
    EXPECT_EQ(figures->exposed, row.exposed) << row.name;
  }
  EXPECT_EQ(unit(result, "bucket 5").parts[3]->cause, ExposedCause::kLast);
  EXPECT_EQ(waste_of(result), "");
}

// torch 2.15 calls the pre-forward of a unit of several modules for each of them: one forward.
TEST(FsdpAttributionTest, AUnitOfSeveralModulesHasOneForwardInAPass) {
  TraceBuilder b;
  b.step(1, 0, 400);
  for (const Nanoseconds start : {0, 200}) {
    b.fsdp2("root_pre_forward", "", start + 5, start + 8);
    b.fsdp2("pre_forward", "", start + 10, start + 20);
    b.fsdp2("pre_forward", "norm, head", start + 30, start + 40);
    b.fsdp2("all_gather", "norm, head", start + 32, start + 34);
    b.fsdp2("pre_forward", "norm, head", start + 50, start + 60);
    b.fsdp2("post_forward", "norm, head", start + 70, start + 75);
    b.fsdp2("post_forward", "", start + 80, start + 85);
  }
  const Timeline t = make_timeline(b.trace);
  std::vector<Nanoseconds> begun;
  for (const FsdpEvent& e : t.fsdp.events) {
    if (e.call == FsdpCall::kPreForward && t.fsdp.units[e.unit].fqn == "norm, head") {
      begun.push_back(e.when.start);
    }
  }
  EXPECT_THAT(begun, ElementsAre(30, 230));
}

// Two layers with an inner unit each, the layers checkpointed: backward runs their forward again,
// in which FSDP2 begins the inner unit as if it were a root of its own. `wrapper`: what the
// checkpoint adds to names.
TraceBuilder checkpointed_layers(const std::string& wrapper) {
  TraceBuilder b;
  Nanoseconds now = 0;
  const auto around = [&](const std::string& name, const auto& inside) {
    const Nanoseconds begin = now++;
    inside();
    b.range("FSDP::" + name, begin, ++now);
  };
  const auto nothing = [] {};
  const auto work = [&](Nanoseconds time) {
    b.op("aten::mm", now, now + time);
    now += time;
  };
  const auto communicate = [&](const char* call, const char* ran) {
    b.op(call, now, now + 5);
    b.gloo(ran, now + 1, now + 4);
    now += 5;
  };
  const auto gather = [&](const std::string& unit) {
    around("all_gather" + unit, [&] { communicate("c10d::_allgather_base_", "all_gather"); });
    around("all_gather_copy_out" + unit, nothing);
  };
  const auto reduce = [&](const std::string& unit) {
    around("post_backward_reduce" + unit,
           [&] { communicate("c10d::_reduce_scatter_base_", "reduce_scatter"); });
  };
  const auto layer = [](int i) { return fmt::format(" (layers.{})", i); };
  const auto inner = [&wrapper](int i) { return fmt::format(" (layers.{}{}.mlp)", i, wrapper); };
  around("root_pre_forward", nothing);
  around("pre_forward", [&] { gather(""); });
  for (const int i : {0, 1}) {
    around("pre_forward" + layer(i), [&] { gather(layer(i)); });
    work(100);
    around("pre_forward" + inner(i), [&] { gather(inner(i)); });
    work(200);
    around("post_forward" + inner(i), nothing);
    around("post_forward" + layer(i), nothing);
  }
  work(50);
  around("post_forward", nothing);
  around("pre_backward", nothing);
  work(50);
  for (const int i : {1, 0}) {
    around("pre_backward" + layer(i), [&] { gather(layer(i)); });
    work(100);
    around("root_pre_forward", nothing);
    around("pre_forward" + inner(i), [&] { gather(inner(i)); });
    work(200);
    around("post_forward" + inner(i), nothing);
    around("pre_backward" + inner(i), nothing);
    work(400);
    reduce(inner(i));
    work(200);
    reduce(layer(i));
  }
  around("root_post_backward_callback", [&] { reduce(""); });
  b.step(0, 0, ++now);
  return b;
}

TEST(FsdpAttributionTest, ARecomputedForwardIsPartOfBackward) {
  const TraceBuilder b = checkpointed_layers("._checkpoint_wrapped_module");
  std::vector<trace::Trace> traces;
  traces.push_back(b.trace);
  const Analysis result = analyze(trace::Run::of(std::move(traces)));
  struct Row {
    const char* name;
    Nanoseconds forward, backward;
    int64_t gathers_in_backward;
  };
  // The last 50 of forward are the root's own; a layer's backward has 100 that run again.
  for (const Row row :
       {Row{"", 50, 50, 0}, {"layers.0", 100, 300, 1}, {"layers.1.mlp", 200, 600, 1}}) {
    const UnitFigures& u = unit(result, row.name);
    EXPECT_EQ(u.compute_forward, row.forward) << row.name;
    EXPECT_EQ(u.compute_backward, row.backward) << row.name;
    const auto& forward = u.parts[static_cast<size_t>(UnitPart::kAllGatherForward)];
    const auto& backward = u.parts[static_cast<size_t>(UnitPart::kAllGatherBackward)];
    ASSERT_TRUE(forward) << row.name;
    EXPECT_EQ(forward->count, 1) << row.name;
    EXPECT_EQ(backward ? backward->count : 0, row.gathers_in_backward) << row.name;
  }
  const RecoveredPlan plan = recover_plan(b.trace);
  EXPECT_EQ(plan.units.size(), 5U);
  EXPECT_EQ(plan.plan.reshard_after_forward.kind, plan::Reshard::Kind::kAuto);
  EXPECT_THAT(plan.plan.activation_checkpointing, ElementsAre("layers.0", "layers.1"));
  EXPECT_FALSE(has_diagnostic(plan, "modules around them"));
}

// A call of torch.utils.checkpoint is in no name, and operators without arguments have no numbers.
TEST(FsdpAttributionTest, WithoutNamesAndNumbersTheInnerUnitsAreSaidToRunAgain) {
  const RecoveredPlan plan = recover_plan(checkpointed_layers("").trace);
  EXPECT_THAT(plan.plan.activation_checkpointing, ElementsAre("layers.0.mlp", "layers.1.mlp"));
  EXPECT_TRUE(has_diagnostic(plan, "modules around them"));
}

// One step of FSDP2 on a device, in units of the clock; layer a within the root, no prefetch.
//   stream 7 compute, 8 communication
TEST(FsdpAttributionTest, DeviceStepByHand) {
  TraceBuilder b;
  b.step(1, 0, 2000);
  b.fsdp2("root_pre_forward", "", 10, 12);
  b.fsdp2("pre_forward", "", 20, 80);
  b.fsdp2("all_gather", "", 25, 40);
  b.device(Category::kKernel, "ncclDevKernel_AllGather_RING_LL", 8, 30, 100, 200);
  b.fsdp2("all_gather_copy_out", "", 50, 70);
  b.device(Category::kKernel, "split_with_sizes_copy", 7, 60, 200, 210);
  b.device(Category::kKernel, "embedding", 7, 85, 210, 300);  // root's
  b.fsdp2("pre_forward", "a", 90, 130);
  b.fsdp2("all_gather", "a", 92, 100);
  b.device(Category::kKernel, "ncclDevKernel_AllGather_RING_LL", 8, 95, 230, 350);
  b.fsdp2("all_gather_copy_out", "a", 110, 120);
  b.device(Category::kKernel, "split_with_sizes_copy", 7, 115, 350, 360);
  b.device(Category::kKernel, "gemm", 7, 140, 360, 500);  // a's
  b.fsdp2("post_forward", "a", 150, 160);
  b.device(Category::kKernel, "head", 7, 165, 500, 520);  // root's again
  b.fsdp2("post_forward", "", 170, 175);
  b.device(Category::kKernel, "nll", 7, 180, 520, 530);  // loss
  b.fsdp2("pre_backward", "", 200, 210);
  b.device(Category::kKernel, "head_backward", 7, 215, 530, 560);
  b.fsdp2("pre_backward", "a", 220, 230);
  b.device(Category::kKernel, "gemm_backward", 7, 240, 560, 700);
  b.fsdp2("post_backward_reshard", "a", 250, 255);
  b.fsdp2("post_backward_reduce", "a", 256, 270);
  b.device(Category::kKernel, "chunk_cat", 9, 260, 700, 705);
  b.device(Category::kKernel, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 8, 265, 705, 805);
  b.device(Category::kKernel, "embedding_backward", 7, 280, 710, 750);  // root's
  b.fsdp2("post_backward_reshard", "", 290, 292);
  b.fsdp2("post_backward_reduce", "", 293, 300);
  b.range("Optimizer.step#AdamW.step", 320, 400);
  b.device(Category::kKernel, "adamw", 7, 330, 805, 900);
  AnalysisOptions options;
  options.detail = DetailLevel::kAll;
  const Analysis result = analyze(trace::Run::of({b.finish()}), options);
  const RankAnalysis& rank = result.ranks.at(0);
  expect_sums(rank);
  EXPECT_EQ(unit(result, "").compute_forward, 90 + 20);
  EXPECT_EQ(unit(result, "").compute_backward, 30 + 40);
  EXPECT_EQ(unit(result, "a").compute_forward, 140);
  EXPECT_EQ(unit(result, "a").compute_backward, 140);
  EXPECT_EQ(unit(result, "<loss>").compute, 10);
  EXPECT_EQ(unit(result, "<optimizer>").compute, 95);
  EXPECT_EQ(unit(result, "a").exposed_copy, 10 + 5);
  std::map<std::string, const UnitSpan*> spans;
  for (const UnitSpan& span : rank.detail->spans) {
    if (span.kind <= UnitSpan::Kind::kOther) {
      spans[std::string(name_of(span.kind)) + " " + span.owner] = &span;
    }
  }
  ASSERT_EQ(spans.size(), 3U);
  // The compute stream reached a's copy-out after the embedding, at 300; the parameters arrived at
  // 350.
  const UnitSpan& gather = *spans.at("all_gather a");
  EXPECT_EQ(gather.issued, 95);
  EXPECT_EQ(gather.needed_at, 300);
  EXPECT_EQ(gather.slack(), -50);
  EXPECT_EQ(gather.exposed, 50);
  EXPECT_EQ(spans.at("all_gather ")->cause, ExposedCause::kFirst);
  // 705 to 710 and 750 to 805 overlap nothing.
  EXPECT_EQ(spans.at("reduce_scatter a")->exposed, 5 + 55);
  EXPECT_EQ(spans.at("reduce_scatter a")->section, Section::kBackward);
}

// Work of threads that never run FSDP's hooks, such as a data loader's, belongs to no unit.
TEST(FsdpAttributionTest, OtherThreadsBelongToNobody) {
  TraceBuilder b;
  b.step(1, 0, 1000);
  b.fsdp2("pre_forward", "a", 10, 20);
  b.op("aten::mm", 30, 130);
  b.trace.add_complete(Category::kCpuOp, "aten::stack", b.trace.track(1, 99), 140, 150);
  b.fsdp2("post_forward", "a", 160, 170);
  b.fsdp2("pre_backward", "a", 200, 210);
  b.fsdp2("post_backward_reshard", "a", 300, 310);
  const Analysis result = analyze(trace::Run::of({b.finish()}));
  EXPECT_EQ(unit(result, "a").compute_forward, 100);
  EXPECT_EQ(unit(result, "<none>").compute, 10);
}

}  // namespace
}  // namespace shardlens::analysis
