// Whole comparisons of generated runs, whose differences are known.
#include "profiler/check/check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "profiler/check/baseline_file.h"
#include "profiler/check/run_summary.h"
#include "profiler/trace/model/overhead_names.h"
#include "tests/support/generated_run.h"

namespace shardlens::check {
namespace {

using test::GeneratedRun;
using testing::HasSubstr;

std::vector<RunSummary> runs_of(GeneratedRun what, int runs = 3, uint64_t seed = 1) {
  std::vector<RunSummary> out;
  for (int run = 0; run < runs; ++run) {
    what.seed = seed + static_cast<uint64_t>(run);
    out.push_back(summarize(what.run()));
    out.back().source = "run " + std::to_string(what.seed);
  }
  return out;
}

double value_of(const RunSummary& run, Metric metric) {
  return run.metrics[metric].value_or(NAN);
}

const MetricResult& result_of(const CheckResult& result, Metric metric) {
  for (const MetricResult& m : result.metrics) {
    if (m.metric == metric) {
      return m;
    }
  }
  throw std::logic_error("no such metric");
}

double sum_of(const std::vector<Part>& parts) {
  double sum = 0;
  for (const Part& part : parts) {
    sum += part.ns;
  }
  return sum;
}

GeneratedRun quiet() {
  GeneratedRun what;
  what.run_noise = what.step_noise = what.operator_noise = what.collective_noise = what.hiccups = 0;
  return what;
}

TEST(RunSummaryTest, QuietStepIsWhatTheModelAddsUpTo) {
  const GeneratedRun what = quiet();
  const RunSummary run = summarize(what.run());
  // Root's all-gather, the first layer's, four forwards, four backwards (their all-gathers are
  // hidden), the first layer's reduce-scatter, the root's, the optimizer.
  const double exposed = 0.3e6 + 0.6e6 + 0.8e6 + 0.4e6;
  EXPECT_NEAR(value_of(run, Metric::kCompute), 4 * 1.0e6 + 4 * 2.0e6 + 1.0e6, 1);
  EXPECT_NEAR(value_of(run, Metric::kExposedComm), exposed, 20e3);
  EXPECT_NEAR(value_of(run, Metric::kExposedAllGatherForward), 0.9e6, 20e3);
  EXPECT_NEAR(value_of(run, Metric::kExposedReduction), 1.2e6, 20e3);
  EXPECT_NEAR(value_of(run, Metric::kExposedAllGatherBackward), 0, 1);
  EXPECT_NEAR(value_of(run, Metric::kComm), 0.3e6 + 8 * 0.6e6 + 4 * 0.8e6 + 0.4e6, 2e3);
  EXPECT_EQ(run.steps, 20);
  EXPECT_EQ(run.warmup, 0);
  EXPECT_EQ(run.used, 19);  // the last step of a device trace has no next step, and so no end
  EXPECT_TRUE(run.doubts.empty());
}

TEST(RunSummaryTest, PartsSumToTheirMetric) {
  GeneratedRun what;
  what.ranks = 3;
  const RunSummary run = summarize(what.run());
  EXPECT_NEAR(sum_of(run.step_parts), value_of(run, Metric::kStepTime), 1e-3);
  EXPECT_NEAR(sum_of(run.exposed_parts), value_of(run, Metric::kExposedComm), 1e-3);
  double parts = 0;
  for (size_t i = 2; i <= static_cast<size_t>(Metric::kIdleUnknown); ++i) {
    parts += *run.metrics[static_cast<Metric>(i)];
  }
  EXPECT_NEAR(parts, value_of(run, Metric::kStepTime), 1e-3);
}

TEST(RunSummaryTest, WarmupIsLeftOut) {
  GeneratedRun what;
  what.warmup = 3;
  const RunSummary run = summarize(what.run());
  EXPECT_EQ(run.warmup, 3);
  EXPECT_EQ(run.used, 16);
}

TEST(RunSummaryTest, TraceWithoutStepsIsRefused) {
  trace::Run run = GeneratedRun{}.run();
  for (trace::Event& event : run.traces[1].events) {
    if (run.traces[1].name(event).starts_with("ProfilerStep")) {
      event.category = trace::Category::kOther;
    }
  }
  run.source = "here";
  EXPECT_THAT([&] { (void)summarize(run); },
              testing::ThrowsMessage<InputError>(HasSubstr("rank 1: the trace has no steps")));
}

TEST(RunSummaryTest, TraceWithoutKernelsIsRefused) {
  trace::Run run = GeneratedRun{}.run();
  trace::Trace& trace = run.traces[1];
  for (trace::Event& event : trace.events) {
    const bool device = event.category == trace::Category::kKernel ||
                        event.category == trace::Category::kGpuMemcpy ||
                        event.category == trace::Category::kGpuMemset;
    event.category = device ? trace::Category::kOther : event.category;
  }
  trace.add_complete(trace::Category::kUserAnnotation, "nccl:all_reduce", trace.track(1, 1), 5, 9);
  EXPECT_THAT([&] { (void)summarize(run); },
              testing::ThrowsMessage<InputError>(HasSubstr(
                  "rank 1: the trace has no kernels, although NCCL ran (nccl:all_reduce), to")));
}

TEST(RunSummaryTest, LostRecordsAreTold) {
  trace::Run run = quiet().run();
  trace::add_diagnostic(run.traces[0].diagnostics, trace::Severity::kWarning, "events left out", 3);
  EXPECT_THAT(summarize(run).doubts, testing::ElementsAre("[rank 0] events left out (3)"));
}

// The recorder writes it to run.json, from where it is read as a note.
TEST(RunSummaryTest, BypassedHooksAreNamed) {
  GeneratedRun what;
  trace::Run run = what.run();
  EXPECT_THAT(summarize(run).notes, testing::IsEmpty());
  const std::string said = "shardlens.record: FSDP's hooks did not run in 3 of 3 units";
  run.diagnostics.push_back({trace::Severity::kNote, said});
  EXPECT_THAT(summarize(run).notes, testing::ElementsAre(said));
}

// A run in which an overhead event takes `share` of a step in the middle.
RunSummary summary_with_overhead(std::string_view name, double share) {
  trace::Run run = quiet().run();
  trace::Trace& trace = run.traces[1];
  const auto step = std::find_if(
      trace.events.begin(), trace.events.end(),
      [&](const trace::Event& event) { return trace.name(event) == "ProfilerStep#10"; });
  const Nanoseconds start = step->start + step->duration / 4;
  const auto length = static_cast<Nanoseconds>(share * static_cast<double>(step->duration));
  trace.add_complete(trace::Category::kOverhead, name, trace.track(-1, 0), start, start + length);
  return summarize(run);
}

TEST(RunSummaryTest, OnlyLongWorkOfTheProfilerCountsAgainstAStep) {
  const RunSummary brief = summary_with_overhead("Activity Buffer Request", 0.004);
  EXPECT_EQ(brief.used, 19);
  EXPECT_THAT(brief.notes, testing::IsEmpty());
  const RunSummary own = summary_with_overhead(trace::kOwnFlush, 0.1);
  EXPECT_EQ(own.used, 19);
  EXPECT_THAT(own.notes, testing::IsEmpty());
  const RunSummary lengthy = summary_with_overhead("Buffer Flush", 0.006);
  EXPECT_EQ(lengthy.used, 18);
  EXPECT_THAT(lengthy.notes, testing::ElementsAre(HasSubstr("1 steps left out: the profiler")));
}

// Three microseconds of a buffer request are no reason to leave out a step of 15 ms.
TEST(RunSummaryTest, OverheadCountsByItsDuration) {
  GeneratedRun what = quiet();
  what.overhead = 3'000;
  const RunSummary little = summarize(what.run());
  EXPECT_EQ(little.used, 19);
  EXPECT_TRUE(little.notes.empty());
  EXPECT_TRUE(little.doubts.empty());
  what.overhead = 200'000;  // 1.3 % of the step
  const RunSummary much = summarize(what.run());
  EXPECT_EQ(much.used, 0);
  EXPECT_THAT(much.doubts, testing::ElementsAre("the profiler itself took much of every step"));
}

TEST(CheckTest, SameProgramPassesAndSaysWhatIsExcluded) {
  const CheckResult result = check_runs(runs_of({}, 5, 1), runs_of({}, 5, 100));
  EXPECT_EQ(result.verdict, Verdict::kPass) << result.reason;
  EXPECT_THAT(result.reason, HasSubstr("step_time rose by no more than"));
  const MetricResult& step = result_of(result, Metric::kStepTime);
  // The bound is that of the one-sided interval of 95 %, with 8 degrees of freedom: t = 1.8595.
  ASSERT_TRUE(step.upper.has_value());
  EXPECT_NEAR(*step.upper, step.effect.change + 1.8595 * step.effect.standard_error,
              1e-3 * step.effect.standard_error);
  EXPECT_LT(*step.upper, step.limit);
  EXPECT_FALSE(step.enough.has_value());
  ASSERT_TRUE(step.detectable.has_value());
  EXPECT_GT(*step.detectable, step.limit);
  EXPECT_LT(*step.detectable, 0.05 * step.effect.baseline);
  EXPECT_TRUE(result.structural.empty());
  EXPECT_TRUE(result.attribution.empty());
}

TEST(CheckTest, SlowerComputeIsFoundAndAttributed) {
  GeneratedRun slow;
  slow.more_compute = 0.8e6;
  const CheckResult result = check_runs(runs_of({}, 3, 1), runs_of(slow, 3, 100));
  EXPECT_EQ(result.verdict, Verdict::kRegression);
  EXPECT_THAT(result.reason, HasSubstr("step_time rose by"));
  double sum = 0, forward = 0;
  for (const AttributionRow& row : result.attribution) {
    ASSERT_EQ(row.metric, Metric::kStepTime);
    sum += row.delta;
    forward += row.part == "compute_forward" ? row.delta : 0;
  }
  EXPECT_NEAR(sum, result_of(result, Metric::kStepTime).effect.change, 1e-3);
  EXPECT_NEAR(forward, 0.8e6, 0.1e6);
  EXPECT_THAT(result.causes, testing::ElementsAre(HasSubstr("the structure is the same")));
}

TEST(CheckTest, ExposedTimeGatesByItself) {
  GeneratedRun usual, slow;
  usual.run_noise = slow.run_noise = 0.001;
  slow.more_exposed = 0.21e6;  // 1.4 % of the step, below its limit
  const CheckResult result = check_runs(runs_of(usual, 5, 1), runs_of(slow, 5, 100));
  EXPECT_EQ(result.verdict, Verdict::kRegression);
  EXPECT_NE(result_of(result, Metric::kStepTime).verdict, Verdict::kRegression) << result.reason;
  EXPECT_EQ(result_of(result, Metric::kExposedComm).verdict, Verdict::kRegression);
  const AttributionRow& most = result.attribution.front();
  EXPECT_EQ(most.part, "reduce_scatter");
  EXPECT_NEAR(most.delta, 0.21e6, 0.05e6);
}

TEST(CheckTest, OneSlowStepAndLongerHiddenCommunicationChangeNothing) {
  GeneratedRun slow;
  slow.slow_step = 9;
  const CheckResult outlier = check_runs(runs_of({}, 3, 1), runs_of(slow, 3, 100));
  EXPECT_EQ(outlier.verdict, Verdict::kPass) << outlier.reason;
  GeneratedRun longer;
  longer.hidden_all_gather = 2;
  const CheckResult result = check_runs(runs_of({}, 3, 1), runs_of(longer, 3, 100));
  EXPECT_EQ(result.verdict, Verdict::kPass) << result.reason;
  EXPECT_TRUE(result_of(result, Metric::kComm).moved());
  EXPECT_FALSE(result_of(result, Metric::kExposedComm).moved());
}

TEST(CheckTest, MissingPrefetchFailsWithOneRunASide) {
  GeneratedRun late;
  late.not_prefetched = {2};
  const CheckResult result = check_runs(runs_of({}, 1), runs_of(late, 1));
  EXPECT_EQ(result.verdict, Verdict::kRegression);
  ASSERT_FALSE(result.structural.empty());
  EXPECT_EQ(result.structural[0],
            (StructuralDifference{"prefetch",
                                  "layers.2",
                                  "all_gather for backward by backward_prefetch from layers.3",
                                  "all_gather for backward not prefetched",
                                  {0, 1}}));
  EXPECT_THAT(result.causes.front(), HasSubstr("prefetch of layers.2"));
}

TEST(CheckTest, LateReductionsNameTheViewsAndTheUnits) {
  GeneratedRun frozen;
  frozen.late_reductions = true;
  const CheckResult result = check_runs(runs_of({}, 1), runs_of(frozen, 1));
  EXPECT_EQ(result.verdict, Verdict::kRegression);
  EXPECT_THAT(result.causes.front(),
              testing::AllOf(HasSubstr("frozen views"), HasSubstr("layers.3; layers.2; layers.1")));
  for (const StructuralDifference& d : result.structural) {
    EXPECT_EQ(d.kind, "order") << d.unit;
    EXPECT_THAT(d.candidate, HasSubstr("reduce after"));
  }
}

TEST(CheckTest, OneRunASideIsTooFewForTimes) {
  const CheckResult result = check_runs(runs_of(quiet(), 1), runs_of(quiet(), 1, 50));
  EXPECT_EQ(result.verdict, Verdict::kInconclusive);
  EXPECT_THAT(result.reason, HasSubstr("1 and 1 runs of 19 steps are too few"));
  CheckOptions structure;
  structure.gates.clear();
  EXPECT_EQ(check_runs(runs_of({}, 1), runs_of({}, 1, 50), structure).verdict, Verdict::kPass);
}

TEST(CheckTest, NoiseThatHidesTooMuchIsInconclusive) {
  GeneratedRun wild;
  wild.run_noise = 0.08;
  const CheckResult result = check_runs(runs_of(wild, 3, 1), runs_of(wild, 3, 100));
  EXPECT_EQ(result.verdict, Verdict::kInconclusive);
  EXPECT_THAT(result.reason,
              testing::AllOf(HasSubstr("too noisy"), HasSubstr("is not excluded"),
                             testing::AnyOf(HasSubstr("runs a side would do"),
                                            HasSubstr("no number of runs would decide"))));
}

// Messages of other sizes in each step of the same program are no structural difference, but sizes
// of another distribution are.
TEST(CheckTest, SizesThatVaryAreComparedAsDistributions) {
  GeneratedRun experts;
  experts.varying_bytes = 0.5;
  const auto baseline = runs_of(experts, 3, 1);
  ASSERT_FALSE(baseline[0].structure[0].varying.empty());
  EXPECT_EQ(baseline[0].structure[0].variants.size(), 1U);
  const CheckResult same = check_runs(baseline, runs_of(experts, 3, 100));
  EXPECT_TRUE(same.structural.empty()) << same.reason;
  EXPECT_EQ(same.verdict, Verdict::kPass) << same.reason;
  const std::string file = to_json(baseline);
  EXPECT_EQ(to_json(parse_baseline(file, "f")), file);
  EXPECT_TRUE(structural_differences(parse_baseline(file, "f"), runs_of(experts, 3, 100)).empty());
  experts.layer_bytes = 8192;
  const auto larger = structural_differences(baseline, runs_of(experts, 1, 100));
  ASSERT_FALSE(larger.empty());
  for (const StructuralDifference& d : larger) {
    EXPECT_EQ(d.kind, "bytes");
    EXPECT_THAT(d.baseline, HasSubstr("bytes a step"));
  }
  // Sizes that vary only since the change are a difference.
  EXPECT_FALSE(structural_differences(runs_of({}, 1), runs_of(experts, 1, 100)).empty());
}

TEST(CheckTest, AFileMayStateMoreStepsThanFitIntoMemory) {
  GeneratedRun experts;
  experts.varying_bytes = 0.5;
  std::vector<RunSummary> many = runs_of({}, 1);
  many[0].structure[0].variants[0].steps = INT32_MAX;
  const auto expected = structural_differences(runs_of(experts, 1), runs_of({}, 1));
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(structural_differences(runs_of(experts, 1), many), expected);
}

// The candidate's session is 3 % slower than the mean of the baseline's, which differ by as much.
TEST(CheckTest, SavedSessionsShowHowMuchSessionsDiffer) {
  const auto session = [](double level, uint64_t seed) {
    GeneratedRun what;
    what.forward *= level;
    what.backward *= level;
    what.optimizer *= level;
    return runs_of(what, 3, seed);
  };
  std::vector<RunSummary> baseline;
  for (const double level : {1.0, 1.04, 0.97, 1.02, 0.99, 0.96}) {
    for (RunSummary& run : session(level, baseline.size() + 1)) {
      baseline.push_back(std::move(run));
    }
    add_session(baseline);
  }
  const auto candidate = session(1.03, 100);
  const CheckResult kept = check_runs(parse_baseline(to_json(baseline), "f"), candidate);
  EXPECT_TRUE(kept.by_sessions);
  EXPECT_EQ(kept.baseline_sessions, 6);
  EXPECT_EQ(kept.verdict, Verdict::kInconclusive) << kept.reason;
  EXPECT_THAT(kept.reason, HasSubstr("6 sessions in the baseline"));
  EXPECT_EQ(check_runs(baseline, session(1.3, 100)).verdict, Verdict::kRegression);
  // Without the sessions the same runs are a regression: a false alarm.
  std::vector<RunSummary> one(baseline.begin(), baseline.begin() + 3);
  EXPECT_EQ(check_runs(one, candidate).verdict, Verdict::kRegression);
  EXPECT_THAT(check_runs(one, candidate).notes,
              testing::Contains(HasSubstr("the saved baseline has one session")));
}

TEST(CheckTest, SimulatedRunsGateExactly) {
  const auto simulated = [](GeneratedRun what) {
    trace::Run run = what.run();
    for (trace::Trace& trace : run.traces) {
      trace.metadata.backend = "simulated";
    }
    return std::vector{summarize(run)};
  };
  EXPECT_EQ(check_runs(simulated(quiet()), simulated(quiet())).verdict, Verdict::kPass);
  GeneratedRun slower = quiet();
  slower.more_compute = 4000;  // a microsecond per layer
  const CheckResult result = check_runs(simulated(quiet()), simulated(slower));
  EXPECT_EQ(result.verdict, Verdict::kRegression);
  EXPECT_NEAR(result_of(result, Metric::kStepTime).effect.change, 4000, 10);
}

TEST(CheckTest, DoubtsAndOtherMachinesGiveNoVerdict) {
  std::vector<RunSummary> baseline = runs_of({}, 1), candidate = baseline;
  GeneratedRun late;
  late.not_prefetched = {2};
  candidate = runs_of(late, 1);
  candidate[0].doubts = {"[rank 0] events left out (3)"};
  CheckResult result = check_runs(baseline, candidate);
  EXPECT_EQ(result.verdict, Verdict::kInconclusive);
  EXPECT_THAT(result.reason, HasSubstr("run 1: [rank 0] events left out (3)"));
  candidate[0].doubts.clear();
  candidate[0].fingerprint.machine["gpus"] = "2 × B200";
  baseline[0].fingerprint.machine["gpus"] = "2 × H200";
  result = check_runs(baseline, candidate);
  EXPECT_EQ(result.verdict, Verdict::kInconclusive);
  EXPECT_THAT(result.reason, HasSubstr("gpus 2 × B200, not 2 × H200"));
  EXPECT_TRUE(result.metrics.empty());
  candidate[0].ranks = {0};
  EXPECT_THROW((void)check_runs(baseline, candidate), InputError);
  EXPECT_THROW((void)check_runs({}, candidate), InputError);
}

TEST(CheckTest, AGateWithoutAMeasurementGivesNoVerdict) {
  const auto runs = runs_of({}, 3);
  CheckOptions options;
  auto without = runs;
  for (RunSummary& run : without) {
    run.metrics[Metric::kTransfer].reset();
  }
  options.gates[Metric::kTransfer];
  const CheckResult result = check_runs(without, runs, options);
  EXPECT_EQ(result.verdict, Verdict::kInconclusive);
  EXPECT_THAT(result.reason, HasSubstr("could not be measured on both sides"));
}

TEST(CheckTest, LimitsMayBeGiven) {
  GeneratedRun slow;
  slow.more_compute = 0.8e6;  // about 5 %
  CheckOptions options;
  options.gates = {{Metric::kStepTime, Limit{0.08, std::nullopt}}};
  const auto baseline = runs_of({}, 3, 1), candidate = runs_of(slow, 3, 100);
  EXPECT_EQ(check_runs(baseline, candidate, options).verdict, Verdict::kPass);
  options.gates = {{Metric::kStepTime, Limit{std::nullopt, 400e3}}};
  EXPECT_EQ(check_runs(baseline, candidate, options).verdict, Verdict::kRegression);
}

constexpr Bytes kMiB = Bytes{1} << 20;

GeneratedRun with_memory(Bytes kept, Bytes peak) {
  GeneratedRun what;
  what.memory_kept = kept;
  what.memory_peak = peak;
  return what;
}

TEST(MemoryCheckTest, PeaksAreThoseOfTheComparedSteps) {
  const RunSummary run = summarize(with_memory(100 * kMiB, 300 * kMiB).run());
  EXPECT_EQ(run.memory, (std::vector<MemoryPeak>{{0, "cuda:0", 100 * kMiB, 300 * kMiB},
                                                 {1, "cuda:0", 100 * kMiB, 300 * kMiB}}));
  EXPECT_TRUE(summarize(GeneratedRun{}.run()).memory.empty());
}

TEST(MemoryCheckTest, ACaptureOnAGpuHasItsMetrics) {
  trace::Run run = GeneratedRun{}.run();
  for (int64_t step = 0; step < 20; ++step) {
    auto& metrics = run.metrics.emplace_back();
    metrics.step = step;
    metrics.peak_allocated = step == 19 ? 900 * kMiB : (200 + step) * kMiB;  // 19 is left out
    metrics.allocated = (50 + step) * kMiB;
  }
  EXPECT_EQ(summarize(run).memory, (std::vector<MemoryPeak>{{0, "cuda", 67 * kMiB, 218 * kMiB}}));
}

TEST(MemoryCheckTest, ARiseAboveTheLimitIsARegressionThatSaysWhatGrew) {
  const auto verdict = [](const GeneratedRun& before, const GeneratedRun& after,
                          std::optional<MemoryGate::Limit> limit = {}) {
    CheckOptions options;
    options.gates.clear();
    options.memory.gates = true;
    options.memory.limit = limit;
    return check_runs(runs_of(before, 1), runs_of(after, 1, 100), options);
  };
  // Two percent of 300 MiB are 6 MiB; of 20 MiB less than the floor of 1 MiB.
  const GeneratedRun usual = with_memory(100 * kMiB, 300 * kMiB),
                     small = with_memory(10 * kMiB, 20 * kMiB);
  EXPECT_EQ(verdict(usual, with_memory(100 * kMiB, 306 * kMiB)).verdict, Verdict::kPass);
  EXPECT_EQ(verdict(small, with_memory(10 * kMiB, 21 * kMiB)).verdict, Verdict::kPass);
  EXPECT_EQ(verdict(small, with_memory(10 * kMiB, 21 * kMiB + 1)).verdict, Verdict::kRegression);
  EXPECT_EQ(
      verdict(usual, with_memory(100 * kMiB, 310 * kMiB), MemoryGate::Limit{0.05, {}}).verdict,
      Verdict::kPass);
  const CheckResult grown = verdict(usual, with_memory(140 * kMiB, 340 * kMiB));
  EXPECT_EQ(grown.verdict, Verdict::kRegression);
  EXPECT_THAT(grown.reason, HasSubstr("rank 0 on cuda:0 is 340.00 MiB, above 306.00 MiB"));
  EXPECT_THAT(grown.causes, testing::Contains(HasSubstr(
                                "kept between steps 140.00 MiB, was 100.00 MiB; in addition "
                                "within the step 200.00 MiB as before")));
  EXPECT_TRUE(grown.attribution.empty());
  EXPECT_EQ(check_runs(runs_of(usual, 3), runs_of(with_memory(140 * kMiB, 340 * kMiB), 3)).verdict,
            Verdict::kPass);  // it gates if it is asked to
}

TEST(MemoryCheckTest, WithoutPeaksOnlyAGateThatWasAskedForHasNoVerdict) {
  CheckOptions options;
  options.gates.clear();
  const auto without = runs_of({}, 1), with = runs_of(with_memory(kMiB, 3 * kMiB), 1);
  EXPECT_EQ(check_runs(without, with, options).verdict, Verdict::kPass);
  options.memory.required = true;
  EXPECT_EQ(check_runs(with, with, options).verdict, Verdict::kPass);
  const CheckResult result = check_runs(without, with, options);
  EXPECT_EQ(result.verdict, Verdict::kInconclusive);
  EXPECT_THAT(result.reason, HasSubstr("the baseline has no allocations"));
}

TEST(BaselineFileTest, ARunWithoutItsMainMetricsIsRefused) {
  for (const Metric metric : {Metric::kStepTime, Metric::kExposedComm}) {
    auto runs = runs_of({}, 1);
    runs[0].metrics[metric].reset();
    EXPECT_THAT([&] { (void)parse_baseline(to_json(runs), "base.json"); },
                testing::ThrowsMessage<InputError>(
                    testing::AllOf(HasSubstr("base.json"), HasSubstr(name_of(metric)))));
  }
  EXPECT_THAT([] { (void)parse_baseline(R"({"shardlens_baseline": 1})", "base.json"); },
              testing::ThrowsMessage<InputError>(
                  testing::AllOf(HasSubstr("'runs'"), testing::Not(HasSubstr("json.exception")))));
}

TEST(BaselineFileTest, KeepsAllThatAVerdictNeeds) {
  GeneratedRun late;
  late.not_prefetched = {1};
  late.memory_peak = 5 * kMiB;
  std::vector<RunSummary> runs = runs_of(late, 3);
  runs[1].memory[0].kept.reset();
  runs[0].fingerprint = {{{"gpus", "2 × H200"}}, {{"torch", "2.11"}}, R"({"views": "fresh"})"};
  runs[1].late_reductions = {"layers.1"};
  runs[2].notes = {"a \"note\""};
  const std::string json = to_json(runs);
  EXPECT_EQ(to_json(parse_baseline(json, "f")), json);
  const CheckResult direct = check_runs(runs_of({}, 3, 50), runs),
                    kept = check_runs(runs_of({}, 3, 50), parse_baseline(json, "f"));
  EXPECT_EQ(direct.reason, kept.reason);
  EXPECT_EQ(direct.structural, kept.structural);
  EXPECT_EQ(parse_baseline(json, "f")[1].memory, runs[1].memory);
}

TEST(BaselineFileTest, RefusesWhatItDidNotWrite) {
  const auto refused = [](const std::string& json, const std::string& message) {
    EXPECT_THAT([&] { (void)parse_baseline(json, "base.json"); },
                testing::ThrowsMessage<InputError>(
                    testing::AllOf(HasSubstr("base.json"), HasSubstr(message))));
  };
  refused("", "not valid JSON");
  refused("[]", "expected a baseline saved by shardlens");
  refused("{\"shardlens_baseline\":1}", "key 'runs' is missing");
  refused("{\"shardlens_baseline\":2,\"runs\":[]}", "version 2");
  refused("{\"shardlens_baseline\":1,\"runs\":[]}", "contains no run");
  refused("{\"shardlens_baseline\":1,\"runs\":[{\"source\":3}]}",
          "#/runs/0/source: expected a string");
  const std::string whole = to_json(runs_of({}, 1));
  refused(whole.substr(0, whole.size() / 2), "not valid JSON");
}

// A number that does not fit its type would be undefined behavior, or another number.
TEST(BaselineFileTest, RefusesNumbersThatDoNotFit) {
  const nlohmann::json whole = nlohmann::json::parse(to_json(runs_of({}, 1)));
  for (const char* key : {"session", "steps", "warmup", "used", "ranks/0", "structure/0/rank",
                          "structure/0/variants/0/steps", "structure/0/variants/0/streams/0/0/2",
                          "structure/0/variants/0/unsharded_peak_bytes"}) {
    for (const auto& value :
         std::vector<nlohmann::json>{1e308, -1e308, 1.5, UINT64_MAX, INT64_MIN, true, "1"}) {
      nlohmann::json changed = whole;
      changed.at(nlohmann::json::json_pointer(fmt::format("/runs/0/{}", key))) = value;
      EXPECT_THAT([&] { (void)parse_baseline(changed.dump(), "base.json"); },
                  testing::ThrowsMessage<InputError>(
                      HasSubstr(fmt::format("base.json#/runs/0/{}: expected an integer", key))));
    }
  }
  for (const char* key : {"metrics_ns/step_time", "step_parts_ns/0/2", "exposed_parts_ns/0/2"}) {
    nlohmann::json changed = whole;
    changed.at(nlohmann::json::json_pointer(fmt::format("/runs/0/{}", key))) = 1e308;
    EXPECT_THAT([&] { (void)parse_baseline(changed.dump(), "base.json"); },
                testing::ThrowsMessage<InputError>(
                    HasSubstr(fmt::format("base.json#/runs/0/{}: expected a number up to", key))));
  }
}

}  // namespace
}  // namespace shardlens::check
