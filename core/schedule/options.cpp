// Makes the inputs of Schedule::make from a resolved plan.
#include <algorithm>

#include "core/schedule/schedule.h"

namespace shardlens::schedule {

namespace {

// All groups of the units in a prefetch list. Only the list of a unit's last group has any.
std::vector<UnitId> groups_of(const std::vector<UnitId>& list,
                              bool last,
                              const plan::ResolvedPlan& plan) {
  std::vector<UnitId> out;
  for (const UnitId unit : last ? list : std::vector<UnitId>{}) {
    for (uint32_t group = 0; group < plan.units[unit].groups; ++group) {
      out.push_back(unit + group);
    }
  }
  return out;
}

}  // namespace

std::vector<UnitSpec> unit_specs(const plan::ResolvedPlan& plan) {
  std::vector<UnitSpec> specs;
  specs.reserve(plan.units.size());
  const bool per_parameter = plan.copies_out();
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const plan::Unit& unit = plan.units[id];
    UnitSpec spec;
    spec.name = unit.fqn;
    spec.parent = unit.parent;
    spec.modules = static_cast<uint32_t>(unit.modules.size());
    spec.group = unit.group;
    spec.groups = unit.groups;
    // Parameters of replicate() units are not part of the schedule.
    spec.has_parameters = !unit.parameters.empty() && unit.api == plan::Api::kFullyShard;
    spec.trainable = !plan.is_frozen(id);
    spec.reshard_after_forward = unit.reshard_after_forward;
    spec.unshard_in_backward = unit.unshard_in_backward;
    spec.gather = unit.gather;
    spec.reduce = unit.reduce;
    spec.replicate = unit.replicate;
    spec.kept = unit.kept;
    if (spec.has_parameters) {
      spec.copy_in = per_parameter || plan.casts_parameters(id);
      spec.copy_out = per_parameter;
      spec.one_rank =
          plan.plan.dialect == plan::Dialect::kFsdp2 && plan.groups[unit.gather].size == 1;
      spec.reduce_cast = plan.reduce_dtype(id) != plan.param_dtype(id);
      spec.reduce_copy_in = per_parameter || spec.reduce_cast;
    }
    spec.cpu_offload = unit.cpu_offload;
    spec.optimizer_in_backward = unit.optimizer_in_backward;
    const plan::Unit& first = plan.units[id - unit.group];
    const bool last = unit.group + 1 == unit.groups;
    if (first.has_forward_prefetch_list) {
      spec.forward_prefetch = groups_of(first.forward_prefetch, last, plan);
    } else if (!last) {
      spec.forward_prefetch.emplace();  // a depth is that of the last group too
    }
    if (first.has_backward_prefetch_list) {
      spec.backward_prefetch = groups_of(first.backward_prefetch, last, plan);
      for (auto from = spec.backward_prefetch->begin(); from != spec.backward_prefetch->end();) {
        const auto to = from + plan.units[*from].groups;
        std::reverse(from, to);
        from = to;
      }
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

ScheduleOptions schedule_options(const plan::ResolvedPlan& plan, bool traced) {
  return ScheduleOptions{.dialect = plan.plan.dialect,
                         .layout = plan.plan.layout,
                         .backward_prefetch = plan.plan.backward_prefetch,
                         .forward_prefetch = plan.plan.forward_prefetch,
                         .limit_all_gathers = plan.plan.limit_all_gathers,
                         .shard = plan.most_shards(),
                         .replicate = plan.replicas(),
                         .finalization = plan.plan.backward_finalization,
                         .reduces_unused = plan.plan.reduce_scatter_unused_params,
                         .reduce_inputs = plan.plan.reduce_scatter_max_input_buffers,
                         .traced = traced};
}

Result<void> begin_microbatch(Schedule& schedule, const plan::ResolvedPlan& plan, bool last) {
  Result<void> done;
  const auto set = [&](UnitId id, Setting::Kind kind) {
    if (done.ok()) {
      done = schedule.set(id, {.kind = kind, .flag = last, .units = {}}, Recurse::kNo);
    }
  };
  const auto set_all = [&](Setting::Kind kind, bool flag) {
    if (done.ok()) {
      done = schedule.set(0, {.kind = kind, .flag = flag, .units = {}}, Recurse::kYes);
    }
  };
  if (plan.plan.backward_finalization != plan::Finalization::kAutomatic) {
    set_all(Setting::Kind::kLastBackward, last);
  }
  if (plan.plan.backward_finalization == plan::Finalization::kReduces) {
    set_all(Setting::Kind::kGradientSync, false);
  }
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    if (!plan.units[id].reshard_after_backward) {
      set(id, Setting::Kind::kReshardAfterBackward);
    }
    if (!plan.units[id].requires_all_reduce) {
      set(id, Setting::Kind::kAllReduce);
    }
  }
  return done;
}

}  // namespace shardlens::schedule
