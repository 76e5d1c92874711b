#include "sim/advise/advise.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numbers>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/resolve.h"
#include "sim/advise/plan_changes.h"
#include "sim/scenario/uncertainty.h"

namespace shardlens::sim {
namespace {

using analysis::UnitPart;

constexpr size_t kMostCombined = 3;  // changes made together
constexpr size_t kMostHidden = 5;    // rows of AdvisedChange::hides

// Exposed time of each unit's collectives in a simulated step.
using Exposed = std::map<std::pair<std::string, UnitPart>, Nanoseconds>;

Exposed exposed_of(const Scenario& scenario) {
  const Prediction now = evaluate(scenario, {.timeline = true});
  trace::Run run;
  run.traces.push_back(predicted_trace(now, 0));
  Exposed out;
  const analysis::Analysis analysis = analysis::analyze(run);
  for (const analysis::UnitFigures& unit : analysis.ranks.front().units) {
    for (int i = 0; i < analysis::kUnitPartCount && unit.is_unit; ++i) {
      if (const auto& part = unit.parts[static_cast<size_t>(i)]) {
        out[{unit.fqn, static_cast<UnitPart>(i)}] += part->exposed;
      }
    }
  }
  return out;
}

// The unit of `plan` that contains the first module of each unit of `own`, by the own unit's FQN.
std::map<std::string, std::string> containing(const plan::ResolvedPlan& own,
                                              const plan::ResolvedPlan& plan) {
  std::map<uint32_t, std::string> by_parameter;
  for (const plan::Unit& unit : plan.units) {
    for (const uint32_t parameter : unit.parameters) {
      by_parameter[parameter] = unit.fqn;
    }
  }
  std::map<std::string, std::string> out;
  for (const plan::Unit& unit : own.units) {
    if (!unit.parameters.empty()) {
      const auto at = by_parameter.find(unit.parameters.front());
      out[unit.fqn] = at == by_parameter.end() ? unit.fqn : at->second;
    }
  }
  return out;
}

// Units that the change merges are one row, under the name of the new unit.
std::vector<HiddenTime> hidden(const Exposed& before,
                               const Exposed& after,
                               const std::map<std::string, std::string>& names) {
  Exposed left;
  for (const auto& [key, time] : before) {
    const auto at = names.find(key.first);
    left[{at == names.end() ? key.first : at->second, key.second}] += time;
  }
  std::vector<HiddenTime> out;
  for (const auto& [key, time] : left) {
    const auto at = after.find(key);
    const Nanoseconds gone = time - (at == after.end() ? 0 : at->second);
    if (gone > 0) {
      out.push_back({key.first, std::string(name_of(key.second)), gone});
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const HiddenTime& a, const HiddenTime& b) { return a.time > b.time; });
  out.resize(std::min(out.size(), kMostHidden));
  return out;
}

std::vector<FoundWaste> waste_of(const analysis::Analysis& analysis) {
  std::vector<FoundWaste> out;
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    const auto steps = static_cast<Nanoseconds>(std::max<size_t>(rank.steps.size(), 1));
    for (const analysis::Waste& each : rank.waste) {
      FoundWaste found{each.kind, each.where, each.lost / steps,
                       fmt::format("{} time{} in {} step{} of rank {}: {}", each.count,
                                   each.count == 1 ? "" : "s", steps, steps == 1 ? "" : "s",
                                   rank.rank, explanation_of(each.kind))};
      const auto same = std::find_if(out.begin(), out.end(), [&found](const FoundWaste& other) {
        return other.kind == found.kind && other.unit == found.unit;
      });
      if (same == out.end()) {
        out.push_back(std::move(found));
      } else if (same->lost < found.lost) {
        *same = std::move(found);
      }
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const FoundWaste& a, const FoundWaste& b) { return a.lost > b.lost; });
  return out;
}

bool larger_gain(const AdvisedChange& a, const AdvisedChange& b) {
  return a.change < b.change;
}

// A change, and what it consists of.
struct Tried {
  AdvisedChange result;
  std::vector<const plan::PlanEdit*> of;
};

class Adviser {
 public:
  Adviser(const std::shared_ptr<const RecordedRun>& run, const AdviseOptions& options)
      : options_(options), own_(own_scenario(run)), now_(evaluate(own_)), uncertainty_(run) {
    out_.baseline = run->baseline();
    out_.peak_allocated = now_.memory.peak_allocated;
    out_.fits = fits(now_.memory);
    out_.available = now_.available;
    if (options.memory_limit > 0) {
      out_.available = out_.available == 0 ? options.memory_limit
                                           : std::min(out_.available, options.memory_limit);
    }
    out_.steps = uncertainty_.steps();
    out_.framework = run->observation().rewritten
                         ? plan::Framework::kSimpleFsdp
                         : plan::framework_named(run->observation().framework)
                               .value_or(plan::Framework::kPytorch);
    const Calibration* measured = run->machine()->calibration();
    out_.all_gathers_block =
        measured != nullptr && measured->blocking[static_cast<size_t>(CollectiveKind::kAllGather)];
  }

  Advice take() {
    const std::vector<plan::PlanEdit> singles = single_changes(own_, *now_.priced.plan);
    std::vector<Tried> tried;
    for (size_t i = 0; i < singles.size(); ++i) {
      if (auto made = attempt({&singles[i]})) {
        tried.push_back(std::move(*made));
      }
      if (options_.on_progress) {
        options_.on_progress(i + 1, singles.size());
      }
    }
    if (auto together = combined(tried)) {
      tried.push_back(std::move(*together));
    }
    std::stable_sort(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) {
      return larger_gain(a.result, b.result);
    });
    for (Tried& each : tried) {
      const bool listed = out_.fits ? each.result.pays() : each.result.fits;
      (listed && out_.changes.size() < options_.top ? out_.changes : out_.others)
          .push_back(std::move(each.result));
    }
    find_hidden();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool fits(const StepMemory& memory) const {
    return memory.fits &&
           (options_.memory_limit == 0 || memory.peak_reserved <= options_.memory_limit);
  }

  // Adds the lines of the framework, or calls where it has no setting.
  void add_lines(const plan::PlanEdit& edit, std::vector<std::string>& out) const {
    const plan::ResolvedPlan& now = *now_.priced.plan;
    const plan::MeshSizes& sizes = now.plan.mesh;
    const plan::ModuleTree& tree = now.tree;
    std::vector<std::string> settings = plan::framework_settings(
        {out_.framework, now.plan.dialect, now.world_size / (sizes.context * sizes.tensor),
         tree.blocks.empty() ? "" : tree.modules[tree.blocks.front()].type},
        edit);
    if (settings.empty()) {
      settings = edit.pytorch;
      if (out_.framework != plan::Framework::kPytorch &&
          out_.framework != plan::Framework::kSimpleFsdp && !settings.empty()) {
        settings.insert(settings.begin(),
                        fmt::format("# {} has no setting for this; on the model that it wrapped:",
                                    name_of(out_.framework)));
      }
    }
    out.insert(out.end(), settings.begin(), settings.end());
  }

  // The copies into DDP's buckets and their all-reduces are not like those of FSDP, so a sharded
  // run does not show how long they take. Only for captures on a CPU they follow from the others.
  // Errors  InputError.
  void require_measured(const Scenario& scenario) const {
    const auto replicates = [](const plan::Plan& plan) {
      return std::any_of(plan.units.begin(), plan.units.end(), [](const plan::UnitEntry& entry) {
        return entry.api == plan::Api::kReplicate;
      });
    };
    const bool follows =
        own_.machine->host() == HostMode::kCompute && own_.model->config() != nullptr;
    if (!follows && replicates(scenario.plan) && !replicates(own_.plan)) {
      throw InputError(own_.model->run()->observation().source,
                       "a run of sharded units has no buckets of gradients to measure");
    }
    // Over Gloo an all-reduce follows from the other collectives (CalibratedCostModel).
    if (!follows && !out_.all_gathers_block && scenario.plan.mesh.shard == 1 &&
        now_.priced.plan->shards() > 1) {
      throw InputError(own_.model->run()->observation().source,
                       "a run with a shard axis has no all-reduces of whole gradients to measure");
    }
  }

  // nullopt: it cannot be predicted.
  std::optional<Tried> attempt(std::vector<const plan::PlanEdit*> of) {
    if (options_.cancelled != nullptr && *options_.cancelled) {
      throw RuntimeFault("advise was stopped");
    }
    Scenario scenario = own_;
    AdvisedChange out;
    for (const plan::PlanEdit* each : of) {
      make(*each, scenario);
      out.id += (out.id.empty() ? "" : "+") + each->id;
      out.title += (out.title.empty() ? "" : "; ") + each->title;
      out.pytorch.insert(out.pytorch.end(), each->pytorch.begin(), each->pytorch.end());
      add_lines(*each, out.lines);
    }
    if (out_.framework == plan::Framework::kSimpleFsdp) {
      out.pytorch = out.lines;
    }
    scenario.plan.source = out.title;
    Prediction then;
    try {
      require_measured(scenario);
      then = evaluate(scenario);
    } catch (const InputError& error) {
      if (of.size() == 1) {
        out_.unknown.push_back({out.id, out.title, error.what()});
      }
      return std::nullopt;
    }
    uncertainty_.add_to(scenario, then);
    out.plan = std::move(scenario.plan);
    out.step = scenario.step;
    out.duration = then.step.duration;
    out.change = then.step.duration - now_.step.duration;
    out.interval = then.change_interval.value_or(PredictedInterval{out.change, out.change});
    out.peak_allocated = then.memory.peak_allocated;
    out.peak_reserved = then.memory.peak_reserved;
    out.fits = fits(then.memory);
    out.extrapolated = std::move(then.extrapolated);
    const auto change = static_cast<double>(out.change);
    const double error = static_cast<double>(out.interval.high - out.change) / kQuantile90;
    out.bound = std::llround(change - std::copysign(kQuantile99 * error, change));
    out.odds = odds_of(out.change, error, now_.step.duration, out.fits);
    return Tried{std::move(out), std::move(of)};
  }

  // The change with the largest gain, and further changes of other subjects, each if it adds to the
  // gain. nullopt: no two do.
  std::optional<Tried> combined(const std::vector<Tried>& singles) {
    std::vector<const Tried*> pays;
    for (const Tried& each : singles) {
      if (each.result.pays()) {
        pays.push_back(&each);
      }
    }
    std::stable_sort(pays.begin(), pays.end(), [](const Tried* a, const Tried* b) {
      return larger_gain(a->result, b->result);
    });
    std::optional<Tried> best;
    for (const Tried* each : pays) {
      if (!best) {
        best = *each;
        continue;
      }
      std::vector<const plan::PlanEdit*> of = best->of;
      const plan::PlanEdit& next = *each->of.front();
      if (of.size() >= kMostCombined ||
          std::any_of(of.begin(), of.end(), [&next](const plan::PlanEdit* made) {
            return plan::exclude_each_other(made->key, next.key);
          })) {
        continue;
      }
      of.push_back(&next);
      auto made = attempt(of);
      // A tenth of what it gains by itself, so that the list has no change without effect.
      if (made && made->result.pays() &&
          made->result.change < best->result.change + each->result.change / 10) {
        best = std::move(made);
      }
    }
    return best && best->of.size() > 1 ? std::move(best) : std::nullopt;
  }

  void find_hidden() {
    if (out_.changes.empty()) {
      return;
    }
    const Exposed before = exposed_of(own_);
    for (AdvisedChange& change : out_.changes) {
      Scenario scenario = own_;
      scenario.plan = change.plan;
      scenario.step = change.step;
      const plan::ResolvedPlan plan = scenario.model->resolve(scenario.plan, scenario.world_size);
      change.hides = hidden(before, exposed_of(scenario), containing(*now_.priced.plan, plan));
    }
  }

  const AdviseOptions& options_;
  Scenario own_;
  Prediction now_;
  Uncertainty uncertainty_;
  Advice out_;
};

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kTooLarge:
      return "does not fit";
    case Verdict::kPays:
      return "pays";
    case Verdict::kProbablyPays:
      return "probably pays";
    case Verdict::kNoDifference:
      return "no difference";
    case Verdict::kProbablyLoses:
      return "probably loses";
    case Verdict::kLoses:
      return "loses";
  }
  return "";
}

std::optional<int> Odds::in_100() const {
  if (verdict != Verdict::kProbablyPays && verdict != Verdict::kProbablyLoses) {
    return std::nullopt;
  }
  const double of = verdict == Verdict::kProbablyPays ? probability : 1 - probability;
  return static_cast<int>(std::floor(100 * of));
}

std::string Odds::text() const {
  const std::optional<int> count = in_100();
  return count ? fmt::format("{}, odds {} in 100", name_of(verdict), *count)
               : std::string(name_of(verdict));
}

Odds odds_of(Nanoseconds change, double error, Nanoseconds step, bool fits) {
  const auto by = static_cast<double>(change);
  Odds out;
  out.probability = error > 0    ? std::erfc(by / error / std::numbers::sqrt2) / 2
                    : change < 0 ? 1
                    : change > 0 ? 0
                                 : 0.5;
  const bool certain = std::abs(by) > kQuantile99 * error;
  const bool counts = std::abs(by) > kLeastDifference * static_cast<double>(step);
  out.verdict = !fits        ? Verdict::kTooLarge
                : !counts    ? Verdict::kNoDifference
                : change < 0 ? certain ? Verdict::kPays : Verdict::kProbablyPays
                : certain    ? Verdict::kLoses
                             : Verdict::kProbablyLoses;
  return out;
}

bool Advice::is_uncertain() const {
  return !changes.empty() &&
         std::abs(baseline.simulated - baseline.measured) > -changes.front().change;
}

Advice advise(const std::shared_ptr<const RecordedRun>& run,
              const analysis::Analysis& analysis,
              const AdviseOptions& options) {
  Advice out = Adviser(run, options).take();
  out.waste = waste_of(analysis);
  return out;
}

}  // namespace shardlens::sim
