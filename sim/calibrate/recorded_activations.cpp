#include "sim/calibrate/recorded_activations.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/json/json_values.h"
#include "sim/calibrate/unit_of_module.h"

namespace shardlens::sim {
namespace {

using plan::Phase;

struct Kept {                          // what a module keeps
  std::optional<uint32_t> checkpoint;  // the checkpointed module that it is in
  Bytes saved = 0, recomputed = 0;
};

// Operators of forward of one unit, one after the other.
struct ForwardRun {
  UnitId unit = 0;
  uint32_t end = 0;                // its last operator, which all of `backward` differentiate
  std::vector<uint32_t> backward;  // in order
  std::optional<uint32_t> again;   // the last operator that runs again before `backward` ends
  std::vector<Kept> kept;          // in the order of forward
};

// The runs that have a backward.
std::vector<ForwardRun> forward_runs(const plan::Workload& workload) {
  std::map<uint32_t, std::vector<uint32_t>> backward;  // by the forward operator
  for (uint32_t i = 0; i < workload.operators.size(); ++i) {
    const plan::Operator& op = workload.operators[i];
    if (op.phase == Phase::kBackward && op.forward >= 0) {
      backward[static_cast<uint32_t>(op.forward)].push_back(i);
    }
  }
  std::vector<ForwardRun> out;
  for (auto& [end, operators] : backward) {
    out.push_back({workload.operators[end].unit, end, std::move(operators), std::nullopt, {}});
  }
  // What runs again is for the backward that follows it.
  std::map<uint32_t, ForwardRun*> of_end;
  for (ForwardRun& run : out) {
    of_end[run.end] = &run;
  }
  std::optional<uint32_t> again;
  for (uint32_t i = 0; i < workload.operators.size(); ++i) {
    const plan::Operator& op = workload.operators[i];
    if (op.phase == Phase::kRecompute) {
      again = i;
    } else if (op.phase == Phase::kBackward && op.forward >= 0 && again) {
      of_end.at(static_cast<uint32_t>(op.forward))->again = std::exchange(again, std::nullopt);
    }
  }
  return out;
}

// A part of a run whose backward is its own.
struct RunPart {
  uint32_t end = 0;  // its last operator of forward
  std::vector<uint32_t> backward;
  std::optional<uint32_t> again;
  Bytes saved = 0, recomputed = 0;
};

// The part of each checkpointed module in the run, in the order of their backward; before them what
// backward does before the first of them runs again. Empty if they cannot be told apart.
std::vector<RunPart> checkpointed_parts(const plan::Workload& workload, const ForwardRun& run) {
  const std::vector<plan::Operator>& all = workload.operators;
  const auto repeats = [&all](uint32_t i) { return all[i].phase == Phase::kRecompute; };
  uint32_t begin = run.backward.front();
  while (begin > 0 && repeats(begin - 1)) {
    --begin;
  }
  std::vector<RunPart> out;
  uint32_t after = run.end + 1;  // the first operator of forward of the part before, if it is known
  for (uint32_t i = begin; i <= run.backward.back(); ++i) {
    if (repeats(i)) {
      uint32_t first = after, last = 0;
      for (bool more = true; more; i += more ? 1 : 0) {
        first = std::min(first, static_cast<uint32_t>(all[i].forward));
        last = std::max(last, static_cast<uint32_t>(all[i].forward));
        more = repeats(i + 1);
      }
      // A checkpoint stops early, so the last one that it repeats is not the last of its module.
      const uint32_t end = out.empty() || out.back().again ? after - 1 : last;
      if (first >= after || end >= after || all[end].phase != Phase::kForward ||
          all[end].unit != all[run.end].unit) {
        return {};
      }
      out.push_back({.end = end, .again = i});
      after = first;
    } else if (all[i].phase == Phase::kBackward &&
               all[i].forward == static_cast<int32_t>(run.end)) {
      if (out.empty()) {
        out.push_back({.end = run.end});
      }
      out.back().backward.push_back(i);
    }
  }
  const bool each =
      std::ranges::none_of(out, [](const RunPart& part) { return part.backward.empty(); });
  return each ? out : std::vector<RunPart>();
}

// The parts of a run: those of its checkpointed modules, if each of them runs again before a
// backward of its own; otherwise the whole run.
std::vector<RunPart> parts_of(const plan::Workload& workload, const ForwardRun& run) {
  RunPart whole{.end = run.end, .backward = run.backward, .again = run.again};
  std::set<uint32_t> checkpoints;
  for (const Kept& each : run.kept) {
    whole.saved += each.saved;
    whole.recomputed += each.recomputed;
    if (each.checkpoint) {
      checkpoints.insert(*each.checkpoint);
    }
  }
  std::vector<RunPart> out = checkpointed_parts(workload, run);
  const size_t before = out.empty() || out.front().again ? 0 : 1;
  if (checkpoints.empty() || out.size() != checkpoints.size() + before) {
    return {std::move(whole)};
  }
  // What a module outside of checkpoints keeps belongs to the part after it.
  size_t part = 0;
  for (auto each = run.kept.rbegin(); each != run.kept.rend(); ++each) {
    if (each->checkpoint) {
      const auto later =
          std::distance(checkpoints.upper_bound(*each->checkpoint), checkpoints.end());
      part = before + static_cast<size_t>(later);
    }
    out[part].saved += each->saved;
    out[part].recomputed += each->recomputed;
  }
  return out;
}

// Writes what is saved, saved again and freed into the operators of the part.
void place(const RunPart& part, std::vector<plan::Operator>& operators) {
  constexpr size_t kSteps = 3;  // in which it is freed
  operators[part.end].saved = part.saved;
  const size_t count = part.backward.size();
  if (part.again) {
    operators[*part.again].saved = part.recomputed;
    operators[*part.again].forward = static_cast<int32_t>(part.end);
  }
  for (size_t i = 0; i < count; ++i) {
    plan::Operator& op = operators[part.backward[i]];
    op.forward = static_cast<int32_t>(part.end);
    if (!part.again) {
      op.scratch = part.recomputed / static_cast<Bytes>(count) * static_cast<Bytes>(count - i);
    }
  }
  const Bytes freed = part.again && part.recomputed > 0 ? part.recomputed : part.saved;
  for (size_t step = 1; step < kSteps && count >= kSteps; ++step) {
    operators[part.backward[count * step / kSteps - 1]].frees = freed / static_cast<Bytes>(kSteps);
  }
}

// Finds the run of each amount, going through both in order.
class Placing {
 public:
  Placing(std::vector<ForwardRun>& runs,
          const std::vector<UnitId>& units,
          const plan::ResolvedPlan& plan)
      : runs_(runs), units_(units), plan_(plan) {}

  void add(size_t i, const RecordedActivation& amount) {
    const size_t own = next_run(units_[i], at_);
    const auto other = std::find_if(units_.begin() + static_cast<std::ptrdiff_t>(i), units_.end(),
                                    [&](UnitId unit) { return unit != units_[i]; });
    const size_t following =
        other == units_.end() ? runs_.size() : next_run(*other, at_ + (began_ ? 1 : 0));
    // A reentrant checkpoint's amounts come in the order of backward.
    ForwardRun& again = own < runs_.size() ? runs_[own] : latest(units_[i]);
    ForwardRun& keeps = own > following       ? runs_[following]
                        : own == runs_.size() ? latest(units_[i])
                                              : runs_[own];
    if (own <= following && own < runs_.size()) {
      at_ = own;
      began_ = true;
    }
    const std::optional<uint32_t> checkpoint = checkpoint_of(amount.module);
    if (amount.saved > 0) {
      keeps.kept.push_back({checkpoint, amount.saved, 0});
    }
    if (amount.recomputed > 0) {
      again.kept.push_back({checkpoint, 0, amount.recomputed});
    }
  }

 private:
  [[nodiscard]] size_t next_run(UnitId unit, size_t from) const {
    const auto found = std::find_if(runs_.begin() + static_cast<std::ptrdiff_t>(from), runs_.end(),
                                    [unit](const ForwardRun& run) { return run.unit == unit; });
    return static_cast<size_t>(found - runs_.begin());
  }
  [[nodiscard]] ForwardRun& latest(UnitId unit) {
    const auto found = std::find_if(runs_.rbegin(), runs_.rend(),
                                    [unit](const ForwardRun& run) { return run.unit == unit; });
    return found == runs_.rend() ? runs_[at_] : *found;
  }
  // The checkpointed module that the module is, or is in.
  [[nodiscard]] std::optional<uint32_t> checkpoint_of(const std::string& module) const {
    for (const uint32_t each : plan_.checkpointed_modules) {
      const std::string& fqn = plan_.tree.modules[each].fqn;
      if (module == fqn || module.starts_with(fqn + ".")) {
        return each;
      }
    }
    return std::nullopt;
  }

  std::vector<ForwardRun>& runs_;
  const std::vector<UnitId>& units_;
  const plan::ResolvedPlan& plan_;
  size_t at_ = 0;       // the run of the latest amount
  bool began_ = false;  // there has been one
};

}  // namespace

std::vector<RecordedActivation> recorded_activations(const std::string& run_json) {
  std::vector<RecordedActivation> out;
  const nlohmann::json run = nlohmann::json::parse(run_json, nullptr, false);
  const auto rows = run.is_object() ? run.find("activations") : run.end();
  if (!run.is_object() || rows == run.end() || !rows->is_array()) {
    return out;
  }
  Bytes left = plan::kMostOfOperator;  // sums fit in 64 bits
  for (const nlohmann::json& row : *rows) {
    const auto bytes = [&row](const char* key) {
      const auto found = row.find(key);
      return found == row.end() ? 0 : plan::integer_of(*found).value_or(0);
    };
    if (!row.is_object() || !row.contains("module") || !row["module"].is_string()) {
      return {};
    }
    RecordedActivation each{row["module"].get<std::string>(), bytes("saved"), bytes("recomputed")};
    if (each.saved < 0 || each.recomputed < 0 || each.saved > left ||
        each.recomputed > left - each.saved) {
      return {};
    }
    left -= each.saved + each.recomputed;
    out.push_back(std::move(each));
  }
  return out;
}

void add_activations(const std::vector<RecordedActivation>& activations,
                     const plan::ResolvedPlan& plan,
                     plan::Workload& workload) {
  std::vector<ForwardRun> runs = forward_runs(workload);
  if (runs.empty()) {
    return;
  }
  // Operators and modules are those of a unit, whichever group of its parameters they are counted
  // to.
  const auto first_group = [&plan](UnitId unit) { return unit - plan.units[unit].group; };
  for (ForwardRun& run : runs) {
    run.unit = first_group(run.unit);
  }
  const UnitOfModule unit_of(plan);
  std::vector<UnitId> units;
  for (const RecordedActivation& each : activations) {
    units.push_back(first_group(unit_of.of(each.module)));
  }
  Placing placing(runs, units, plan);
  for (size_t i = 0; i < activations.size(); ++i) {
    placing.add(i, activations[i]);
  }
  for (const ForwardRun& run : runs) {
    for (const RunPart& part : parts_of(workload, run)) {
      place(part, workload.operators);
    }
  }
}

void add_replicated_activations(const std::vector<RecordedActivation>& activations,
                                const std::vector<std::string>& checkpoints,
                                plan::Workload& workload) {
  std::vector<ForwardRun> runs = forward_runs(workload);
  Bytes all = 0;
  for (const RecordedActivation& each : activations) {
    all += each.saved + each.recomputed;
  }
  if (runs.empty() || all == 0) {
    return;
  }
  std::vector<Bytes> saved(runs.size(), 0);
  // By checkpointed module: what its activations up to a run are, by run.
  std::map<std::string, std::map<size_t, Bytes>> again;
  Bytes before = 0;
  for (const RecordedActivation& each : activations) {
    const auto share = static_cast<double>(before) / static_cast<double>(all);
    const auto at =
        std::min(runs.size() - 1, static_cast<size_t>(share * static_cast<double>(runs.size())));
    before += each.saved + each.recomputed;
    saved[at] += each.saved;
    if (each.recomputed > 0) {
      const auto around = std::ranges::find_if(checkpoints, [&each](const std::string& module) {
        return each.module == module || each.module.starts_with(module + ".");
      });
      again[around == checkpoints.end() ? each.module : *around][at] += each.recomputed;
    }
  }
  for (size_t at = 0; at < runs.size(); ++at) {
    workload.operators[runs[at].end].saved = saved[at];
  }
  for (const auto& [module, amounts] : again) {
    Bytes left = 0;
    for (size_t at = amounts.begin()->first; at <= amounts.rbegin()->first; ++at) {
      const auto own = amounts.find(at);
      left += own == amounts.end() ? 0 : own->second;
      for (const uint32_t op : runs[at].backward) {
        workload.operators[op].scratch = std::max(workload.operators[op].scratch, left);
      }
    }
  }
}

}  // namespace shardlens::sim
