#include "profiler/check/run_summary.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "profiler/analysis/analyzed_run.h"
#include "profiler/analysis/critical_path/idle.h"
#include "profiler/analysis/exposed/frozen_views.h"
#include "profiler/analysis/figures/figure_table.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/dependencies.h"
#include "profiler/analysis/units/unit_figures.h"
#include "profiler/check/statistics.h"
#include "profiler/trace/model/overhead_names.h"

namespace shardlens::check {
namespace {

using analysis::Interval;
using analysis::IntervalSet;
using analysis::Timeline;
using analysis::UnitFigures;
using analysis::UnitPart;
using trace::Trace;

// One rank with the analyses that are needed of it.
struct Rank {
  const Trace& trace;
  const Timeline& timeline;
  analysis::Partition partition;
  analysis::IdleCauses idle;
  std::optional<analysis::FrozenViews> frozen;

  Rank(const Trace& from, const Timeline& sorted, bool may_be_frozen)
      : trace(from),
        timeline(sorted),
        partition(sorted),
        idle(from, sorted, analysis::Dependencies(from, sorted)) {
    if (may_be_frozen) {
      frozen = find_frozen_views(trace, timeline, partition, timeline.span);
    }
  }
};

// A step on all ranks.
struct StepTimes {
  int64_t number = 0;
  std::vector<Interval> windows;  // by rank
  std::vector<double> exposed;
  bool disturbed = false;  // the profiler itself took much of this step
  bool no_end = false;     // the end of its window is not known: there is no next step

  [[nodiscard]] size_t slowest() const {
    return static_cast<size_t>(
        std::max_element(windows.begin(), windows.end(),
                         [](const auto& a, const auto& b) { return a.length() < b.length(); }) -
        windows.begin());
  }
  [[nodiscard]] size_t most_exposed() const {
    return static_cast<size_t>(std::max_element(exposed.begin(), exposed.end()) - exposed.begin());
  }
  [[nodiscard]] double time() const { return static_cast<double>(windows[slowest()].length()); }
};

// The share of a step that the profiler itself may take before the step is left out: a quarter of
// the smallest change that a gate reports by default.
constexpr double kDisturbingShare = 0.005;

// Without the flushes that Shardlens asks for at the end of every step.
IntervalSet profiler_overhead(const Trace& trace) {
  analysis::UnionBuilder overhead;
  for (const trace::Event& e : trace.events) {
    if (e.category == trace::Category::kOverhead && trace.name(e) != trace::kOwnFlush) {
      overhead.add({e.start, e.end()});
    }
  }
  return overhead.take();
}

std::vector<StepTimes> common_steps(const trace::Run& run,
                                    const std::vector<Rank>& ranks,
                                    const std::optional<analysis::StepRange>& wanted) {
  std::vector<StepTimes> out;
  std::vector<std::map<int64_t, const analysis::Step*>> steps(ranks.size());
  std::vector<IntervalSet> overhead;
  for (size_t r = 0; r < ranks.size(); ++r) {
    overhead.push_back(profiler_overhead(ranks[r].trace));
    for (const analysis::Step& step : ranks[r].timeline.steps) {
      steps[r].emplace(step.number, &step);
    }
    if (steps[r].empty()) {
      const std::string& evidence = ranks[r].timeline.missing_kernels;
      throw InputError(
          run.source,
          fmt::format("rank {}: the trace has no {} to compare", *run.traces[r].metadata.rank,
                      evidence.empty() ? "steps (ProfilerStep#k)"
                                       : fmt::format("kernels, although {},", evidence)));
    }
  }
  const Timeline& first = ranks.front().timeline;
  for (const analysis::Step& step : first.steps) {
    if (wanted && (step.number < wanted->first || step.number >= wanted->last)) {
      continue;
    }
    StepTimes times{step.number, {}, {}, false, first.device && &step == &first.steps.back()};
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto found = steps[r].find(step.number);
      if (found == steps[r].end()) {
        break;
      }
      const Interval window = found->second->window;
      times.windows.push_back(window);
      times.exposed.push_back(
          static_cast<double>(ranks[r].partition.figures({window}).exposed_comm));
      times.disturbed =
          times.disturbed || static_cast<double>(length_within(overhead[r], window)) >
                                 kDisturbingShare * static_cast<double>(window.length());
    }
    if (times.windows.size() == ranks.size() && steps[0].erase(step.number) > 0) {
      out.push_back(std::move(times));
    }
  }
  if (out.empty()) {
    throw InputError(
        run.source,
        wanted ? fmt::format("none of the requested steps, from {} on, is in the traces of all "
                             "ranks; the last recorded step is {}",
                             wanted->first, first.steps.back().number)
               : "no step is in the traces of all ranks");
  }
  return out;
}

std::vector<StepTimes> settled_steps(std::vector<StepTimes> steps, RunSummary& summary) {
  constexpr size_t kEnough = 3;
  std::vector<double> times;
  for (const StepTimes& step : steps) {
    times.push_back(step.time());
  }
  summary.steps = static_cast<int64_t>(steps.size());
  summary.warmup = static_cast<int64_t>(warmup_steps(times));
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(summary.warmup));
  if (steps.size() > kEnough && steps.back().no_end) {
    steps.pop_back();
  }
  const auto disturbed = std::erase_if(steps, [](const StepTimes& s) { return s.disturbed; });
  if (disturbed > 0) {
    summary.notes.push_back(
        fmt::format("{} steps left out: the profiler itself took more than {} % of them", disturbed,
                    kDisturbingShare * 100));
  }
  summary.used = static_cast<int64_t>(steps.size());
  return steps;
}

// The windows of the middle half of the steps, sorted by `value`, each of the rank given by
// `rank_of`.
template <typename Value, typename Of>
std::vector<IntervalSet> chosen_windows(const std::vector<StepTimes>& steps,
                                        size_t ranks,
                                        const Value& value,
                                        const Of& rank_of,
                                        size_t& count) {
  std::vector<size_t> order(steps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return value(steps[a]) < value(steps[b]); });
  const auto [first, last] = middle_half(order.size());
  count = last - first;
  std::vector<std::vector<Interval>> windows(ranks);
  for (size_t i = first; i < last; ++i) {
    const StepTimes& step = steps[order[i]];
    windows[rank_of(step)].push_back(step.windows[rank_of(step)]);
  }
  std::vector<IntervalSet> out;
  for (auto& list : windows) {
    out.push_back(analysis::union_of(std::move(list)));
  }
  return out;
}

class PartSums {
 public:
  void add(const std::string& unit, std::string_view part, Nanoseconds ns) {
    if (ns != 0) {
      sums_[{unit, std::string(part)}] += static_cast<double>(ns);
    }
  }
  [[nodiscard]] std::vector<Part> per_step(size_t steps) const {
    std::vector<Part> out;
    for (const auto& [key, ns] : sums_) {
      out.push_back({key.first, key.second, ns / static_cast<double>(steps)});
    }
    return out;
  }

 private:
  std::map<std::pair<std::string, std::string>, double> sums_;
};

void add_exposed(const std::vector<UnitFigures>& units, PartSums& sums) {
  for (const UnitFigures& unit : units) {
    for (size_t p = 0; p < unit.parts.size(); ++p) {
      if (unit.parts[p]) {
        sums.add(unit.fqn, name_of(static_cast<UnitPart>(p)), unit.parts[p]->exposed);
      }
    }
  }
}

// Adds all of the steps' time; time without a known unit is added to "<none>".
void add_all(const analysis::WindowFigures& figures,
             const analysis::IdleFigures& idle,
             const std::vector<UnitFigures>& units,
             PartSums& sums) {
  Nanoseconds compute = figures.compute, exposed = figures.exposed_comm,
              copy = figures.exposed_copy;
  for (const UnitFigures& unit : units) {
    if (unit.is_unit) {
      sums.add(unit.fqn, "compute_forward", unit.compute_forward);
      sums.add(unit.fqn, "compute_backward", unit.compute_backward);
    } else {
      sums.add(unit.fqn, "compute", unit.compute);
    }
    sums.add(unit.fqn, "copy", unit.exposed_copy);
    compute -= unit.compute;
    exposed -= unit.exposed();
    copy -= unit.exposed_copy;
  }
  add_exposed(units, sums);
  sums.add("<none>", "compute", compute);
  sums.add("<none>", "other", exposed);
  sums.add("<none>", "copy", copy);
  sums.add("<idle>", "host_late", idle.host_late);
  sums.add("<idle>", "event_wait", idle.event_wait);
  sums.add("<idle>", "gap", idle.gap);
  sums.add("<idle>", "unknown", idle.unknown);
}

std::optional<Nanoseconds> least_lead(const std::vector<UnitFigures>& units) {
  std::optional<Nanoseconds> least;
  for (const UnitFigures& unit : units) {
    for (const UnitPart part : {UnitPart::kAllGatherForward, UnitPart::kAllGatherBackward}) {
      const auto& figures = unit.parts[static_cast<size_t>(part)];
      if (figures && figures->lead && (!least || *figures->lead < *least)) {
        least = figures->lead;
      }
    }
  }
  return least;
}

double sum_of(const std::vector<Part>& parts, std::string_view begin, bool idle = false) {
  double sum = 0;
  for (const Part& part : parts) {
    if (part.part.starts_with(begin) && (part.unit == "<idle>") == idle) {
      sum += part.ns;
    }
  }
  return sum;
}

void set_parts_of_step(RunSummary& summary) {
  const std::vector<Part>& parts = summary.step_parts;
  const auto set = [&](Metric metric, double ns) { summary.metrics[metric] = ns; };
  set(Metric::kStepTime, sum_of(parts, "") + sum_of(parts, "", true));
  set(Metric::kCompute, sum_of(parts, "compute"));
  set(Metric::kExposedAllGatherForward, sum_of(parts, "all_gather_forward"));
  set(Metric::kExposedAllGatherBackward, sum_of(parts, "all_gather_backward"));
  set(Metric::kExposedReduction, sum_of(parts, "reduce_scatter") + sum_of(parts, "all_reduce"));
  set(Metric::kExposedOther, sum_of(parts, "other"));
  set(Metric::kExposedCopy, sum_of(parts, "copy"));
  set(Metric::kIdleHostLate, sum_of(parts, "host_late", true));
  set(Metric::kIdleEventWait, sum_of(parts, "event_wait", true));
  set(Metric::kIdleGap, sum_of(parts, "gap", true));
  set(Metric::kIdleUnknown, sum_of(parts, "unknown", true));
}

// Adds the items of the chosen steps of one rank.
void add_items(const Rank& rank, const IntervalSet& windows, std::map<ItemKey, Item>& items) {
  std::map<std::pair<int64_t, ItemKey>, int64_t> seen;
  for (const analysis::UnitSpan& span :
       unit_spans(rank.trace, rank.timeline, rank.partition, windows,
                  {rank.frozen ? &*rank.frozen : nullptr})) {
    const bool of_others = span.part == UnitPart::kOther && span.is_unit;
    ItemKey key{std::string(name_of(span.section)), span.owner,
                of_others ? span.name : std::string(name_of(span.kind)), 0};
    key.occurrence = seen[{span.step.value_or(-1), key}]++;
    Item& item = items[key];
    item.key = key;
    item.steps.push_back(static_cast<double>(span.busy));
    item.exposed += static_cast<double>(span.exposed);
  }
}

// Sums of the times in the figure table that are metrics of their own.
class FigureSums {
 public:
  void add(const analysis::WindowFigures& figures) {
    for (const analysis::FigureRow& row : analysis::figure_table()) {
      if (!row.metric.empty() && row.time != nullptr) {
        sums_[*parse_metric(row.metric)] += static_cast<double>(row.time(figures));
      }
    }
  }
  void set(double steps, MetricValues& metrics) const {
    for (const auto& [metric, sum] : sums_) {
      metrics[metric] = sum / steps;
    }
  }

 private:
  std::map<Metric, double> sums_;
};

void measure_steps(const std::vector<Rank>& ranks,
                   const std::vector<StepTimes>& steps,
                   const SummaryOptions& options,
                   RunSummary& summary) {
  size_t count = 0;
  const std::vector<IntervalSet> windows = chosen_windows(
      steps, ranks.size(), [](const StepTimes& s) { return s.time(); },
      [](const StepTimes& s) { return s.slowest(); }, count);
  PartSums parts;
  FigureSums figure_sums;
  double transfer = 0, wait = 0;
  int64_t matched = 0;
  std::optional<Nanoseconds> lead;
  std::map<ItemKey, Item> items;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (windows[r].empty()) {
      continue;
    }
    const Rank& rank = ranks[r];
    const analysis::WindowFigures figures = rank.partition.figures(windows[r]);
    const std::vector<UnitFigures> units =
        unit_figures(rank.trace, rank.timeline, rank.partition, windows[r],
                     {rank.frozen ? &*rank.frozen : nullptr});
    add_all(figures, rank.idle.within(windows[r], figures.idle), units, parts);
    figure_sums.add(figures);
    if (options.items) {
      add_items(rank, windows[r], items);
    }
    for (const auto& [kind, k] : figures.collectives) {
      matched += k.matched;
      transfer += static_cast<double>(k.transfer);
      wait += static_cast<double>(k.wait);
    }
    if (const auto least = least_lead(units); least && (!lead || *least < *lead)) {
      lead = least;
    }
  }
  const auto n = static_cast<double>(count);
  for (auto& [key, item] : items) {
    item.exposed /= n;
    summary.items.push_back(std::move(item));
  }
  summary.step_parts = parts.per_step(count);
  set_parts_of_step(summary);
  figure_sums.set(n, summary.metrics);
  if (matched > 0) {
    summary.metrics[Metric::kTransfer] = transfer / n;
    summary.metrics[Metric::kPeerWait] = wait / n;
  }
  if (lead) {
    summary.metrics[Metric::kPrefetchLead] = static_cast<double>(*lead);
  }
}

void measure_exposed(const std::vector<Rank>& ranks,
                     const std::vector<StepTimes>& steps,
                     RunSummary& summary) {
  size_t count = 0;
  const std::vector<IntervalSet> windows = chosen_windows(
      steps, ranks.size(), [](const StepTimes& s) { return s.exposed[s.most_exposed()]; },
      [](const StepTimes& s) { return s.most_exposed(); }, count);
  PartSums parts;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!windows[r].empty()) {
      const Rank& rank = ranks[r];
      add_exposed(unit_figures(rank.trace, rank.timeline, rank.partition, windows[r],
                               {rank.frozen ? &*rank.frozen : nullptr}),
                  parts);
    }
  }
  summary.exposed_parts = parts.per_step(count);
  summary.metrics[Metric::kExposedComm] = sum_of(summary.exposed_parts, "");
}

// Collects the reasons against a verdict for the run.
void find_doubts(const trace::Run& run,
                 const std::vector<trace::Diagnostic>& matching,
                 RunSummary& summary) {
  for (const Trace& trace : run.traces) {
    const int64_t rank = trace.metadata.rank.value_or(0);
    if (std::string_view(trace.metadata.source).ends_with(".spool")) {
      summary.doubts.push_back(
          fmt::format("[rank {}] the run did not finish: it left a spool but no trace", rank));
    }
    for (const trace::Diagnostic& d : trace.diagnostics) {
      if (d.severity != trace::Severity::kNote) {
        summary.doubts.push_back(fmt::format("[rank {}] {} ({})", rank, d.message, d.count));
      }
    }
  }
  for (const trace::Diagnostic& d : matching) {
    if (d.severity != trace::Severity::kNote) {
      summary.doubts.push_back(fmt::format("{} ({})", d.message, d.count));
    }
  }
  // What the recorder saw: such a run is slow for a reason that no figure names.
  for (const trace::Diagnostic& d : run.diagnostics) {
    if (d.message.find("FSDP's hooks did not run") != std::string::npos) {
      summary.notes.push_back(d.message);
    }
  }
  const trace::Metadata& metadata = run.traces.front().metadata;
  const int64_t world = metadata.world_size.value_or(1);
  const auto found = static_cast<int64_t>(run.traces.size());
  if (!run.environment.empty() && metadata.backend != "emulated" && found < world) {
    summary.doubts.push_back(fmt::format("{} of {} ranks left a trace ({}): the run is incomplete",
                                         found, world, fmt::join(summary.ranks, ", ")));
  } else if (metadata.backend != "emulated" && found < world) {
    summary.notes.push_back(fmt::format(
        "{} of {} ranks given: the slowest of these is taken for all ranks", found, world));
  }
}

}  // namespace

RunSummary summarize(const trace::Run& run, const SummaryOptions& options) {
  RunSummary summary;
  summary.source = run.source;
  summary.fingerprint = fingerprint_of(run);
  summary.exact = true;
  const analysis::AnalyzedRun analyzed(run, options.timeline);
  const std::span<const Timeline> timelines = analyzed.matched();
  for (const Trace& trace : run.traces) {
    summary.ranks.push_back(trace.metadata.rank.value_or(0));
    summary.exact = summary.exact && trace.metadata.simulated();
  }
  const bool may_be_frozen = !run.planned || run.planned->plan.plan.views == plan::Views::kFrozen;
  std::vector<Rank> ranks;
  for (size_t r = 0; r < timelines.size(); ++r) {
    ranks.emplace_back(run.traces[r], timelines[r], may_be_frozen);
  }
  find_doubts(run, analyzed.matching().diagnostics, summary);
  const std::vector<StepTimes> steps =
      settled_steps(common_steps(run, ranks, options.steps), summary);
  if (steps.empty()) {
    summary.doubts.push_back("the profiler itself took much of every step");
    return summary;
  }
  measure_steps(ranks, steps, options, summary);
  measure_exposed(ranks, steps, summary);
  std::vector<int64_t> numbers;
  for (const StepTimes& step : steps) {
    numbers.push_back(step.number);
  }
  summary.memory = memory_peaks(run, timelines, numbers);
  std::set<std::string> late;
  for (const Rank& rank : ranks) {
    summary.structure.push_back(structure_of(rank.trace, rank.timeline, numbers));
    if (rank.frozen) {
      for (const std::string& unit : rank.frozen->late) {
        if (late.insert(unit).second) {
          summary.late_reductions.push_back(unit);
        }
      }
    }
  }
  return summary;
}

}  // namespace shardlens::check
