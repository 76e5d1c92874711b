#include "core/edits/plan_settings.h"

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/edits/mesh_values.h"
#include "core/mesh/mesh.h"
#include "core/plan/plan.h"

namespace shardlens::plan {
namespace {

using enum PlanKey;

PlanEdit setting(PlanKey key,
                 std::string label,
                 std::function<void(Plan&)> apply,
                 std::function<bool(const Plan&)> holds) {
  std::string title = fmt::format("{}: {}", plan_key(key).title, label);
  return {key, std::move(label), std::move(title), std::move(apply), std::move(holds), nullptr};
}

template <typename Value>
struct LabelledValue {
  const char* label;
  Value value;
};

// Values of a member of the plan. Entries of units that have `own` set are given the plan's value.
template <typename Value>
std::vector<PlanEdit> of_member(PlanKey key,
                                Value Plan::*member,
                                std::initializer_list<LabelledValue<Value>> values,
                                std::optional<bool> UnitEntry::*own = nullptr) {
  std::vector<PlanEdit> out;
  for (const auto& [label, value] : values) {
    out.push_back(setting(
        key, label,
        [member, value = value, own](Plan& plan) {
          plan.*member = value;
          for (UnitEntry& entry : plan.units) {
            if (own != nullptr) {
              (entry.*own).reset();
            }
          }
        },
        [member, value = value, own](const Plan& plan) {
          bool same = plan.*member == value;
          for (const UnitEntry& entry : plan.units) {
            same = same && (own == nullptr || !(entry.*own).has_value());
          }
          return same;
        }));
  }
  return out;
}

std::vector<PlanEdit> degrees(PlanKey key, std::string_view axis, int64_t ranks) {
  std::vector<PlanEdit> out;
  for (int64_t degree = 1; degree <= ranks; ++degree) {
    if (ranks % degree == 0) {
      out.push_back(setting(
          key, std::to_string(degree),
          [axis, degree, ranks](Plan& plan) {
            plan.mesh = with_degree(plan.mesh, axis, degree, ranks);
          },
          [axis, degree, ranks](const Plan& plan) {
            return size_of_axis(settled_mesh(plan.mesh, ranks), axis) == degree;
          }));
    }
  }
  return out;
}

std::vector<PlanEdit> saves() {
  using Products = CheckpointSaves::Products;
  return of_member<CheckpointSaves>(kSaves, &Plan::checkpointing_saves,
                                    {{"nothing", {Products::kNone, false}},
                                     {"attention", {Products::kNone, true}},
                                     {"every 2nd product", {Products::kEverySecond, false}},
                                     {"attention, every 2nd", {Products::kEverySecond, true}},
                                     {"products", {Products::kAll, false}},
                                     {"attention, products", {Products::kAll, true}}});
}

std::vector<PlanEdit> gather_dtypes() {
  std::vector<PlanEdit> out;
  for (const bool float8 : {false, true}) {
    out.push_back(setting(
        kGatherDtype, float8 ? "8 bits (float8)" : "their dtype",
        [float8](Plan& plan) { plan.mixed_precision.gathers_float8 = float8; },
        [float8](const Plan& plan) { return plan.mixed_precision.gathers_float8 == float8; }));
  }
  return out;
}

// Values of a member of the mixed precision, of units without one of their own.
template <typename Value>
std::vector<PlanEdit> of_precision(
    PlanKey key,
    std::optional<Value> MixedPrecision::*member,
    std::initializer_list<LabelledValue<std::optional<Value>>> values) {
  std::vector<PlanEdit> out;
  for (const auto& [label, value] : values) {
    out.push_back(setting(
        key, label, [member, value = value](Plan& plan) { plan.mixed_precision.*member = value; },
        [member, value = value](const Plan& plan) {
          return plan.mixed_precision.*member == value;
        }));
  }
  return out;
}

std::vector<PlanEdit> dtypes(PlanKey key, std::optional<DType> MixedPrecision::*member) {
  return of_precision<DType>(key, member,
                             {{"as they are", std::nullopt},
                              {"fp32", DType::kF32},
                              {"bf16", DType::kBF16},
                              {"fp16", DType::kF16}});
}

std::vector<PlanEdit> bucket_sizes() {
  std::vector<PlanEdit> out;
  for (const std::optional<double> megabytes :
       std::initializer_list<std::optional<double>>{std::nullopt, 5, 25, 50, 100, 200}) {
    out.push_back(setting(
        kBuckets, megabytes ? fmt::format("{} MiB", *megabytes) : "25 MiB, the first 1 MiB",
        [megabytes](Plan& plan) {
          plan.bucket_cap_mb = megabytes;
          for (UnitEntry& entry : plan.units) {
            entry.bucket_cap_mb.reset();
          }
        },
        [megabytes](const Plan& plan) {
          bool same = plan.bucket_cap_mb == megabytes;
          for (const UnitEntry& entry : plan.units) {
            same = same && !entry.bucket_cap_mb;
          }
          return same;
        }));
  }
  return out;
}

}  // namespace

std::vector<PlanEdit> setting_values(PlanKey key, int64_t ranks) {
  switch (key) {
    case kReplicas:
      return degrees(key, mesh::kReplicate, ranks);
    case kContext:
      return degrees(key, mesh::kContext, ranks);
    case kTensor:
      return degrees(key, mesh::kTensor, ranks);
    case kExpert:
      return degrees(key, mesh::kExpert, ranks);
    case kSequenceParallel:
      return of_member(key, &Plan::sequence_parallel, {{"yes", true}, {"no", false}});
    case kLossParallel:
      return of_member(key, &Plan::loss_parallel, {{"no", false}, {"yes", true}});
    case kContextMethod:
      return of_member(
          key, &Plan::context_method,
          {{"all at once", ContextMethod::kAllGather}, {"in a ring", ContextMethod::kRing}});
    case kExpertDispatch:
      return of_member(key, &Plan::expert_dispatch,
                       {{"all-to-all", ExpertDispatch::kAllToAll},
                        {"all-gather", ExpertDispatch::kAllGather},
                        {"DeepEP", ExpertDispatch::kDeepEp}});
    case kOutputDtype:
      return dtypes(key, &MixedPrecision::output_dtype);
    case kBufferDtype:
      return dtypes(key, &MixedPrecision::buffer_dtype);
    case kCastInputs:
      return of_precision<bool>(key, &MixedPrecision::cast_forward_inputs,
                                {{"as usual", std::nullopt}, {"cast", true}, {"not cast", false}});
    case kSaves:
      return saves();
    case kOffload:
      return of_member(key, &Plan::cpu_offload, {{"no", false}, {"yes", true}},
                       &UnitEntry::cpu_offload);
    case kOptimizerInBackward:
      return of_member(key, &Plan::optimizer_in_backward,
                       {{"after backward", false}, {"in backward, by unit", true}},
                       &UnitEntry::optimizer_in_backward);
    case kReshardInBackward:
      return of_member(key, &Plan::reshard_after_backward, {{"freed", true}, {"kept", false}},
                       &UnitEntry::reshard_after_backward);
    case kAllReduces:
      return of_member(key, &Plan::requires_all_reduce,
                       {{"every microbatch", true}, {"the last microbatch", false}},
                       &UnitEntry::requires_all_reduce);
    case kGatherDtype:
      return gather_dtypes();
    case kCommunicators:
      return of_member(key, &Plan::separate_reduce_scatter_group,
                       {{"one", false}, {"one for reduce-scatters", true}});
    case kReductionInputs:
      return of_member<int64_t>(key, &Plan::reduce_scatter_max_input_buffers,
                                {{"one", 1}, {"two", 2}, {"three", 3}});
    case kLimit:
      return of_member(key, &Plan::limit_all_gathers, {{"on", true}, {"off", false}});
    case kViews:
      return of_member(key, &Plan::views,
                       {{"in each forward", Views::kFresh}, {"once a step", Views::kFrozen}});
    case kDivideFactor:
      return of_member<std::optional<double>>(key, &Plan::gradient_divide_factor,
                                              {{"the number of ranks", std::nullopt}, {"1", 1.0}});
    case kBuckets:
      return bucket_sizes();
    case kUnusedParameters:
      return of_member(key, &Plan::find_unused_parameters, {{"no", false}, {"yes", true}},
                       &UnitEntry::find_unused_parameters);
    case kStaticGraph:
      return of_member(key, &Plan::static_graph, {{"no", false}, {"yes", true}},
                       &UnitEntry::static_graph);
    case kBucketViews:
      return of_member(key, &Plan::gradient_as_bucket_view, {{"no", false}, {"yes", true}},
                       &UnitEntry::gradient_as_bucket_view);
    default:
      return {};
  }
}

}  // namespace shardlens::plan
