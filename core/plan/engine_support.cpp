#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

// Refuses axes of the mesh along which nothing communicates yet.
void check_axes(const ResolvedPlan& plan) {
  if (const auto axis = divided_axis(plan.plan.mesh); !axis.first.empty()) {
    throw InputError(
        fmt::format("{}#/mesh/{}", plan.plan.source, axis.first),
        fmt::format("{} {} is not run by the engine yet; expected 1", axis.first, axis.second));
  }
}

[[noreturn]] void refuse(const Plan& plan, const std::string& pointer) {
  throw InputError(plan.source + "#" + pointer, "not supported by the engine yet");
}

// The key of `mixed` that needs a cast, which replicate() does not support; "" if there is none.
std::string casting_part(const MixedPrecision& mixed) {
  if (mixed.param_dtype.value_or(DType::kF32) != DType::kF32) {
    return "/param_dtype";
  }
  if (mixed.reduce_dtype.value_or(DType::kF32) != DType::kF32) {
    return "/reduce_dtype";
  }
  if (mixed.output_dtype) {
    return "/output_dtype";
  }
  if (mixed.buffer_dtype) {
    return "/buffer_dtype";
  }
  return mixed.cast_forward_inputs ? "/cast_forward_inputs" : "";
}

// Refuses keys of mixed_precision that PyTorch does not have for the plan's dialect, and names the
// dialect that has them.
void check_dialect(const Plan& plan, const MixedPrecision& mixed, const std::string& at) {
  if (plan.dialect == Dialect::kFsdp1 && mixed.output_dtype) {
    throw InputError(plan.source + "#" + at + "/output_dtype",
                     "FSDP1 has no output dtype; expected dialect fsdp2");
  }
  if (plan.dialect == Dialect::kFsdp2 && mixed.buffer_dtype) {
    throw InputError(plan.source + "#" + at + "/buffer_dtype",
                     "FSDP2 never casts buffers; expected dialect fsdp1");
  }
}

// JSON pointer to a unit's override or, if there is none, to the plan's own value.
std::string place(const Unit& unit, bool overridden, const std::string& key) {
  return overridden ? fmt::format("/units/{}/{}", unit.entry, key) : "/" + key;
}

void check_unit(const Plan& plan, const Unit& unit) {
  static const UnitEntry kNoEntry;
  const UnitEntry& entry = unit.entry < 0 ? kNoEntry : plan.units[static_cast<size_t>(unit.entry)];
  if (std::ranges::any_of(entry.groups, [](const ParameterGroupEntry& group) {
        return group.expert || group.shard_dim != 0;
      })) {
    refuse(plan, fmt::format("/units/{}/groups", unit.entry));
  }
  if (unit.keep_unsharded_storage && plan.layout == Layout::kFlat) {
    throw InputError(
        plan.source + "#" +
            place(unit, entry.keep_unsharded_storage.has_value(), "keep_unsharded_storage"),
        "the engine's all-gather writes a flat parameter, which may still be read, in place; "
        "expected \"layout\": \"per_parameter\", where compute copies it");
  }
  if (unit.gradient_divide_factor && plan.dialect == Dialect::kFsdp1) {
    throw InputError(
        plan.source + "#" +
            place(unit, entry.gradient_divide_factor.has_value(), "gradient_divide_factor"),
        "FSDP1 has no gradient divide factor; expected dialect fsdp2");
  }
  const std::string mixed = place(unit, entry.mixed_precision.has_value(), "mixed_precision");
  if (unit.mixed_precision.gathers_float8) {
    throw InputError(plan.source + "#" + mixed + "/gather_dtype",
                     "not supported by the engine, which does not multiply in 8 bits (simulate "
                     "supports it); a program of the library can use fsdp::Float8AllGather");
  }
  if (unit.api == Api::kFullyShard) {
    return check_dialect(plan, unit.mixed_precision, mixed);
  }
  if (const std::string part = casting_part(unit.mixed_precision); !part.empty()) {
    throw InputError(plan.source + "#" + mixed + part,
                     "not supported by the engine yet in a unit with \"api\": \"replicate\"; "
                     "expected \"fully_shard\" with \"mesh\": {\"shard\": 1}, which replicates and "
                     "casts (simulate supports it)");
  }
}

}  // namespace

void require_engine_support(const ResolvedPlan& plan) {
  check_axes(plan);
  if (plan.plan.dtype) {
    throw InputError(plan.plan.source + "#/dtype",
                     "the engine shards parameters in the dtype that they have; expected none, and "
                     "a program that converts its model before it is sharded (simulate supports "
                     "it)");
  }
  for (const Unit& unit : plan.units) {
    check_unit(plan.plan, unit);
  }
  if (plan.plan.checkpointing_saves.any()) {
    refuse(plan.plan, "/checkpointing_saves");
  }
}

}  // namespace shardlens::plan
