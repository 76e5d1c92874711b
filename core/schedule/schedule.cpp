#include "core/schedule/schedule.h"

#include <algorithm>

#include "core/schedule/fsdp1.h"
#include "core/schedule/fsdp2.h"

namespace shardlens::schedule {
namespace {

std::string unit_error(const UnitSpec& spec, const std::string& message) {
  return "schedule: unit '" + spec.name + "': " + message;
}

// Why the unit cannot be scheduled; "" if it can.
std::string check_spec(std::span<const UnitSpec> units,
                       UnitId unit,
                       const ScheduleOptions& options) {
  const UnitSpec& spec = units[unit];
  if (unit == 0 ? spec.parent != kNoUnit : spec.parent >= unit) {
    return unit_error(spec, "expected units in pre-order, each after its parent, the root first");
  }
  const bool grouped = spec.groups == 1 ? spec.group == 0
                                        : options.dialect == plan::Dialect::kFsdp2 &&
                                              spec.group < spec.groups && unit >= spec.group &&
                                              unit - spec.group + spec.groups <= units.size() &&
                                              units[unit - spec.group].groups == spec.groups;
  if (!grouped) {
    return unit_error(spec, "group " + std::to_string(spec.group) + " of " +
                                std::to_string(spec.groups) +
                                "; expected consecutive units for the groups, in dialect fsdp2");
  }
  for (const auto* list : {&spec.forward_prefetch, &spec.backward_prefetch}) {
    if (*list && std::ranges::any_of(**list, [&](UnitId id) { return id >= units.size(); })) {
      return unit_error(spec, "a prefetch list names a unit that does not exist");
    }
  }
  if (spec.reshard_after_forward.kind != plan::Reshard::Kind::kSubMesh) {
    return {};
  }
  const int64_t ranks = spec.reshard_after_forward.ranks;
  if (options.dialect == plan::Dialect::kFsdp1) {
    return unit_error(
        spec, "reshard_after_forward = " + std::to_string(ranks) + ": fsdp1 takes true or false");
  }
  if (ranks < 1 || ranks > options.shard || options.shard % ranks != 0) {
    return unit_error(spec, "reshard_after_forward = " + std::to_string(ranks) +
                                " should be a factor of the shard size " +
                                std::to_string(options.shard));
  }
  if (spec.kept == mesh::kNoGroup && ranks > 1 && ranks < options.shard) {
    return unit_error(
        spec, "reshard_after_forward = " + std::to_string(ranks) + " needs a group of the plan");
  }
  return {};
}

std::string check_options(std::span<const UnitSpec> units, const ScheduleOptions& options) {
  if (units.empty()) {
    return "schedule: no units";
  }
  if (options.shard < 1 || options.replicate < 1) {
    return "schedule: mesh " + std::to_string(options.replicate) + "x" +
           std::to_string(options.shard) + "; expected both sizes to be at least 1";
  }
  if (options.dialect == plan::Dialect::kFsdp2 &&
      options.backward_prefetch == plan::BackwardPrefetch::kPost) {
    return "schedule: backward_prefetch 'post' exists only in fsdp1; expected 'pre' or 'none'";
  }
  if (options.forward_prefetch < 0 ||
      (options.dialect == plan::Dialect::kFsdp1 && options.forward_prefetch > 1)) {
    return "schedule: forward_prefetch " + std::to_string(options.forward_prefetch) +
           "; fsdp1 takes 0 or 1, fsdp2 a depth";
  }
  for (UnitId unit = 0; unit < units.size(); ++unit) {
    if (std::string error = check_spec(units, unit, options); !error.empty()) {
      return error;
    }
  }
  return {};
}

AfterForward after_forward(const UnitSpec& spec, bool root, const ScheduleOptions& options) {
  const plan::Reshard& reshard = spec.reshard_after_forward;
  switch (reshard.kind) {
    case plan::Reshard::Kind::kAuto:
      // FSDP2 keeps the root unsharded after forward. FSDP1's root is FULL_SHARD like other units;
      // its post-forward just does not free it.
      return root && options.dialect == plan::Dialect::kFsdp2 ? AfterForward::kKeep
                                                              : AfterForward::kFree;
    case plan::Reshard::Kind::kYes:
      return AfterForward::kFree;
    case plan::Reshard::Kind::kNo:
      return AfterForward::kKeep;
    case plan::Reshard::Kind::kSubMesh:
      return reshard.ranks == options.shard ? AfterForward::kFree
             : reshard.ranks == 1           ? AfterForward::kKeep
                                            : AfterForward::kSubMesh;
  }
  return AfterForward::kFree;
}

UnitData make_unit(std::span<const UnitSpec> units, UnitId unit, const ScheduleOptions& options) {
  UnitData data;
  data.spec = units[unit];
  data.spec.cpu_offload = data.spec.cpu_offload || options.cpu_offload;
  data.after_forward = after_forward(data.spec, unit == 0, options);
  data.unshard_in_backward = data.spec.unshard_in_backward;
  if (data.spec.forward_prefetch) {
    data.forward_prefetch = *data.spec.forward_prefetch;
  } else if (options.dialect == plan::Dialect::kFsdp2) {
    for (int64_t next = unit + 1;
         next < static_cast<int64_t>(units.size()) && next <= unit + options.forward_prefetch;
         ++next) {
      data.forward_prefetch.push_back(static_cast<UnitId>(next));
    }
  }
  if (data.spec.backward_prefetch) {
    data.backward_prefetch = *data.spec.backward_prefetch;
  }
  data.order.reserve(kForwardsRemembered + 8);
  return data;
}

}  // namespace

std::shared_ptr<CommState> make_comm_state() {
  return std::make_shared<CommState>();
}

Result<Schedule> Schedule::make(std::span<const UnitSpec> units,
                                const ScheduleOptions& options,
                                std::shared_ptr<CommState> comm) {
  if (std::string error = check_options(units, options); !error.empty()) {
    return Result<Schedule>::error(std::move(error));
  }
  const auto count = static_cast<uint32_t>(units.size());
  std::unique_ptr<Dialect> dialect;
  if (options.dialect == plan::Dialect::kFsdp2) {
    dialect = std::make_unique<Fsdp2>();
  } else {
    dialect = std::make_unique<Fsdp1>(count);
  }
  dialect->options = options;
  dialect->comm = comm != nullptr ? std::move(comm) : make_comm_state();
  dialect->comm->reduces.reserve(static_cast<size_t>(options.reduce_inputs) + 1);
  dialect->base = dialect->comm->units();
  dialect->first_event = dialect->comm->add_root(count, 1 + count * kUnitEventCount);
  for (UnitId unit = 0; unit < count; ++unit) {
    dialect->units.push_back(make_unit(units, unit, options));
    dialect->any_copy_in = dialect->any_copy_in || Dialect::copies_in(dialect->units.back());
  }
  dialect->post_forward_order.reserve((kForwardsRemembered + 8) * static_cast<size_t>(count));
  return Schedule(std::move(dialect));
}

Schedule::Schedule(std::unique_ptr<Dialect> dialect) : dialect_(std::move(dialect)) {}
Schedule::Schedule(Schedule&&) noexcept = default;
Schedule& Schedule::operator=(Schedule&&) noexcept = default;
Schedule::~Schedule() = default;

Result<void> Schedule::on(const HookEvent& event, ActionList& out) {
  if (std::string error = dialect_->check(event); !error.empty()) {
    return Result<void>::error(std::move(error));
  }
  dialect_->out = &out;
  dialect_->cause = Cause::kOwn;
  const bool parts = event.grads == Grads::kLast || event.grads == Grads::kOthers;
  dialect_->grads = parts ? event.grads : Grads::kAll;
  dialect_->on(event, event.unit - dialect_->base);
  dialect_->out = nullptr;
  return {};
}

UnitState Schedule::state(UnitId unit) const {
  return dialect_->units.at(unit - dialect_->base).state;
}
size_t Schedule::size() const {
  return dialect_->units.size();
}
UnitId Schedule::first_unit() const {
  return dialect_->base;
}

}  // namespace shardlens::schedule
