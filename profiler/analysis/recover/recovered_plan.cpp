#include "profiler/analysis/recover/recovered_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/parameter_groups.h"
#include "profiler/analysis/exposed/frozen_views.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/analysis/recover/program_units.h"
#include "profiler/analysis/recover/recovered_checkpoints.h"
#include "profiler/analysis/recover/recovered_mesh.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {
namespace {

using plan::Reshard;
using trace::Severity;
using trace::Trace;

class Recovery {
 public:
  Recovery(const Trace& trace, const Timeline& timeline)
      : trace_(trace), timeline_(timeline), log_(timeline.fsdp), sections_(timeline.sections) {}

  RecoveredPlan run() {
    choose_pass();
    out_.source = log_.source;
    out_.names_units = log_.names_units;
    out_.diagnostics = log_.diagnostics;
    out_.plan.source = trace_.metadata.source;
    find_units();
    sizes();
    mesh();
    dialect();
    reshard();
    precision();
    forward_prefetch();
    backward_prefetch();
    checkpoints();
    out_.recorded = recover_workload(trace_, log_, sections_, pass_, order_, out_.diagnostics);
    return std::move(out_);
  }

 private:
  void note(std::string message, Severity severity = Severity::kNote) {
    trace::add_diagnostic(out_.diagnostics, severity, std::move(message));
  }

  [[nodiscard]] bool in_pass(const FsdpEvent& e) const { return e.pass == pass_; }

  // Chooses the last complete pass: a profile may end in the middle of a step.
  void choose_pass() {
    std::map<uint32_t, std::pair<std::set<uint32_t>, std::set<uint32_t>>>
        passes;  // units: forward, backward
    for (const FsdpEvent& e : log_.events) {
      auto& [forward, backward] = passes[e.pass];
      if (e.call == FsdpCall::kPreForward) {
        forward.insert(e.unit);
      } else if (e.call == FsdpCall::kPostBackward || e.call == FsdpCall::kReduce) {
        backward.insert(e.unit);
      }
    }
    std::optional<uint32_t> best;
    size_t most = 0;
    for (const auto& [pass, units] : passes) {
      const size_t both = std::min(units.first.size(), units.second.size());
      if (both > 0 && both >= most) {
        best = pass;
        most = both;
      }
    }
    if (!best) {
      throw InputError(trace_.metadata.source,
                       "no step in the trace runs forward and backward of an FSDP unit; record at "
                       "least one whole "
                       "training step");
    }
    pass_ = *best;
  }

  void find_units() {
    id_of_.assign(log_.units.size(), kNoUnit);
    const auto take = [&](uint32_t unit) {
      if (id_of_[unit] == kNoUnit) {
        id_of_[unit] = static_cast<uint32_t>(order_.size());
        order_.push_back(unit);
        out_.units.push_back(
            {log_.units[unit].fqn, -1, 0, std::nullopt, std::nullopt, std::nullopt});
      }
    };
    take(log_.unit_id(""));
    id_of_.resize(log_.units.size(), kNoUnit);
    for (const FsdpEvent& e : log_.events) {
      if (in_pass(e) && e.call == FsdpCall::kPreForward) {
        take(e.unit);
      }
    }
  }

  RecoveredUnit* unit(uint32_t log_unit) {
    return id_of_[log_unit] == kNoUnit ? nullptr : &out_.units[id_of_[log_unit]];
  }

  // The list forms of c10d's calls do not record their dtype. The annotations of Gloo for these
  // calls do, in the same order.
  void find_annotated_dtypes() {
    std::vector<const trace::Event*> calls, annotations;
    for (const trace::Event& event : trace_.events) {
      const std::string_view name = trace_.name(event);
      if (event.phase != trace::EventPhase::kComplete || !parse_collective(name)) {
        continue;
      }
      if (event.category == trace::Category::kCpuOp && name.starts_with("c10d::")) {
        calls.push_back(&event);
      } else if (event.category == trace::Category::kUserAnnotation && name.starts_with("gloo:")) {
        annotations.push_back(&event);
      }
    }
    if (calls.size() != annotations.size()) {
      return;
    }
    const auto by_start = [](const trace::Event* a, const trace::Event* b) {
      return a->start < b->start;
    };
    std::stable_sort(calls.begin(), calls.end(), by_start);
    std::stable_sort(annotations.begin(), annotations.end(), by_start);
    for (size_t i = 0; i < calls.size(); ++i) {
      annotated_[calls[i]] = call_size(trace_, *annotations[i]).dtype;
    }
  }

  // Reads sizes and dtypes from c10d's calls within unshards and reductions.
  void sizes() {
    find_annotated_dtypes();
    for (const trace::Event& event : trace_.events) {
      const bool call =
          event.phase == trace::EventPhase::kComplete &&
          (trace_.name(event).starts_with("c10d::") || trace_.name(event) == "record_param_comms");
      const FsdpEvent* within = call ? log_.collective_at(event.track, event.start) : nullptr;
      const auto kind = parse_collective(call_name(event));
      if (within == nullptr || !kind || within->pass != pass_ || unit(within->unit) == nullptr) {
        continue;
      }
      RecoveredUnit& u = *unit(within->unit);
      CallSize size = call_size(trace_, event);
      if (const auto found = annotated_.find(&event); !size.dtype && found != annotated_.end()) {
        size.dtype = found->second;
      }
      if (kind == CollectiveKind::kAllGather) {
        u.param_dtype = size.dtype ? size.dtype : u.param_dtype;
        if (size.in > 0 && size.out > 0) {
          (within->backward ? backward_ranks_ : forward_ranks_)[within->unit] = size.out / size.in;
        }
        if (!within->backward || u.padded_numel < 0) {
          shard_numel_[within->unit] = size.in;
          u.padded_numel = std::max(u.padded_numel, size.out);
        }
      } else if (kind == CollectiveKind::kReduceScatter) {
        u.reduce_dtype = size.dtype ? size.dtype : u.reduce_dtype;
        if (size.in > 0 && size.out > 0) {
          reduce_ranks_ = size.in / size.out;
          reduced_ranks_[within->unit] = reduce_ranks_;
          u.padded_numel = std::max(u.padded_numel, size.in);
        }
      } else if (kind == CollectiveKind::kAllReduce) {
        all_reduces_ = true;
        if (!u.reduce_dtype) {
          u.reduce_dtype = size.dtype;
        }
      }
    }
    for (const auto& [log_unit, ranks] : forward_ranks_) {
      reduce_ranks_ = std::max(reduce_ranks_, ranks);
    }
    int64_t unknown = 0;
    for (RecoveredUnit& u : out_.units) {
      const auto shard = shard_numel_.find(order_[static_cast<size_t>(&u - out_.units.data())]);
      if (u.padded_numel < 0 && shard != shard_numel_.end() && shard->second > 0 &&
          reduce_ranks_ > 0) {
        // List forms do not record their output.
        const auto own = reduced_ranks_.find(order_[static_cast<size_t>(&u - out_.units.data())]);
        u.padded_numel =
            shard->second * (own == reduced_ranks_.end() ? reduce_ranks_ : own->second);
      }
      unknown += u.padded_numel < 0 && shard != shard_numel_.end() ? 1 : 0;
      u.gathered_bytes =
          u.padded_numel > 0 && u.param_dtype ? u.padded_numel * size_of(*u.param_dtype) : 0;
    }
    if (unknown > 0) {
      note(
          "sizes of collectives are not in the trace (record_shapes=True records them): bytes, "
          "mesh and precision are not known",
          Severity::kWarning);
    }
  }

  [[nodiscard]] std::string_view call_name(const trace::Event& event) const {
    const trace::CollectiveArgs* args = trace_.collective(event);
    return args != nullptr && args->collective != trace::kEmptyString
               ? trace_.strings.view(args->collective)
               : trace_.name(event);
  }

  // The ranks over which each unit gathered, by the sizes of the calls and the groups of the trace.
  [[nodiscard]] std::vector<UnitRanks> ranks_of_units() const {
    std::map<std::string, std::vector<int64_t>> members;
    for (const Collective& each : timeline_.collectives) {
      if (each.unit && each.part == UnitPart::kAllGatherForward &&
          each.listed_group != trace::kNoIndex) {
        members[timeline_.units[*each.unit]] = trace_.metadata.groups[each.listed_group].ranks;
      }
    }
    std::vector<UnitRanks> out;
    for (size_t i = 0; i < order_.size(); ++i) {
      UnitRanks& unit = out.emplace_back();
      unit.fqn = out_.units[i].fqn;
      unit.members = members[unit.fqn];
      unit.count = std::ssize(unit.members);
      for (const auto* ranks : {&reduced_ranks_, &forward_ranks_}) {
        if (const auto found = ranks->find(order_[i]); found != ranks->end()) {
          unit.count = found->second;
        }
      }
    }
    return out;
  }

  void mesh() {
    const bool gathers =
        std::any_of(log_.events.begin(), log_.events.end(),
                    [](const FsdpEvent& e) { return e.call == FsdpCall::kUnshard; });
    RecoveredMesh found = recover_mesh(trace_.metadata, ranks_of_units(),
                                       reduce_ranks_ > 0          ? reduce_ranks_
                                       : !gathers && all_reduces_ ? 1
                                                                  : 0);
    out_.plan.mesh = found.sizes;
    out_.world_size = found.world_size;
    out_.shard = found.shard;
    out_.axes = std::move(found.axes);
    expert_ = std::move(found.expert);
    check_groups();
    if (!out_.axes.empty()) {
      note(fmt::format("{}: sizes are those of a rank's own part of the model",
                       trace::words_of(out_.axes)));
    }
    for (const trace::Diagnostic& each : found.diagnostics) {
      trace::add_diagnostic(out_.diagnostics, each.severity, each.message, each.count);
    }
  }

  // A unit's second group is that of its experts. Which parameters these are is not in a trace: the
  // plan's default names them.
  void check_groups() {
    size_t groups = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      const std::string& name = out_.units[i].fqn;
      if (!plan::is_expert_group(name)) {
        continue;
      }
      ++groups;
      if (!expert_[i]) {
        throw InputError(
            trace_.metadata.source,
            fmt::format("'{}' has two groups of parameters, and the ranks of the trace do not say "
                        "how experts are divided; expected traces with the ranks of process groups",
                        plan::unit_of_group(name)));
      }
    }
    if (groups > 0) {
      note(
          fmt::format("{} units have a second group of parameters: the plan takes those of "
                      "modules named 'experts' for it",
                      groups));
    }
  }

  void dialect() {
    const bool copies_out =
        std::any_of(log_.events.begin(), log_.events.end(),
                    [](const FsdpEvent& e) { return e.call == FsdpCall::kCopyOut; });
    out_.plan.dialect =
        log_.source == FsdpSource::kFsdp1 ? plan::Dialect::kFsdp1 : plan::Dialect::kFsdp2;
    out_.plan.layout = copies_out ? plan::Layout::kPerParameter : plan::Layout::kFlat;
    if (log_.source == FsdpSource::kFsdp1) {
      out_.plan.limit_all_gathers = !log_.limiter_waits.empty();
    }
    if (log_.source == FsdpSource::kShardlens) {
      note("traces of Shardlens do not contain the dialect (plan.json does): fsdp2 is assumed");
    }
    if (log_.source == FsdpSource::kProgram) {
      note(
          "the program gathers its parameters itself; the plan is that of FSDP2 with the same "
          "gathers and reductions, its units what one gather moves");
    }
  }

  void reshard() {
    std::set<uint32_t> again, finished;
    for (const FsdpEvent& e : log_.events) {
      if (in_pass(e) && e.call == FsdpCall::kUnshard && e.backward) {
        again.insert(e.unit);
      } else if (in_pass(e) && (e.call == FsdpCall::kPostBackward || e.call == FsdpCall::kReduce)) {
        finished.insert(e.unit);
      }
    }
    size_t yes = 0, no = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      RecoveredUnit& u = out_.units[i];
      if (finished.contains(order_[i]) && shard_numel_.contains(order_[i])) {
        u.resharded = again.contains(order_[i]);
        if (i > 0) {
          ++(*u.resharded ? yes : no);
        }
      }
    }
    const std::optional<bool> root = out_.units.front().resharded;
    plan::Plan& p = out_.plan;
    if (p.dialect == plan::Dialect::kFsdp1) {
      p.reshard_after_forward.kind = yes == 0 && no > 0 ? Reshard::Kind::kNo : Reshard::Kind::kAuto;
    } else if (no == 0 && yes > 0) {
      p.reshard_after_forward.kind =
          root.value_or(false) ? Reshard::Kind::kYes : Reshard::Kind::kAuto;
    } else if (yes == 0 && no > 0 && !root.value_or(false)) {
      p.reshard_after_forward.kind = Reshard::Kind::kNo;
    }
    for (size_t i = 0; i < order_.size(); ++i) {
      if (plan::is_expert_group(out_.units[i].fqn)) {
        continue;  // with its unit
      }
      plan::UnitEntry entry;
      entry.globs = globs_of(out_.units[i].fqn);
      entry.grouped = entry.globs.size() > 1;
      const std::optional<bool> found = out_.units[i].resharded;
      const bool expected = p.reshard_after_forward.kind == Reshard::Kind::kYes ||
                            (p.reshard_after_forward.kind == Reshard::Kind::kAuto && i > 0);
      const int64_t part = found.value_or(false) ? sub_mesh(order_[i]) : 0;
      if (part > 0) {
        entry.reshard_after_forward = Reshard{Reshard::Kind::kSubMesh, part};
      } else if (found && *found != expected && p.dialect == plan::Dialect::kFsdp2) {
        entry.reshard_after_forward = Reshard{*found ? Reshard::Kind::kYes : Reshard::Kind::kNo, 0};
      }
      if (expert_[i]) {
        entry.groups.push_back({.expert = true});
      }
      entries_.push_back(std::move(entry));
    }
    // The usual order in a plan: blocks first, the root last.
    std::rotate(entries_.begin(), entries_.begin() + 1, entries_.end());
    p.units = entries_;
  }

  // Number of ranks that backward gathers from, if fewer than in forward; otherwise 0.
  [[nodiscard]] int64_t sub_mesh(uint32_t log_unit) const {
    const auto forward = forward_ranks_.find(log_unit), backward = backward_ranks_.find(log_unit);
    const bool fewer = forward != forward_ranks_.end() && backward != backward_ranks_.end() &&
                       backward->second < forward->second && backward->second > 1;
    return fewer ? backward->second : 0;
  }

  static std::vector<std::string> globs_of(const std::string& fqn) {
    std::vector<std::string> globs;
    for (size_t start = 0;;) {
      const size_t end = fqn.find(", ", start);
      globs.push_back(fqn.substr(start, end - start));
      if (end == std::string::npos) {
        return globs;
      }
      start = end + 2;
    }
  }

  void precision() {
    std::set<std::pair<std::optional<DType>, std::optional<DType>>> seen;
    for (const RecoveredUnit& u : out_.units) {
      if (u.param_dtype || u.reduce_dtype) {
        seen.insert({u.param_dtype, u.reduce_dtype});
      }
    }
    if (seen.size() > 1) {
      note("units differ in precision; the plan has only one of the precisions",
           Severity::kWarning);
    }
    if (seen.empty()) {
      return;
    }
    const auto [param, reduce] = *seen.begin();
    if (param && param != DType::kF32) {
      out_.plan.mixed_precision.param_dtype = param;
      note(
          "a model whose parameters have the gathered dtype looks the same in a trace as mixed "
          "precision");
    }
    if (reduce && reduce != param.value_or(DType::kF32)) {
      out_.plan.mixed_precision.reduce_dtype = reduce;
    }
  }

  void forward_prefetch() {
    if (out_.plan.dialect == plan::Dialect::kFsdp1) {
      out_.plan.forward_prefetch = std::any_of(
          log_.events.begin(), log_.events.end(),
          [](const FsdpEvent& e) { return e.unshard_by == UnshardBy::kForwardPrefetch; });
      return;
    }
    out_.plan.forward_prefetch_lists = lists(false, false);
  }

  [[nodiscard]] std::string unit_name(uint32_t log_unit) const {
    return std::string(plan::unit_of_group(log_.units[log_unit].fqn));
  }

  // Prefetches of the pass by hook: those requested, from the ranges (PyTorch), or those performed
  // (Shardlens).
  [[nodiscard]] plan::PrefetchLists lists(bool backward, bool only_explicit) const {
    plan::PrefetchLists out;
    if (log_.source == FsdpSource::kShardlens) {
      for (const FsdpEvent& e : log_.events) {
        if (in_pass(e) && e.call == FsdpCall::kUnshard && e.backward == backward &&
            e.unit != e.hook_unit) {
          out[log_.units[e.hook_unit].fqn].push_back(log_.units[e.unit].fqn);
        }
      }
      return out;
    }
    for (const PrefetchRequest& r : log_.prefetches) {
      if (r.pass == pass_ && r.backward == backward && (r.is_explicit || !only_explicit)) {
        // One range for each group of the target, in a hook of the unit's last group.
        std::vector<std::string>& targets = out[unit_name(r.hook_unit)];
        const std::string target = unit_name(r.target);
        if (targets.empty() || targets.back() != target) {
          targets.push_back(target);
        }
      }
    }
    return out;
  }

  // The prefetches that FSDP2 makes by default: the unit whose forward ended just before.
  [[nodiscard]] plan::PrefetchLists default_lists() const {
    plan::PrefetchLists out;
    std::vector<uint32_t> ended;
    std::set<uint32_t> again;
    for (const FsdpEvent& e : log_.events) {
      if (in_pass(e) && e.call == FsdpCall::kPostForward && !e.backward) {
        ended.push_back(e.unit);
      } else if (in_pass(e) && e.call == FsdpCall::kUnshard && e.backward) {
        again.insert(e.unit);
      }
    }
    for (size_t i = 1; i < ended.size(); ++i) {
      if (again.contains(ended[i - 1])) {
        out[log_.units[ended[i]].fqn].push_back(log_.units[ended[i - 1]].fqn);
      }
    }
    return out;
  }

  void backward_prefetch() {
    plan::Plan& p = out_.plan;
    int own = 0, before = 0, after = 0;  // all-gathers of backward
    for (const FsdpEvent& e : log_.events) {
      if (in_pass(e) && e.call == FsdpCall::kUnshard && e.backward) {
        ++(e.unshard_by == UnshardBy::kOwn ? own : e.after_backward ? after : before);
      }
    }
    if (own + before + after == 0 && log_.source == FsdpSource::kProgram) {
      // It would gather again as it gathers now.
      p.backward_prefetch = p.forward_prefetch_lists.empty() ? plan::BackwardPrefetch::kNone
                                                             : plan::BackwardPrefetch::kPre;
      return;
    }
    if (own + before + after < 2 - (before + after > 0 ? 1 : 0)) {
      note("backward gathers too few units to infer backward_prefetch: 'pre' is assumed");
      return;
    }
    if (p.dialect == plan::Dialect::kFsdp1) {
      p.backward_prefetch = after > 0    ? plan::BackwardPrefetch::kPost
                            : before > 0 ? plan::BackwardPrefetch::kPre
                                         : plan::BackwardPrefetch::kNone;
      return;
    }
    if (before == 0) {
      p.backward_prefetch = plan::BackwardPrefetch::kNone;
      return;
    }
    const plan::PrefetchLists done = lists(true, true);
    if (log_.source != FsdpSource::kShardlens || done != default_lists()) {
      p.backward_prefetch_lists = done;
    }
  }

  void checkpoints() {
    const RecoveredCheckpoints found = recover_checkpoints(trace_, log_, sections_, pass_);
    out_.plan.activation_checkpointing = found.modules;
    for (const uint32_t each : found.units) {
      for (std::string& module : globs_of(log_.units[each].fqn)) {
        out_.plan.activation_checkpointing.push_back(std::move(module));
      }
    }
    if (!found.units.empty() && !found.numbered) {
      note(
          "operators have no arguments in the trace, so only the units that run again in backward "
          "are known: the checkpoints may be those of modules around them, whose other operators "
          "run again too",
          Severity::kWarning);
    }
    if (!found.parts.empty()) {
      note(fmt::format("backward runs parts of {} units' forwards again: modules inside them are "
                       "checkpointed, which the trace does not name",
                       found.parts.size()),
           Severity::kWarning);
    }
  }

  const Trace& trace_;
  const Timeline& timeline_;
  FsdpLog log_;
  const Sections& sections_;
  RecoveredPlan out_;
  uint32_t pass_ = 0;
  std::vector<uint32_t> order_, id_of_;  // from ids to units of the log, and back
  std::vector<plan::UnitEntry> entries_;
  // By unit of the log.
  std::map<uint32_t, int64_t> forward_ranks_, backward_ranks_, reduced_ranks_, shard_numel_;
  std::map<const trace::Event*, std::optional<DType>> annotated_;  // by c10d call
  int64_t reduce_ranks_ = 0;
  bool all_reduces_ = false;
  std::vector<bool> expert_;  // by unit: on the experts' mesh
};

// Why there is no plan in a trace without ranges of FSDP or DDP, and what to do.
std::string no_ranges(const Trace& trace, const Timeline& timeline) {
  if (!trace.sharded_parameters.empty() && !timeline.collectives.empty()) {
    return fmt::format(
        "no ranges of FSDP in the trace, and its collectives do not fit the order of the {} "
        "sharded "
        "parameters that no fully_shard gathers, so no plan describes them, as under tensor "
        "parallelism without FSDP: use `shardlens analyze`",
        trace.sharded_parameters.size());
  }
  const std::string looked_for =
      "looked for user_annotation events named 'FSDP::…' (PyTorch FSDP2, Shardlens), "
      "'FullyShardedDataParallel.…' (PyTorch FSDP1) and 'DistributedDataParallel.forward', and for "
      "'torch::distributed::reducer::…' (DDP)";
  if (timeline.collectives.empty()) {
    return fmt::format(
        "no ranges of FSDP or DDP in the trace; {}; record the training loop with torch.profiler",
        looked_for);
  }
  return fmt::format(
      "no ranges of FSDP or DDP in the trace, which has {} collectives; {}; if the program issues "
      "its collectives itself, as with SimpleFSDP, record it with shardlens.record, which writes "
      "the order of its parameters{}; under tensor parallelism without FSDP no plan describes "
      "them: "
      "use `shardlens analyze`; otherwise record the host, too (ProfilerActivity.CPU)",
      timeline.collectives.size(), looked_for,
      timeline.captured ? ", and a step before its CUDA graphs are captured" : "");
}

}  // namespace

RecoveredPlan recover_plan(const Trace& trace) {
  const Timeline timeline = make_timeline(trace);
  return recover_plan(trace, timeline,
                      timeline.fsdp.source == FsdpSource::kNone ? read_ddp_log(trace) : DdpLog());
}

RecoveredPlan recover_plan(const Trace& trace, const Timeline& timeline, const DdpLog& ddp) {
  if (timeline.fsdp.source == FsdpSource::kNone) {
    if (!ddp.passes.empty()) {
      return recover_ddp(trace, ddp);
    }
    if (timeline.rewritten) {
      const Timeline program = with_program_units(trace, timeline);
      return Recovery(trace, program).run();
    }
    throw InputError(trace.metadata.source, no_ranges(trace, timeline));
  }
  RecoveredPlan out = Recovery(trace, timeline).run();
  if (find_frozen_views(trace, timeline, Partition(timeline), timeline.span)) {
    out.plan.views = plan::Views::kFrozen;
  }
  return out;
}

}  // namespace shardlens::analysis
