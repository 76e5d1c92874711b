#include <string>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/plan.h"

namespace shardlens::plan {
namespace {

enum class Simulator { kCan, kCannot };

[[noreturn]] void refuse(const Plan& plan,
                         const std::string& pointer,
                         Simulator simulator = Simulator::kCan) {
  throw InputError(plan.source + "#" + pointer,
                   simulator == Simulator::kCan ? "not supported by the engine yet; simulate can"
                                                : "not supported by the engine yet");
}

// Names the part of a mixed_precision that the engine has no code for, "" if there is none.
std::string unsupported_part(const MixedPrecision& mixed) {
  if (mixed.param_dtype == DType::kF16) {
    return "/param_dtype";
  }
  if (mixed.reduce_dtype == DType::kF16) {
    return "/reduce_dtype";
  }
  if (mixed.output_dtype) {
    return "/output_dtype";
  }
  if (mixed.buffer_dtype) {
    return "/buffer_dtype";
  }
  return mixed.cast_forward_inputs.value_or(true) ? "" : "/cast_forward_inputs";
}

// What replicate() has no code for: any dtype but the parameters' own.
std::string casting_part(const MixedPrecision& mixed) {
  if (mixed.param_dtype.value_or(DType::kF32) != DType::kF32) {
    return "/param_dtype";
  }
  if (mixed.reduce_dtype.value_or(DType::kF32) != DType::kF32) {
    return "/reduce_dtype";
  }
  return unsupported_part(mixed);
}

// Where an override of a unit, or else the plan's own value, is written.
std::string place(const Unit& unit, bool overridden, const std::string& key) {
  return overridden ? fmt::format("/units/{}/{}", unit.entry, key) : "/" + key;
}

void check_unit(const Plan& plan, const Unit& unit) {
  static const UnitEntry kNoEntry;
  const UnitEntry& entry = unit.entry < 0 ? kNoEntry : plan.units[static_cast<size_t>(unit.entry)];
  if (unit.reshard_after_forward.kind == Reshard::Kind::kSubMesh) {
    refuse(plan, place(unit, entry.reshard_after_forward.has_value(), "reshard_after_forward"));
  }
  if (unit.cpu_offload) {
    refuse(plan, place(unit, entry.cpu_offload.has_value(), "cpu_offload"), Simulator::kCannot);
  }
  if (unit.gradient_divide_factor) {
    refuse(plan, place(unit, entry.gradient_divide_factor.has_value(), "gradient_divide_factor"));
  }
  if (const std::string part = unit.api == Api::kReplicate ? casting_part(unit.mixed_precision)
                                                           : unsupported_part(unit.mixed_precision);
      !part.empty()) {
    refuse(plan, place(unit, entry.mixed_precision.has_value(), "mixed_precision") + part);
  }
}

}  // namespace

void require_engine_support(const ResolvedPlan& resolved) {
  const Plan& plan = resolved.plan;
  if (plan.dialect != Dialect::kFsdp2) {
    refuse(plan, "/dialect");
  }
  if (plan.layout != Layout::kFlat) {
    refuse(plan, "/layout");
  }
  if (resolved.replicate > 1 && resolved.shard > 1) {
    refuse(plan, "/mesh");
  }
  if (!plan.ignored_modules.empty()) {
    refuse(plan, "/ignored_modules");
  }
  if (!plan.ignored_parameters.empty()) {
    refuse(plan, "/ignored_parameters");
  }
  for (const Unit& unit : resolved.units) {
    check_unit(plan, unit);
  }
}

}  // namespace shardlens::plan
