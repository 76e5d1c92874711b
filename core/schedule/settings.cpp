#include "core/schedule/dialect.h"

namespace shardlens::schedule {
namespace {

bool is_fsdp1_setting(Setting::Kind kind) {
  return kind == Setting::Kind::kGradientSync || kind == Setting::Kind::kForwardPrefetch ||
         kind == Setting::Kind::kBackwardPrefetch;
}

void apply(UnitData& u, const Setting& setting, UnitId base) {
  switch (setting.kind) {
    case Setting::Kind::kGradientSync:
      u.sync = u.all_reduce = setting.flag;
      return;
    case Setting::Kind::kAllReduce:
      u.all_reduce = setting.flag;
      return;
    case Setting::Kind::kReshardAfterForward:
      u.after_forward = setting.flag ? AfterForward::kFree : AfterForward::kKeep;
      return;
    case Setting::Kind::kReshardAfterBackward:
      u.reshard_after_backward = setting.flag;
      return;
    case Setting::Kind::kUnshardInBackward:
      u.unshard_in_backward = setting.flag;
      return;
    case Setting::Kind::kForwardPrefetch:
    case Setting::Kind::kBackwardPrefetch: {
      auto& list = setting.kind == Setting::Kind::kForwardPrefetch ? u.forward_prefetch
                                                                   : u.backward_prefetch;
      list = setting.units;
      for (UnitId& unit : list) {
        unit -= base;
      }
      return;
    }
    case Setting::Kind::kLastBackward:
      return;
  }
}

}  // namespace

Result<void> Schedule::set(UnitId unit, const Setting& setting, Recurse recurse) {
  Dialect& s = *dialect_;
  const auto known = [&s](UnitId id) { return id >= s.base && id - s.base < s.units.size(); };
  if (!known(unit)) {
    return Result<void>::error("schedule: setting on unit " + std::to_string(unit) +
                               ", which does not exist");
  }
  const UnitId local = unit - s.base;
  const std::string name = "schedule: unit '" + s.units[local].spec.name + "': ";
  if (s.options.dialect == plan::Dialect::kFsdp1) {
    if (!is_fsdp1_setting(setting.kind)) {
      return Result<void>::error(name + "this setting exists only in fsdp2");
    }
    if (setting.kind == Setting::Kind::kGradientSync && local != 0) {
      return Result<void>::error(name + "fsdp1 can set gradient sync only on the root");
    }
  }
  for (const UnitId target : setting.units) {
    if (!known(target)) {
      return Result<void>::error(name + "its prefetch list names unit " + std::to_string(target) +
                                 ", which does not exist");
    }
  }
  if (setting.kind == Setting::Kind::kLastBackward) {
    s.last_backward = setting.flag;
    return {};
  }
  apply(s.units[local], setting, s.base);
  if (recurse == Recurse::kYes) {
    std::vector<bool> below(s.units.size(), false);
    below[local] = true;
    for (UnitId id = local + 1; id < s.units.size(); ++id) {
      const UnitId parent = s.units[id].spec.parent;
      if (parent != kNoUnit && below[parent]) {
        below[id] = true;
        apply(s.units[id], setting, s.base);
      }
    }
  }
  return {};
}

}  // namespace shardlens::schedule
