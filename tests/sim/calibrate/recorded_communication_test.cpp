// Communication of recorded runs. tests/data/pytorch_traces/fsdp2-tensor is a step of two layers
// under FSDP2 over 2 ranks and tensor parallelism over 2: an all-reduce at the end of each layer's
// forward, and two in its backward, of 16 KiB each. Its times are those of the trace's events.
#include "sim/calibrate/recorded_communication.h"

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/model_config.h"
#include "core/plan/resolve.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "sim/calibrate/calibration.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

using plan::Phase;
using plan::WorkloadItem;
using schedule::PlannedItem;

std::filesystem::path trace_of(const std::string& name) {
  return std::filesystem::path(SHARDLENS_TEST_DATA) / "pytorch_traces" / name;
}

const Observation& tensor() {
  static const Observation out = open_observation(trace_of("fsdp2-tensor"));
  return out;
}

TEST(RecordedCommunicationTest, IsInTheWorkload) {
  const plan::Workload& workload = tensor().workload;
  ASSERT_EQ(workload.communications.size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    const plan::Communication& each = workload.communications[i];
    EXPECT_EQ(each.kind, CollectiveKind::kAllReduce);
    EXPECT_EQ(each.purpose, Purpose::kActivations);
    EXPECT_EQ(each.phase, i < 2 ? Phase::kForward : Phase::kBackward);
    EXPECT_EQ(each.module, i == 0 || i > 3 ? "model.layers.0" : "model.layers.1");
    EXPECT_EQ(tensor().plan.units.at(each.unit).fqn, each.module);
    EXPECT_EQ(each.bytes, 16 * 1024);
    EXPECT_EQ(tensor().plan.groups.at(each.group).name, "tensor");
    EXPECT_EQ(tensor().plan.groups.at(each.group).size, 2);
    EXPECT_EQ(each.written, 0);
  }
}

// The copy of its input comes before it, and the layer's post-forward after it.
TEST(RecordedCommunicationTest, HasItsPlace) {
  const plan::Workload& workload = tensor().workload;
  const auto at =
      std::ranges::find(workload.order, WorkloadItem{WorkloadItem::Kind::kCommunication, 0});
  ASSERT_NE(at, workload.order.end());
  const WorkloadItem before = *std::prev(at);
  ASSERT_EQ(before.kind, WorkloadItem::Kind::kOperator);
  EXPECT_EQ(workload.operators[before.index].unit, workload.communications[0].unit);
  EXPECT_EQ(workload.operators[before.index].name, "aten::clone");
  const auto hook = std::find_if(at, workload.order.end(), [](const WorkloadItem& item) {
    return item.kind == WorkloadItem::Kind::kHook;
  });
  EXPECT_EQ(workload.hooks[hook->index].hook, Hook::kPostForward);
  EXPECT_EQ(workload.hooks[hook->index].unit, workload.communications[0].unit);
}

// Of the first: the call takes from 70494.0 to 76442.8 µs, of which a copy takes 18.5; the
// collective runs from 76273.4 to 89385.0; wait_tensor, from 76825.7 to 89426.8, is in the sum that
// takes the result. While the collective runs, the host waits in both calls; the rest is its own
// time.
TEST(RecordedCommunicationTest, ItsTimeIsItsOwn) {
  ASSERT_EQ(tensor().steps.size(), 1U);
  const ObservedStep& step = tensor().steps.front();
  Nanoseconds waited = 0, all = 0;
  for (size_t i = 0; i < tensor().planned.order.size(); ++i) {
    const PlannedItem& item = tensor().planned.order[i];
    if (item == PlannedItem{PlannedItem::Kind::kCommunication, 0}) {
      EXPECT_NEAR(static_cast<double>(step.items[i].host), 5'802'700, 1'000);
    }
    if (item == PlannedItem{PlannedItem::Kind::kWait, 0}) {
      EXPECT_NEAR(static_cast<double>(step.items[i].waited), 12'728'700, 1'000);
      EXPECT_NEAR(static_cast<double>(step.items[i].host), 382'900, 1'000);  // between both calls
      const PlannedItem& next = tensor().planned.order.at(i + 1);
      ASSERT_EQ(next.kind, PlannedItem::Kind::kOperator);
      EXPECT_EQ(tensor().workload.operators[next.index].name, "aten::add");
    }
    waited += item.kind == PlannedItem::Kind::kWait ? step.items[i].waited : 0;
    all += step.items[i].host + step.items[i].waited + std::max<Nanoseconds>(0, step.items[i].run);
  }
  EXPECT_GT(waited, 0);
  // Every piece of the step's time is of one item, or of the training loop.
  EXPECT_NEAR(static_cast<double>(all + step.outside), static_cast<double>(step.duration), 1000);
}

TEST(RecordedCommunicationTest, TheHostsTimeIsCalibrated) {
  const Calibration calibration = calibrate(std::span(&tensor(), 1));
  double sum = 0;
  for (size_t i = 0; i < tensor().planned.order.size(); ++i) {
    if (tensor().planned.order[i].kind == PlannedItem::Kind::kCommunication) {
      sum += static_cast<double>(tensor().steps.front().items[i].host) * 1e-3;
    }
  }
  const auto kind = static_cast<size_t>(CollectiveKind::kAllReduce);
  ASSERT_TRUE(calibration.communication[kind]);
  EXPECT_NEAR(calibration.communication[kind]->us, sum / 6, 0.02 * sum / 6);
  EXPECT_FALSE(calibration.communication[static_cast<size_t>(CollectiveKind::kAllToAll)]);
  const Calibration read = parse_calibration(to_json(calibration), "c");
  EXPECT_EQ(to_json(read), to_json(calibration));
  EXPECT_TRUE(read.communication[kind]);
}

// PyTorch gives an axis of all ranks the default group, whose ranks a trace has or has not.
TEST(RecordedCommunicationTest, TheDefaultGroupIsThatOfTheAxisOfAllRanks) {
  const plan::ModelConfig model = plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
      "num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 16})",
      "test");
  const auto found = [&](const plan::MeshSizes& mesh, std::vector<int64_t> ranks) {
    plan::Plan plan;
    plan.mesh = mesh;
    Observation out;
    out.plan = plan::resolve(plan, plan::module_tree(model), 2);
    RecordedCommunication each;
    each.group = {.name = "2 ranks", .size = 2};
    each.ranks = std::move(ranks);
    each.of_data = true;
    each.call = each.when = {1, 2};
    analysis::RecoveredWorkload pass;
    pass.window = {0, 10};
    (void)add_communications({each}, pass, out);
    const plan::Communication& made = out.workload.communications.at(0);
    return std::pair(out.plan.groups[made.group].name, made.purpose);
  };
  using Found = std::pair<std::string, Purpose>;
  for (const std::vector<int64_t>& ranks : {std::vector<int64_t>{0, 1}, std::vector<int64_t>{}}) {
    EXPECT_EQ(found({.shard = 1, .context = 2}, ranks), Found("context", Purpose::kContext));
    EXPECT_EQ(found({.shard = 1, .tensor = 2}, ranks), Found("tensor", Purpose::kActivations));
  }
  EXPECT_EQ(found({.shard = 2}, {0, 1}), Found("shard", Purpose::kOther));
  EXPECT_EQ(found({.shard = 2}, {}), Found("2 ranks", Purpose::kOther));
}

// A GPU's host calls a functional all-reduce at 100, goes on with another operator at 150, and
// makes the stream wait at 170, before the operator that takes the result.
class DeviceCommunicationTest : public ::testing::Test {
 protected:
  DeviceCommunicationTest() {
    trace_.metadata.rank = 0;
    trace_.metadata.world_size = 2;
    trace_.metadata.groups.push_back({"1", "mesh_tp", "", {0, 1}, 2});
    main_ = trace_.track(1, 1);
    range("FSDP::root_pre_forward", 0, 1);
    range("FSDP::pre_forward", 1, 2);
    range("FSDP::pre_forward (layers.0)", 10, 20);
    op("aten::mm", 30, 35);
    kernel("gemm", 31, 40, 60, 7);
    op("_c10d_functional::all_reduce", 100, 140);
    op("c10d::allreduce_", 110, 135);
    trace::CollectiveArgs args;
    args.collective = trace_.strings.intern("allreduce");
    args.dtype = trace_.strings.intern("Float");
    args.group = trace_.strings.intern("1");
    args.group_description = trace_.strings.intern("mesh_tp");
    args.group_ranks = trace_.strings.intern("[0, 1]");
    args.group_size = 2;
    args.in_nelems = args.out_nelems = 256;
    const uint32_t launch =
        trace_.add_complete(trace::Category::kCudaRuntime, "cudaLaunchKernel", main_, 120, 125);
    const uint32_t event =
        trace_.add_collective("ncclDevKernel_AllReduce", trace_.track(0, 20), 200, 300, args);
    trace_.events[event].category = trace::Category::kKernel;
    trace_.events[event].correlation = trace_.events[launch].correlation = 99;
    op("aten::mul", 150, 160);
    kernel("mul", 151, 210, 220, 7);
    op("_c10d_functional::wait_tensor", 170, 180);
    op("aten::add", 190, 195);
    kernel("add", 191, 310, 320, 7);
    range("FSDP::post_forward (layers.0)", 210, 220);
    range("FSDP::post_forward", 230, 235);
    trace_.metadata.source = "made";
  }

  void range(const char* name, Nanoseconds start, Nanoseconds end) {
    trace_.add_complete(trace::Category::kUserAnnotation, name, main_, start, end);
  }
  void op(const char* name, Nanoseconds start, Nanoseconds end) {
    trace_.add_complete(trace::Category::kCpuOp, name, main_, start, end);
  }
  void kernel(
      const char* name, Nanoseconds launch, Nanoseconds start, Nanoseconds end, int stream) {
    const uint32_t call = trace_.add_complete(trace::Category::kCudaRuntime, "cudaLaunchKernel",
                                              main_, launch, launch + 1);
    const uint32_t event =
        trace_.add_complete(trace::Category::kKernel, name, trace_.track(0, stream), start, end);
    trace_.events[event].correlation = trace_.events[call].correlation = ++correlation_;
  }

  [[nodiscard]] std::vector<RecordedCommunication> recorded() const {
    return recorded_communications(trace_, analysis::make_timeline(trace_), {{"layers.0", 1}});
  }

  trace::Trace trace_;
  uint32_t main_ = 0, correlation_ = 0;
};

TEST_F(DeviceCommunicationTest, IsReadFromCallsAndKernels) {
  const std::vector<RecordedCommunication> found = recorded();
  ASSERT_EQ(found.size(), 1U);
  const RecordedCommunication& one = found.front();
  EXPECT_EQ(one.call, (analysis::Interval{100, 140}));
  EXPECT_EQ(one.issued, 120);
  EXPECT_TRUE(one.waits);
  EXPECT_EQ(one.waited, (analysis::Interval{170, 180}));
  EXPECT_EQ(one.when, (analysis::Interval{200, 300}));
  EXPECT_EQ(one.what.kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(one.what.purpose, Purpose::kActivations);
  EXPECT_EQ(one.what.phase, Phase::kForward);
  EXPECT_EQ(one.what.unit, 1U);
  EXPECT_EQ(one.what.module, "layers.0");
  EXPECT_EQ(one.what.bytes, 1024);
  EXPECT_EQ(one.group, (mesh::Group{.name = "tensor", .size = 2, .stride = 1}));
}

TEST_F(DeviceCommunicationTest, ComputeWaitsWhereTheStreamDid) {
  analysis::RecoveredWorkload pass;
  plan::Workload& workload = pass.workload;
  const auto add = [&](WorkloadItem item, Nanoseconds start, Nanoseconds end) {
    workload.order.push_back(item);
    pass.times.push_back({start, end});
  };
  workload.hooks = {{.hook = Hook::kPreForward, .unit = 1},
                    {.hook = Hook::kPostForward, .unit = 1}};
  workload.operators.resize(3);
  add({WorkloadItem::Kind::kHook, 0}, 10, 20);
  add({WorkloadItem::Kind::kOperator, 0}, 30, 35);
  add({WorkloadItem::Kind::kOperator, 1}, 150, 160);
  add({WorkloadItem::Kind::kOperator, 2}, 190, 195);
  add({WorkloadItem::Kind::kHook, 1}, 210, 220);
  pass.window = {0, 400};
  Observation out;
  out.workload = workload;
  const auto added = add_communications(recorded(), pass, out);
  ASSERT_EQ(added.size(), 1U);
  const WorkloadItem communication{WorkloadItem::Kind::kCommunication, 0};
  ASSERT_EQ(out.workload.order.size(), 6U);
  EXPECT_EQ(out.workload.order[2], communication);
  EXPECT_EQ(pass.workload.order, out.workload.order);
  EXPECT_EQ(pass.times[2], (analysis::Interval{100, 140}));
  EXPECT_EQ(out.workload.communications[0].waited_by,
            (WorkloadItem{WorkloadItem::Kind::kOperator, 2}));
  EXPECT_EQ(out.plan.groups.at(out.workload.communications[0].group).name, "tensor");
}

TEST(RecordedCommunicationTest, TheRunsOwnPlanIsPredicted) {
  const std::filesystem::path path = trace_of("fsdp2-tensor");
  const auto run = RecordedRun::open(std::span(&path, 1));
  EXPECT_LT(std::abs(run->baseline().error()), 0.03);
  const Prediction own = evaluate(own_scenario(run), {.timeline = true});
  const trace::Run traces = predicted_run(own);
  const analysis::Timeline timeline = analysis::make_timeline(traces.traces.front());
  Bytes bytes = 0;
  for (const analysis::Collective& each : timeline.collectives) {
    if (each.args != trace::kNoIndex &&
        traces.traces.front().strings.view(
            traces.traces.front().collectives[each.args].group_description) == "tensor") {
      EXPECT_EQ(each.part, analysis::UnitPart::kOther);
      bytes += each.bytes;
    }
  }
  EXPECT_EQ(bytes, 6 * 16 * 1024);
}

// Without steps the pass is taken as it ran. All of its time is of one item or of the training
// loop.
TEST(RecordedCommunicationTest, OnePassAsItRan) {
  const std::filesystem::path path = trace_of("fsdp2-tensor");
  trace::Run run = RecordedRun::read(std::span(&path, 1)).run();
  trace::Trace& trace = run.traces.front();
  for (trace::Event& event : trace.events) {
    if (trace.name(event).starts_with("ProfilerStep")) {
      event.name = trace.strings.intern("train");
    }
  }
  const auto recorded = RecordedRun::of(run);
  EXPECT_TRUE(recorded->baseline().one_pass);
  EXPECT_LT(std::abs(recorded->baseline().error()), 0.03);
  const Observation& seen = recorded->observation();
  EXPECT_EQ(seen.workload.communications.size(), 6U);
  ASSERT_EQ(seen.steps.size(), 1U);
  const ObservedStep& step = seen.steps.front();
  Nanoseconds all = 0;
  for (size_t i = 0; i < seen.planned.order.size(); ++i) {
    const PlannedItem& item = seen.planned.order[i];
    if (item == PlannedItem{PlannedItem::Kind::kWait, 0}) {
      // wait_tensor until the collective has ended, and the time since the call
      EXPECT_NEAR(static_cast<double>(step.items[i].waited), 12'559'300, 1'000);
      EXPECT_NEAR(static_cast<double>(step.items[i].host), 382'900, 1'000);
    }
    all += step.items[i].host + step.items[i].waited + std::max<Nanoseconds>(0, step.items[i].run);
  }
  EXPECT_NEAR(static_cast<double>(all + step.outside), static_cast<double>(step.duration), 1'000);
}

// Each of the run's other plans has them too, over the same group.
TEST(RecordedCommunicationTest, OtherPlansHaveThem) {
  const std::filesystem::path path = trace_of("fsdp2-tensor");
  const auto run = RecordedRun::open(std::span(&path, 1));
  Scenario other = own_scenario(run);
  other.plan.mesh.shard = 1;
  other.plan.mesh.replicate = 2;
  const Prediction predicted = evaluate(other);
  const plan::Workload& workload = *predicted.priced.workload;
  ASSERT_EQ(workload.communications.size(), 6U);
  for (const plan::Communication& each : workload.communications) {
    EXPECT_EQ(predicted.priced.plan->groups.at(each.group).name, "tensor");
  }
}

// Experts send tokens with all-to-alls: two in a layer's forward and two in its backward. The
// trace does not describe the group, which has all ranks.
TEST(RecordedCommunicationTest, AllToAllsOfExperts) {
  const Observation seen = open_observation(trace_of("fsdp2-experts"));
  ASSERT_EQ(seen.workload.communications.size(), 12U);
  for (const plan::Communication& each : seen.workload.communications) {
    EXPECT_EQ(each.kind, CollectiveKind::kAllToAll);
    EXPECT_EQ(each.bytes, 16 * 1024);
  }
  EXPECT_EQ(std::ranges::count(seen.workload.communications, Phase::kBackward,
                               &plan::Communication::phase),
            6);
}

// Each of three layers gathers what both ranks computed, and computes more before it waits. FSDP
// waits for its own gathers at once, so a prefetch of them hides nothing.
TEST(RecordedCommunicationTest, GathersOfTheProgramSayNothingOfFsdps) {
  const std::filesystem::path path = trace_of("fsdp2-gathers");
  const auto run = RecordedRun::open(std::span(&path, 1));
  const Calibration& machine = *run->machine()->calibration();
  EXPECT_TRUE(machine.blocking[static_cast<size_t>(CollectiveKind::kAllGather)]);
  EXPECT_TRUE(machine.blocking[static_cast<size_t>(CollectiveKind::kReduceScatter)]);
  const Scenario own = own_scenario(run);
  const Prediction predicted = evaluate(own);
  const auto& all = predicted.priced.workload->communications;
  ASSERT_EQ(std::ranges::count(all, CollectiveKind::kAllGather, &plan::Communication::kind), 3);
  for (const plan::Communication& each : all) {
    EXPECT_TRUE(each.waited_by || each.kind != CollectiveKind::kAllGather);
  }
  EXPECT_GT(predicted.figures.overlap, 0);
  EXPECT_LT(predicted.figures.overlap, predicted.figures.compute);
  Scenario ahead = own;
  ahead.plan.forward_prefetch_lists = {{"layers.0", {"layers.1"}}, {"layers.1", {"layers.2"}}};
  EXPECT_EQ(evaluate(ahead).figures.overlap, predicted.figures.overlap);
}

// A block's experts are a second group of its parameters. All recorded steps are as planned; blocks
// that are merged into one unit are gathered group by group.
TEST(RecordedCommunicationTest, ExpertsInTheirBlocksUnit) {
  const std::filesystem::path path =
      std::filesystem::path(SHARDLENS_TEST_DATA) / "recorded_meshes" / "experts-in-block";
  const auto run = RecordedRun::open(std::span(&path, 1));
  EXPECT_FALSE(run->baseline().one_pass);
  EXPECT_TRUE(run->baseline().left_out.empty());
  EXPECT_EQ(run->baseline().steps, 3);
  using Totals = std::map<std::pair<std::string, CollectiveKind>, int>;
  const auto totals = [](const Scenario& scenario) {
    const Prediction predicted = evaluate(scenario);
    Totals out;
    for (const schedule::PlannedAction& each : predicted.priced.planned->actions) {
      const bool gathers = each.action.op == schedule::Op::kAllGather;
      if (gathers || each.action.op == schedule::Op::kReduceScatter) {
        ++out[{predicted.priced.plan->groups.at(each.action.group).name,
               gathers ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter}];
      }
    }
    return out;
  };
  EXPECT_EQ(totals(own_scenario(run)),
            (Totals{{{"shard", CollectiveKind::kAllGather}, 7},
                    {{"shard", CollectiveKind::kReduceScatter}, 4},
                    {{"expert_shard", CollectiveKind::kAllGather}, 6},
                    {{"expert_shard", CollectiveKind::kReduceScatter}, 3}}));
  Scenario merged = own_scenario(run);
  plan::UnitEntry blocks;
  blocks.globs = {"layers.0", "layers.1", "layers.2"};
  blocks.grouped = true;
  blocks.groups = {{.parameters = {"layers.*.mlp.**"}, .expert = true}, {}};
  plan::UnitEntry root;
  root.globs = {""};
  merged.plan.units = {blocks, root};
  EXPECT_EQ(totals(merged), (Totals{{{"shard", CollectiveKind::kAllGather}, 3},
                                    {{"shard", CollectiveKind::kReduceScatter}, 2},
                                    {{"expert_shard", CollectiveKind::kAllGather}, 2},
                                    {{"expert_shard", CollectiveKind::kReduceScatter}, 1}}));
}

TEST(RecordedCommunicationTest, RunsWithoutItHaveNone) {
  for (const char* name : {"fsdp2-default", "fsdp2-hybrid", "fsdp1-full", "fsdp1-post"}) {
    EXPECT_TRUE(open_observation(trace_of(name)).workload.communications.empty()) << name;
  }
}

}  // namespace
}  // namespace shardlens::sim
