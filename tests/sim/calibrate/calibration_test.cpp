#include "sim/calibrate/calibration.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "sim/engine/simulated_run.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 64,
  "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
  "vocab_size": 256, "max_position_embeddings": 128})";

// A machine with closed-form costs, which the calibration must recover.
class Truth final : public CostModel {
 public:
  double slowdown = 1;  // of compute during communication

  [[nodiscard]] Nanoseconds duration(CollectiveKind kind, int ranks, Bytes bytes) const override {
    const Nanoseconds latency = kind == CollectiveKind::kAllGather ? 40'000 : 60'000;
    return ranks < 2 ? 0 : latency + bytes / 4;
  }
  [[nodiscard]] WorkTime compute(const plan::Operator& op) const override {
    if (op.read + op.written + op.flops == 0) {
      return {};
    }
    const Nanoseconds alone = op.kind == plan::OperatorKind::kGemm
                                  ? 5'000 + op.flops / 20
                                  : 2'000 + (op.read + op.written) / 8;
    return {alone, std::llround(static_cast<double>(alone) * slowdown)};
  }
  [[nodiscard]] Nanoseconds copy(Bytes read, Bytes written) const override {
    return (read + written) / 10;
  }
  [[nodiscard]] Nanoseconds host_copy(Bytes bytes) const override { return bytes; }
  [[nodiscard]] Nanoseconds issue(const plan::Operator&) const override { return 3'000; }
  [[nodiscard]] Nanoseconds issue(schedule::Op op) const override {
    return 500 + 100 * static_cast<Nanoseconds>(op);
  }
  [[nodiscard]] Nanoseconds issue_hook(Hook) const override { return 700; }
};

constexpr plan::StepSettings kStep{.batch = 2, .seq = 64};

struct Machine {
  Truth truth;
  HostMode host = HostMode::kCompute;
  std::vector<double> slowdown;  // of each rank, in captures
  plan::ModelConfig config = plan::parse_model_config(kModel, "test");
  plan::ModuleTree tree = plan::module_tree(config);

  [[nodiscard]] plan::ResolvedPlan resolve(std::string_view plan_json, int64_t ranks = 2) const {
    return plan::resolve(plan::parse_plan(plan_json, "plan.json"), tree, ranks);
  }
  [[nodiscard]] plan::Workload workload(const plan::ResolvedPlan& plan) const {
    return plan::step_workload(config, plan, kStep);
  }
  [[nodiscard]] PricedStep priced(const plan::ResolvedPlan& plan, const Target& target) const {
    return priced_step(workload(plan), plan, target, kStep);
  }
  [[nodiscard]] StepPrediction run(const plan::ResolvedPlan& plan,
                                   const Target& target,
                                   std::vector<double> rank_slowdown = {}) const {
    PredictOptions options;
    options.simulation.host = host;
    options.simulation.rank_slowdown = std::move(rank_slowdown);
    return predict(priced(plan, target), target, kStep, options);
  }
  [[nodiscard]] Target target() const {
    Target out;
    out.name = "the truth";
    out.costs = &truth;
    out.ranks = 64;
    return out;
  }
  // A run as a capture would write it.
  [[nodiscard]] trace::Run capture(const plan::ResolvedPlan& plan) const {
    const StepPrediction now = run(plan, target(), slowdown);
    SimulatedRunOptions options;
    options.host = host;
    options.steps = 5;
    trace::Run out = simulated_run(priced(plan, target()), now.step, options);
    out.source = "run";
    out.planned = {plan, workload(plan), kStep, {}};
    return out;
  }
  [[nodiscard]] Calibration calibration(const plan::ResolvedPlan& plan) const {
    const std::vector<Observation> seen{observe(capture(plan))};
    return calibrate(seen);
  }
};

constexpr const char* kFullShard =
    R"({"version": 1, "units": [{"modules": "model.layers.*"}, {"modules": ""}]})";
constexpr const char* kOtherPlans[] = {
    R"({"version": 1, "units": [{"modules": "model.layers.*", "reshard_after_forward": false},
        {"modules": "", "reshard_after_forward": false}]})",
    R"({"version": 1, "backward_prefetch": "none",
        "units": [{"modules": "model.layers.*"}, {"modules": ""}]})",
    R"({"version": 1, "forward_prefetch": 1,
        "units": [{"modules": "model.layers.*"}, {"modules": ""}]})",
    R"({"version": 1, "dialect": "fsdp1",
        "units": [{"modules": "model.layers.*"}, {"modules": ""}]})",
    R"({"version": 1, "units": [{"modules": ["model.layers.0", "model.layers.1"]},
        {"modules": ["model.layers.2", "model.layers.3"]}, {"modules": ""}]})",
};

TEST(Calibration, FindsTheDurationsOfAMachineAgain) {
  for (const HostMode host : {HostMode::kCompute, HostMode::kAhead}) {
    Machine machine;
    machine.host = host;
    const plan::ResolvedPlan plan = machine.resolve(kFullShard);
    const TargetMachine found(machine.calibration(plan));
    for (const plan::Operator& op : machine.workload(plan).operators) {
      EXPECT_EQ(found.target().costs->compute(op), machine.truth.compute(op)) << op.name;
    }
    const plan::ShardLayout layout = plan.layout(1);
    EXPECT_EQ(
        found.target().costs->duration(CollectiveKind::kAllGather, 2, layout.padded_numel() * 4),
        machine.truth.duration(CollectiveKind::kAllGather, 2, layout.padded_numel() * 4));
  }
}

// Real machines must meet this within a few percent; this machine has no noise.
TEST(Calibration, OnOnePlanPredictsOthersOfTheSameMachine) {
  for (const HostMode host : {HostMode::kCompute, HostMode::kAhead}) {
    Machine machine;
    machine.host = host;
    const TargetMachine found(machine.calibration(machine.resolve(kFullShard)));
    for (const char* other : kOtherPlans) {
      const plan::ResolvedPlan plan = machine.resolve(other);
      const StepPrediction truth = machine.run(plan, machine.target());
      const StepPrediction predicted = machine.run(plan, found.target());
      EXPECT_NEAR(
          static_cast<double>(predicted.step.duration) / static_cast<double>(truth.step.duration),
          1, 0.003)
          << other;
      EXPECT_NEAR(static_cast<double>(predicted.figures.exposed_comm) /
                      static_cast<double>(truth.figures.exposed_comm),
                  1, 0.01)
          << other;
    }
  }
}

TEST(Calibration, LearnsHowMuchCommunicationSlowsCompute) {
  Machine machine;
  machine.truth.slowdown = 1.5;
  const plan::ResolvedPlan plan = machine.resolve(kFullShard);
  const Calibration found = machine.calibration(plan);
  ASSERT_TRUE(found.compute_slowdown);
  EXPECT_NEAR(*found.compute_slowdown, 1.5, 0.02);
}

TEST(Calibration, ObservedPartsSumToTheStep) {
  Machine machine;
  const Observation seen = observe(machine.capture(machine.resolve(kFullShard)));
  ASSERT_EQ(seen.steps.size(), 10U);  // five of each rank
  for (const ObservedStep& step : seen.steps) {
    Nanoseconds sum = step.outside + step.norm_communication + step.outside_communication;
    for (size_t i = 0; i < step.items.size(); ++i) {
      const ObservedItem& item = step.items[i];
      const bool runs = seen.planned.order[i].kind == schedule::PlannedItem::Kind::kOperator;
      sum += item.host + item.waited + (runs ? std::max<Nanoseconds>(0, item.run) : 0);
    }
    EXPECT_EQ(sum, step.duration);
  }
}

TEST(Calibration, SaysWhatItDidNotLearn) {
  Machine machine;
  const Calibration found = machine.calibration(machine.resolve(kFullShard));
  std::string all;
  for (const std::string& each : found.unknown) {
    all += each + "\n";
  }
  EXPECT_NE(all.find("no all_reduce in the traces: taken as a reduce-scatter and an all-gather"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("copy_in"), std::string::npos) << all;
  const TargetMachine target(found);
  // Neither four ranks nor bf16 were measured.
  EXPECT_THROW((void)target.target().costs->duration(CollectiveKind::kAllGather, 4, 1024),
               InputError);
  plan::Operator op = machine.workload(machine.resolve(kFullShard)).operators.front();
  op.dtype = DType::kBF16;
  EXPECT_THROW((void)target.target().costs->compute(op), InputError);
  const TargetMachine with_spec(found, "8xH100");
  EXPECT_GT(with_spec.target().costs->compute(op).alone, 0);
  EXPECT_GT(with_spec.target().costs->duration(CollectiveKind::kAllGather, 4, 1024), 0);
}

TEST(Calibration, ReadsWhatItWrote) {
  Machine machine;
  machine.truth.slowdown = 1.25;
  const std::string json = to_json(machine.calibration(machine.resolve(kFullShard)));
  EXPECT_EQ(to_json(parse_calibration(json, "calibration.json")), json);
}

TEST(Calibration, NamesWhereAFileIsWrong) {
  Machine machine;
  const std::string good = to_json(machine.calibration(machine.resolve(kFullShard)));
  const auto message = [&](std::string_view from, std::string_view to) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    try {
      (void)parse_calibration(bad, "c.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message("\"version\": 1", "\"version\": 2").find("c.json#/version"), std::string::npos);
  EXPECT_NE(message("\"ranks\"", "\"rank\"").find("'ranks'"), std::string::npos);
  EXPECT_NE(message("\"host\": \"compute\"", "\"host\": \"gpu\"").find("c.json#/host"),
            std::string::npos);
  EXPECT_NE(message("\"dtype\": \"fp32\"", "\"dtype\": \"fp31\"").find("/dtype"),
            std::string::npos);
}

TEST(Calibration, RefusesRunsThatDoNotGoTogether) {
  Machine machine;
  std::vector<Observation> both{observe(machine.capture(machine.resolve(kFullShard)))};
  both.push_back(both.front());
  both.back().emulated = "ab:5000:inf";
  EXPECT_THROW((void)calibrate(both), InputError);
  both.back().emulated = "";
  both.back().host = HostMode::kAhead;
  EXPECT_THROW((void)calibrate(both), InputError);
  EXPECT_THROW((void)calibrate({}), UsageError);
}

TEST(Observe, RefusesWhatIsNoCaptureOfItsPlan) {
  Machine machine;
  trace::Run run = machine.capture(machine.resolve(kFullShard));
  run.planned.reset();
  EXPECT_THROW((void)observe(run), InputError);
  // Recorded with one plan, described by another.
  run = machine.capture(machine.resolve(kFullShard));
  const plan::ResolvedPlan other = machine.resolve(kOtherPlans[0]);
  run.planned = {other, machine.workload(other), kStep, {}};
  EXPECT_THROW((void)observe(run), InputError);
}

// One rank computes longer, so the other waits for it at each collective. The step takes longer
// than the ranks compute on average; the rest is that wait.
TEST(Calibration, LearnsWhatRanksWaitForEachOther) {
  Machine machine;
  machine.slowdown = {1.0, 1.4};
  const plan::ResolvedPlan plan = machine.resolve(kFullShard);
  const std::vector<Observation> seen{observe(machine.capture(plan))};
  Calibration calibration = calibrate(seen);
  EXPECT_GT(calibration.peer_wait_us[static_cast<size_t>(CollectiveKind::kAllGather)], 1);
  EXPECT_EQ(parse_calibration(to_json(calibration), "c").peer_wait_us, calibration.peer_wait_us);
  const auto measured = static_cast<double>(seen[0].steps.front().duration);
  const auto simulated = [&](const Calibration& of) {
    const TargetMachine found(of);
    return static_cast<double>(machine.run(plan, found.target()).step.duration) / measured;
  };
  EXPECT_NEAR(simulated(calibration), 1, 0.04);
  calibration.peer_wait_us = {};
  EXPECT_LT(simulated(calibration), 0.95);
}

// Two ranks share a core for a time slice: a cost of waking after a wait, not of the operator.
TEST(Calibration, OperatorsHeldUpAreTheWaits) {
  Machine machine;
  std::vector<Observation> seen{observe(machine.capture(machine.resolve(kFullShard)))};
  const Calibration before = calibrate(seen);
  EXPECT_EQ(before.waking_us, 0);
  int64_t waits = 0;
  for (size_t step = 2; step < 8; ++step) {  // the steps between the quartiles
    for (const ObservedItem& item : seen[0].steps[step].items) {
      waits += item.waited > 0 ? 1 : 0;
    }
  }
  const auto operators = seen[0].planned.order;
  for (size_t i = 0; i < operators.size(); ++i) {
    ObservedItem& item = seen[0].steps[4].items[i];
    if (operators[i].kind == schedule::PlannedItem::Kind::kOperator && item.run > 1000 &&
        item.beside == 0) {
      item.run += 4'000'000;
      break;
    }
  }
  const Calibration after = calibrate(seen);
  EXPECT_NEAR(after.waking_us, 4000.0 / static_cast<double>(waits), 1e-6);
  ASSERT_EQ(after.operators.size(), before.operators.size());
  for (size_t i = 0; i < after.operators.size(); ++i) {
    EXPECT_NEAR(after.operators[i].us, before.operators[i].us, 1e-6);
  }
  EXPECT_EQ(parse_calibration(to_json(after), "c").waking_us, after.waking_us);
  seen[0].emulated = "ab:5000:4";
  EXPECT_EQ(calibrate(seen).waking_us, 0);
}

// Times that fall as sizes grow are noise: they are replaced by their mean, which keeps their sum.
TEST(Calibration, CurvesThatFallKeepTheirTime) {
  Machine machine;
  Observation seen = observe(machine.capture(machine.resolve(kFullShard)));
  seen.collectives.clear();
  for (const auto& [bytes, us] : {std::pair{1000, 10}, {2000, 50}, {4000, 20}, {8000, 60}}) {
    seen.collectives.push_back(
        {CollectiveKind::kAllGather, 2, bytes, us * Nanoseconds{1000}, 0, std::nullopt});
  }
  const std::vector<Observation> all{seen};
  const std::vector<CollectiveCurve> curves = calibrate(all).curves;
  ASSERT_EQ(curves.size(), 1U);
  std::vector<double> us;
  for (const auto& point : curves.front().points) {
    us.push_back(point.us);
  }
  EXPECT_EQ(us, (std::vector<double>{10, 35, 35, 60}));
}

// Simulated runs have hooks for replicated units, too. Without them, and without the Reducer's
// ranges, operators cannot be located.
TEST(Calibration, ReplicatedRunsTeachComputeAndCollectives) {
  Machine machine;
  const plan::ResolvedPlan plan = machine.resolve(
      R"({"version": 1, "units": [{"modules": "model.layers.*", "api": "replicate"},
          {"modules": "", "api": "replicate"}]})");
  trace::Run run = machine.capture(plan);
  const std::vector<Observation> seen{observe(run)};
  ASSERT_FALSE(seen[0].steps.empty());
  const TargetMachine found(calibrate(seen));
  const Bytes bytes = seen[0].planned.buckets.front().bytes;
  EXPECT_NEAR(
      static_cast<double>(found.target().costs->duration(CollectiveKind::kAllReduce, 2, bytes)),
      static_cast<double>(machine.truth.duration(CollectiveKind::kAllReduce, 2, bytes)), 1);
  for (const plan::Operator& op : machine.workload(plan).operators) {
    EXPECT_EQ(found.target().costs->compute(op), machine.truth.compute(op)) << op.name;
  }
  for (trace::Trace& trace : run.traces) {
    trace.events.resize(static_cast<size_t>(
        std::remove_if(trace.events.begin(), trace.events.end(),
                       [&](const trace::Event& event) { return trace.hook(event) != nullptr; }) -
        trace.events.begin()));
  }
  EXPECT_THROW((void)observe(run), InputError);
}

// The engine raises no hooks for the replicated units of a mixed plan.
TEST(Calibration, MixedPlansAreReadWithoutTheHooksOfReplicatedUnits) {
  Machine machine;
  const plan::ResolvedPlan plan = machine.resolve(
      R"({"version": 1, "units": [{"modules": "model.embed_tokens", "api": "replicate"},
          {"modules": "model.layers.*"}, {"modules": ""}]})");
  const auto embedding = static_cast<UnitId>(
      std::find_if(plan.units.begin(), plan.units.end(),
                   [](const plan::Unit& unit) { return unit.api == plan::Api::kReplicate; }) -
      plan.units.begin());
  trace::Run run = machine.capture(plan);
  for (trace::Trace& trace : run.traces) {
    trace.events.resize(
        static_cast<size_t>(std::remove_if(trace.events.begin(), trace.events.end(),
                                           [&](const trace::Event& event) {
                                             const trace::HookArgs* hook = trace.hook(event);
                                             return hook != nullptr && hook->hook.unit == embedding;
                                           }) -
                            trace.events.begin()));
  }
  const std::vector<Observation> seen{observe(run)};
  EXPECT_EQ(seen[0].steps.size(), 5U * run.traces.size());
  const TargetMachine found(calibrate(seen));
  for (const plan::Operator& op : machine.workload(plan).operators) {
    EXPECT_EQ(found.target().costs->compute(op), machine.truth.compute(op)) << op.name;
  }
}

// Without a measured all-reduce, it costs the reduce-scatter and the all-gather that it consists
// of; over Gloo, less the cost of the two ranks' own halves.
TEST(Calibration, AllReducesThatWereNotSeen) {
  for (const auto& [host, share] : {std::pair{HostMode::kCompute, 0.6}, {HostMode::kAhead, 1.0}}) {
    Machine machine;
    machine.host = host;
    const TargetMachine found(machine.calibration(machine.resolve(kFullShard)));
    const auto time = [&](CollectiveKind kind) {
      return static_cast<double>(found.target().costs->duration(kind, 2, 50'000));
    };
    EXPECT_NEAR(time(CollectiveKind::kAllReduce),
                share * (time(CollectiveKind::kReduceScatter) + time(CollectiveKind::kAllGather)),
                2);
  }
}

// 0.1 us per kilobyte in the all-gathers; 0.2 in the reduce-scatters, beyond the largest 0.175, in
// proportion.
TEST(Calibration, BeyondTheLargestSizeGlooHasTheBetterBandwidthOfBoth) {
  for (const auto& [host, scatter_us] :
       {std::pair{HostMode::kCompute, 700 + 400}, {HostMode::kAhead, 700 + 700}}) {
    Machine machine;
    machine.host = host;
    Observation seen = observe(machine.capture(machine.resolve(kFullShard)));
    seen.collectives.clear();
    const auto add = [&seen](CollectiveKind kind, Bytes bytes, Nanoseconds us) {
      seen.collectives.push_back({kind, 2, bytes, us * 1000, 0, std::nullopt});
    };
    add(CollectiveKind::kAllGather, 1'000'000, 100);
    add(CollectiveKind::kAllGather, 4'000'000, 400);
    add(CollectiveKind::kReduceScatter, 1'000'000, 100);
    add(CollectiveKind::kReduceScatter, 4'000'000, 700);
    const std::vector<Observation> all{seen};
    const TargetMachine found(calibrate(all));
    const auto us = [&](CollectiveKind kind, Bytes bytes) {
      return found.target().costs->duration(kind, 2, bytes) / 1000;
    };
    EXPECT_EQ(us(CollectiveKind::kReduceScatter, 2'000'000), 300);
    EXPECT_EQ(us(CollectiveKind::kReduceScatter, 8'000'000), scatter_us);
    EXPECT_EQ(us(CollectiveKind::kAllGather, 8'000'000), 800);
  }
}

// A capture of the repository, with measured times that are the same on every machine.
TEST(Calibration, OfACaptureSimulatesItsBaseline) {
  const trace::Run run =
      trace::Run::open(std::string(SHARDLENS_SOURCE_DIR) + "/traces/llama-emulated8");
  const std::shared_ptr<const RecordedRun> recorded = RecordedRun::of(run);
  const Prediction now = evaluate(own_scenario(recorded));
  ASSERT_TRUE(now.baseline);
  EXPECT_EQ(now.baseline->simulated, now.figures.duration());
  EXPECT_NEAR(now.baseline->error(), 0, 0.06);
  std::vector<Nanoseconds> measured;
  for (const ObservedStep& step : recorded->observation().steps) {
    measured.push_back(step.duration);
  }
  std::sort(measured.begin(), measured.end());
  EXPECT_EQ(now.baseline->measured, measured[measured.size() / 2]);
}

}  // namespace
}  // namespace shardlens::sim
