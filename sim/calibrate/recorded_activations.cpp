#include "sim/calibrate/recorded_activations.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/json/json_values.h"
#include "sim/calibrate/unit_of_module.h"

namespace shardlens::sim {
namespace {

using plan::Phase;

// Operators of forward of one unit, one after the other.
struct ForwardRun {
  UnitId unit = 0;
  uint32_t end = 0;                // its last operator, which all of `backward` differentiate
  std::vector<uint32_t> backward;  // in order
  std::optional<uint32_t> again;   // the last operator that runs again before `backward` ends
  Bytes saved = 0, recomputed = 0;
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
    out.push_back({workload.operators[end].unit, end, std::move(operators), std::nullopt});
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

// Finds the run of each amount, going through both in order.
class Placing {
 public:
  Placing(std::vector<ForwardRun>& runs, const std::vector<UnitId>& units)
      : runs_(runs), units_(units) {}

  void add(size_t i, const RecordedActivation& amount) {
    const size_t own = next_run(units_[i], at_);
    const auto other = std::find_if(units_.begin() + static_cast<std::ptrdiff_t>(i), units_.end(),
                                    [&](UnitId unit) { return unit != units_[i]; });
    const size_t following =
        other == units_.end() ? runs_.size() : next_run(*other, at_ + (began_ ? 1 : 0));
    // A reentrant checkpoint's amounts come in the order of backward.
    (own < runs_.size() ? runs_[own] : latest(units_[i])).recomputed += amount.recomputed;
    if (own > following) {
      runs_[following].saved += amount.saved;
    } else if (own == runs_.size()) {
      latest(units_[i]).saved += amount.saved;
    } else {
      runs_[own].saved += amount.saved;
      at_ = own;
      began_ = true;
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

  std::vector<ForwardRun>& runs_;
  const std::vector<UnitId>& units_;
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
  Placing placing(runs, units);
  for (size_t i = 0; i < activations.size(); ++i) {
    placing.add(i, activations[i]);
  }
  constexpr size_t kParts = 3;
  for (const ForwardRun& run : runs) {
    workload.operators[run.end].saved = run.saved;
    const size_t count = run.backward.size();
    if (run.again) {
      workload.operators[*run.again].saved = run.recomputed;
      workload.operators[*run.again].forward = static_cast<int32_t>(run.end);
    }
    for (size_t i = 0; i < count && !run.again; ++i) {
      const auto after = static_cast<Bytes>(count - i);
      workload.operators[run.backward[i]].scratch =
          run.recomputed / static_cast<Bytes>(count) * after;
    }
    const Bytes freed = run.again && run.recomputed > 0 ? run.recomputed : run.saved;
    for (size_t part = 1; part < kParts && count >= kParts; ++part) {
      workload.operators[run.backward[count * part / kParts - 1]].frees =
          freed / static_cast<Bytes>(kParts);
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
  // By checkpointed module: what its activations up to a run are, by run.
  std::map<std::string, std::map<size_t, Bytes>> again;
  Bytes before = 0;
  for (const RecordedActivation& each : activations) {
    const auto share = static_cast<double>(before) / static_cast<double>(all);
    const auto at =
        std::min(runs.size() - 1, static_cast<size_t>(share * static_cast<double>(runs.size())));
    before += each.saved + each.recomputed;
    runs[at].saved += each.saved;
    if (each.recomputed > 0) {
      const auto around = std::ranges::find_if(checkpoints, [&each](const std::string& module) {
        return each.module == module || each.module.starts_with(module + ".");
      });
      again[around == checkpoints.end() ? each.module : *around][at] += each.recomputed;
    }
  }
  for (const ForwardRun& run : runs) {
    workload.operators[run.end].saved = run.saved;
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
