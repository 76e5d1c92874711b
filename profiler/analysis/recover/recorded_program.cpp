#include "profiler/analysis/recover/recorded_program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/workload/differentiated.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/fsdp_log/joined_forwards.h"

namespace shardlens::analysis {
namespace {

using trace::Severity;
using trace::Trace;

std::string unit_words(const std::string& fqn) {
  return fqn.empty() ? "(root)" : fqn;
}

// The modules of a pass's forward, in order: (call, unit).
using ForwardCalls = std::vector<std::pair<FsdpCall, uint32_t>>;

struct ProgramPass {
  ForwardCalls forward;
  bool complete = false;  // has a backward
};

std::map<uint32_t, ProgramPass> program_passes(const FsdpLog& log) {
  std::map<uint32_t, ProgramPass> passes;
  for (const FsdpEvent& e : log.events) {
    ProgramPass& pass = passes[e.pass];
    const bool forward = e.call == FsdpCall::kPreForward || e.call == FsdpCall::kPostForward;
    if (forward && !e.backward) {
      pass.forward.emplace_back(e.call, e.unit);
    }
    pass.complete =
        pass.complete || e.call == FsdpCall::kPostBackward || e.call == FsdpCall::kReduce;
  }
  return passes;
}

// The recorder counts forwards, of which several may have one backward.
int64_t recorded_microbatches(const Trace& trace, const HostLog& host) {
  std::vector<Interval> steps;
  const auto is_step = [](std::string_view name) { return parse_profiler_step(name).has_value(); };
  host.lists.for_annotations_named(trace, is_step, [&](uint32_t i) {
    steps.push_back({trace.events[i].start, trace.events[i].end()});
  });
  return microbatches_of(training_passes(host.fsdp), steps);
}

// See recorded_pass().
uint32_t common_pass(const Trace& trace, const FsdpLog& log) {
  const std::map<uint32_t, ProgramPass> passes = program_passes(log);
  std::map<ForwardCalls, size_t> count;
  for (const auto& [number, pass] : passes) {
    count[pass.forward] += pass.complete && !pass.forward.empty() ? 1 : 0;
  }
  std::optional<uint32_t> best;
  size_t most = 1;
  for (const auto& [number, pass] : passes) {
    if (pass.complete && count[pass.forward] >= most) {
      best = number;
      most = count[pass.forward];
    }
  }
  if (!best) {
    throw InputError(trace.metadata.source,
                     "no step in the trace runs forward and backward of an FSDP unit; record at "
                     "least one whole training step");
  }
  return *best;
}

// Operators have no modules in a trace, only units. If parameters are frozen, the schedule asks
// which operators use trained ones: all of a unit that has any. Before the first inner unit the
// root runs only its embeddings.
class TrainedModules {
 public:
  explicit TrainedModules(const plan::ResolvedPlan& plan) {
    const std::vector<bool> differentiated = plan::differentiated_parameters(plan);
    for (const plan::Unit& unit : plan.units) {
      const std::string own =
          unit.modules.empty() ? "" : plan.tree.modules[unit.modules.front()].fqn;
      std::optional<std::string> embeds, other, frozen;
      for (const uint32_t parameter : unit.parameters) {
        const plan::Module& module = plan.tree.modules[plan.tree.parameters[parameter].module];
        const bool embedding = module.type.find("Embedding") != std::string::npos;
        if (differentiated[parameter]) {
          (embedding ? embeds : other) = module.fqn;
        } else if (embedding) {
          frozen = module.fqn;
        }
      }
      if (!other) {
        other = embeds;  // a tied head
      }
      embedding_.push_back(embeds ? *embeds : frozen.value_or(own));
      before_.push_back(embeds.value_or(own));
      any_.push_back(other.value_or(own));
    }
  }

  void name(plan::Workload& workload) const {
    bool inside = false;  // an inner unit has begun
    for (const plan::WorkloadItem& item : workload.order) {
      if (item.kind == plan::WorkloadItem::Kind::kHook) {
        const HookEvent& hook = workload.hooks[item.index];
        inside = inside || (hook.hook == Hook::kPreForward && hook.unit != 0);
        continue;
      }
      if (item.kind == plan::WorkloadItem::Kind::kCommunication) {
        continue;
      }
      plan::Operator& op = workload.operators[item.index];
      const bool first = op.unit == 0 && !inside;
      // On a CPU the innermost operator of an embedding is the selection of its rows.
      const bool embeds =
          op.kind == plan::OperatorKind::kEmbedding || op.name == "aten::index_select";
      op.module = (!first ? any_ : embeds ? embedding_ : before_).at(op.unit);
    }
  }

 private:
  // By unit: of embeddings, of other operators before the first inner unit, of all others.
  std::vector<std::string> embedding_, before_, any_;
};

bool has_graphs(const Trace& trace) {
  return std::ranges::any_of(trace.devices, [](const auto& args) { return args.graph_node > 0; });
}

}  // namespace

std::vector<uint32_t> log_units_of(const Trace& trace,
                                   const plan::ResolvedPlan& plan,
                                   FsdpLog& log) {
  std::vector<uint32_t> out;
  if (!log.names_units) {
    // FSDP1's units are "unit 1", "unit 2", … in the order of forward, which is that of the
    // modules in all models but those that call them in another order.
    const uint32_t root = log.unit_id("");
    for (uint32_t unit = 0; unit < log.units.size(); ++unit) {
      if (unit != root) {
        out.push_back(unit);
      }
    }
    out.insert(out.begin(), root);
    if (out.size() != plan.units.size()) {
      throw InputError(trace.metadata.source,
                       fmt::format("the trace has {} FSDP1 units, but plan.json has {}", out.size(),
                                   plan.units.size()));
    }
    return out;
  }
  std::map<std::string, uint32_t> by_name;
  for (uint32_t unit = 0; unit < log.units.size(); ++unit) {
    by_name.emplace(log.units[unit].fqn, unit);
  }
  std::set<std::string> known;
  for (const plan::Unit& unit : plan.units) {
    known.insert(unit.fqn);
    const auto found = by_name.find(unit.fqn);
    out.push_back(found != by_name.end() ? found->second : log.unit_id(unit.fqn));
  }
  for (const auto& [name, unit] : by_name) {
    if (!known.contains(name)) {
      throw InputError(
          trace.metadata.source,
          fmt::format("the trace has the unit {}, but plan.json has not: were both written by "
                      "the same run?",
                      unit_words(name)));
    }
  }
  return out;
}

RecoveredWorkload recorded_pass(const Trace& trace,
                                const HostLog& host,
                                const plan::ResolvedPlan& plan,
                                std::vector<trace::Diagnostic>& diagnostics) {
  FsdpLog log = host.fsdp;
  if (log.source == FsdpSource::kNone) {
    throw InputError(trace.metadata.source, "no ranges of FSDP in the trace");
  }
  const uint32_t pass = common_pass(trace, log);
  const std::vector<uint32_t> units = log_units_of(trace, plan, log);
  RecoveredWorkload out = recover_workload(trace, log, host.sections, pass, units, diagnostics);
  TrainedModules(plan).name(out.workload);
  return out;
}

const trace::PlannedInputs* plan_of(const trace::Run& run) {
  return run.planned ? &*run.planned : run.program ? &*run.program : nullptr;
}

bool lacks_planned(const trace::Run& run) {
  return run.program && !run.planned && !run.traces.empty();
}

std::optional<RecordedPass> find_planned(trace::Run& run, const HostLog& host) {
  std::optional<RecordedPass> pass;
  trace::PlannedInputs planned = *run.program;
  planned.recorded = true;
  try {
    const bool replicated = std::ranges::all_of(planned.plan.units, [](const plan::Unit& unit) {
      return unit.api == plan::Api::kReplicate || unit.parameters.empty();
    });
    // The order of DDP's all-reduces follows from the gradients, which have no names in a trace.
    if (!replicated) {
      pass.emplace();
      pass->recovered = recorded_pass(run.traces.front(), host, planned.plan, pass->diagnostics);
      planned.workload = pass->recovered.workload;
      planned.settings.accumulate = recorded_microbatches(run.traces.front(), host);
    }
    run.planned = std::move(planned);
  } catch (const Error& error) {
    run.plan_problem = error.what();
    // The collectives of CUDA graphs have the order of the plan's own modules.
    if (host.fsdp.source != FsdpSource::kNone || !has_graphs(run.traces.front())) {
      trace::add_diagnostic(run.diagnostics, Severity::kWarning,
                            fmt::format("the planned order is not known: {}", run.plan_problem));
    }
    pass.reset();
  }
  return pass;
}

trace::Run open_run(std::span<const std::filesystem::path> paths,
                    const trace::ReadOptions& options,
                    const std::function<void(trace::Run&)>& prepare) {
  trace::Run run = trace::Run::open(paths, options);
  if (prepare) {
    prepare(run);
  }
  if (lacks_planned(run)) {
    find_planned(run, read_host_log(run.traces.front()));
  }
  return run;
}

}  // namespace shardlens::analysis
