#include "core/edits/plan_edits.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/edits/plan_settings.h"
#include "core/edits/plan_values.h"
#include "core/plan/grouped_blocks.h"
#include "core/plan/strategy_change.h"

namespace shardlens::plan {
namespace {

using Lines = PytorchCalls::Lines;

// "Layout: one flat parameter": the title of an edit that only a list offers.
std::string listed_title(PlanKey key, std::string_view label) {
  return fmt::format("{}: {}", plan_key(key).title, label);
}

std::string id_of(PlanKey key, std::string_view value) {
  return fmt::format("{}={}", plan_key(key).id, value);
}

// The edit with the id of its value.
PlanEdit named(PlanEdit edit, std::string_view value) {
  edit.id = id_of(edit.key, value);
  return edit;
}

// The entries, with `change` made to those of these modules.
template <typename Change>
std::vector<UnitEntry> with_entries(std::vector<UnitEntry> units,
                                    const std::vector<std::string>& modules,
                                    Change change) {
  for (UnitEntry& entry : units) {
    if (!entry.grouped && std::ranges::find(modules, entry.globs.front()) != modules.end()) {
      change(entry);
    }
  }
  return units;
}

// An edit that lists the units of the plan `before`.
PlanEdit listed_units_edit(PlanKey key,
                           std::string label,
                           std::string title,
                           const std::vector<UnitEntry>& units,
                           const std::vector<UnitEntry>& before,
                           Lines pytorch) {
  return {key,
          std::move(label),
          std::move(title),
          [units, before](Plan& plan) {
            if (plan.units == before) {
              plan.units = units;
            }
          },
          [units](const Plan& plan) { return plan.units == units; },
          nullptr,
          std::move(pytorch)};
}

// An edit that gives a member of the plan a value.
template <typename Value>
PlanEdit member_edit(PlanKey key, std::string label, Value Plan::*member, const Value& value) {
  std::string title = listed_title(key, label);
  return {key,
          std::move(label),
          std::move(title),
          [member, value](Plan& plan) { plan.*member = value; },
          [member, value](const Plan& plan) { return plan.*member == value; },
          nullptr};
}

// An edit whose value is what `set` makes of a plan.
template <typename Set>
PlanEdit edit_of(PlanKey key, std::string label, std::string title, Set set, Lines pytorch) {
  return {key,
          std::move(label),
          std::move(title),
          set,
          [set](const Plan& plan) {
            Plan same = plan;
            set(same);
            return same == plan;
          },
          nullptr,
          std::move(pytorch)};
}

}  // namespace

PlanEdits::PlanEdits(const ModuleTree& tree, int64_t ranks, Dialect dialect)
    : tree_(std::make_shared<const ModuleTree>(tree)), ranks_(ranks), pytorch_(*tree_, dialect) {}

std::vector<PlanEdit> PlanEdits::values(PlanKey key) const {
  std::vector<PlanEdit> out;
  switch (key) {
    case PlanKey::kSharding:
      return shardings();
    case PlanKey::kUnits:
      return groupings();
    case PlanKey::kForwardPrefetch:
      for (const int64_t depth : {0, 1, 2, 3, 4}) {
        out.push_back(forward_prefetch(depth));
      }
      return out;
    case PlanKey::kBackwardPrefetch:
      for (const auto prefetch :
           {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
        out.push_back(backward_prefetch(prefetch));
      }
      return out;
    case PlanKey::kPrecision:
      return precisions();
    case PlanKey::kDialect:
      return dialects();
    case PlanKey::kLayout:
      return layouts();
    case PlanKey::kCheckpoints:
      for (const size_t every : {0, 1, 2, 4}) {
        if (every == 0 || every < tree_->blocks.size() || (every == 1 && !tree_->blocks.empty())) {
          out.push_back(checkpoints(every));
        }
      }
      return out;
    default:
      return setting_values(key, ranks_);
  }
}

// The dtype of the model's parameters with each mixed precision, and the other of fp32 and bf16
// without any.
std::vector<PlanEdit> PlanEdits::precisions() const {
  constexpr const char* kOneDtype = "bf16, no fp32 copies";
  const bool narrow = !tree_->parameters.empty() && tree_->parameters.front().dtype == DType::kBF16;
  std::vector<PlanEdit> out;
  for (const NamedPrecision& each : usual_precisions()) {
    const bool own = narrow && each.mixed == MixedPrecision{};
    out.push_back(precision(own ? kOneDtype : std::string(each.label), each.mixed, std::nullopt));
  }
  out.push_back(narrow ? precision("fp32", {}, DType::kF32)
                       : precision(kOneDtype, {}, DType::kBF16));
  return out;
}

// `dtype`: of the stored parameters.
PlanEdit PlanEdits::precision(const std::string& label,
                              const MixedPrecision& mixed,
                              std::optional<DType> dtype) {
  const auto set = [mixed, dtype](Plan& plan) {
    // The other members are keys of their own: kGatherDtype, kOutputDtype, kBufferDtype,
    // kCastInputs.
    plan.mixed_precision.param_dtype = mixed.param_dtype;
    plan.mixed_precision.reduce_dtype = mixed.reduce_dtype;
    plan.dtype = dtype;
  };
  return edit_of(PlanKey::kPrecision, label, listed_title(PlanKey::kPrecision, label), set, {});
}

std::vector<PlanEdit> PlanEdits::shardings() const {
  std::vector<PlanEdit> out{strategy("full shard", "full_shard"),
                            strategy("shard grad op", "shard_grad_op"),
                            strategy("no shard", "no_shard")};
  if (ranks_ >= 4 && ranks_ % 2 == 0) {
    out.push_back(strategy("hybrid: 2 replicas", "hybrid_shard"));
    out.push_back(kept_over(ranks_ / 2));
  }
  return out;
}

std::vector<PlanEdit> PlanEdits::groupings() const {
  std::vector<PlanEdit> out{units(1, strategy_plan("full_shard", *tree_).units)};
  for (const size_t together : {2, 4, 8}) {
    if (together < tree_->blocks.size()) {
      out.push_back(units(together, grouped_blocks(*tree_, together)));
    }
  }
  out.push_back(units(0, grouped_blocks(*tree_, 0)));
  return out;
}

std::vector<PlanEdit> PlanEdits::dialects() {
  PlanEdit second = member_edit(PlanKey::kDialect, "FSDP2", &Plan::dialect, Dialect::kFsdp2);
  second.apply = [](Plan& plan) {
    plan.dialect = Dialect::kFsdp2;
    if (plan.backward_prefetch == BackwardPrefetch::kPost) {  // FSDP2 does not support it
      plan.backward_prefetch = BackwardPrefetch::kPre;
    }
  };
  PlanEdit first = member_edit(PlanKey::kDialect, "FSDP1", &Plan::dialect, Dialect::kFsdp1);
  first.apply = [](Plan& plan) {
    plan.dialect = Dialect::kFsdp1;
    plan.reduce_scatter_max_input_buffers = 1;  // FSDP1 does not have it
  };
  return {std::move(second), std::move(first)};
}

std::vector<PlanEdit> PlanEdits::layouts() {
  return {member_edit(PlanKey::kLayout, "one flat parameter", &Plan::layout, Layout::kFlat),
          member_edit(PlanKey::kLayout, "each parameter", &Plan::layout, Layout::kPerParameter)};
}

PlanEdit PlanEdits::strategy(const std::string& label, std::string_view name) const {
  const auto set = [tree = tree_, name = std::string(name)](Plan& plan) {
    std::string source = plan.source;
    plan = with_strategy(std::move(plan), name, *tree);
    plan.source = std::move(source);
  };
  const bool replicate = name == "replicate";
  return named(edit_of(PlanKey::kSharding, label,
                       replicate ? "replicate the model instead of sharding it"
                                 : listed_title(PlanKey::kSharding, label),
                       set, replicate ? pytorch_.replicate() : Lines{}),
               name);
}

PlanEdit PlanEdits::kept_over(int64_t ranks) const {
  const Reshard part{Reshard::Kind::kSubMesh, ranks};
  std::string label = reshard_label(part);
  std::string title = listed_title(PlanKey::kSharding, label);
  return {PlanKey::kSharding,
          std::move(label),
          std::move(title),
          [part](Plan& plan) {
            plan.mesh.replicate.reset();
            plan.mesh.shard.reset();
            set_reshard(plan, part);
          },
          [part](const Plan& plan) { return plan.reshard_after_forward == part; },
          nullptr};
}

PlanEdit PlanEdits::units(size_t together, const std::vector<UnitEntry>& units) const {
  const bool has_lines = together == 0 || !tree_->blocks.empty();
  return {PlanKey::kUnits,
          units_label(together),
          units_label(together),
          [units](Plan& plan) { set_units(plan, units); },
          [units](const Plan& plan) { return plan.units == units; },
          nullptr,
          has_lines ? pytorch_.units(together) : Lines{},
          id_of(PlanKey::kUnits, std::to_string(together))};
}

PlanEdit PlanEdits::own_units(const std::vector<std::string>& modules) const {
  const std::string label = fmt::format("{} as {} own", fmt::join(modules, ", "),
                                        modules.size() == 1 ? "a unit of its" : "units of their");
  return {PlanKey::kUnits,
          label,
          label,
          [modules](Plan& plan) {
            for (const std::string& fqn : modules) {
              plan.units.emplace_back().globs = {fqn};
            }
          },
          [modules](const Plan& plan) {
            return std::ranges::all_of(modules, [&plan](const std::string& fqn) {
              return std::ranges::any_of(plan.units, [&fqn](const UnitEntry& entry) {
                return entry.globs == std::vector{fqn};
              });
            });
          },
          nullptr,
          pytorch_.own_units(modules),
          id_of(PlanKey::kUnits, "own")};
}

PlanEdit PlanEdits::mesh(int64_t replicate, int64_t shard, int64_t tensor, int64_t context) const {
  std::string label = mesh_label(replicate, shard);
  std::string title =
      shard == 1       ? fmt::format("{}: {} replicas, each with all parameters", label, replicate)
      : replicate == 1 ? fmt::format("shard over {} ranks", shard)
                       : label;
  PlanEdit out = named(edit_of(
                           PlanKey::kMesh, std::move(label), std::move(title),
                           [replicate, shard](Plan& plan) { set_mesh(plan, replicate, shard); },
                           pytorch_.mesh(replicate, shard, tensor, context)),
                       fmt::format("{}x{}", replicate, shard));
  out.numbers = {replicate, shard};
  return out;
}

PlanEdit PlanEdits::reshard(Reshard::Kind kind) const {
  const bool keeps = kind == Reshard::Kind::kNo;
  return named(edit_of(
                   PlanKey::kReshard, reshard_label({kind, 0}),
                   keeps ? "keep parameters after forward" : "free parameters after forward",
                   [kind](Plan& plan) {
                     set_reshard(plan, {kind, 0});
                   },
                   pytorch_.reshard(!keeps)),
               keeps ? "no" : "auto");
}

PlanEdit PlanEdits::keep(const std::vector<std::string>& modules,
                         std::vector<UnitEntry> units,
                         const std::vector<UnitEntry>& before) const {
  const Reshard keeps{Reshard::Kind::kNo, 0};
  std::string title =
      modules.size() == 1
          ? fmt::format("keep the parameters of {} after forward", modules.front())
          : fmt::format("keep the parameters of the last {} units after forward", modules.size());
  return named(listed_units_edit(
                   PlanKey::kReshard, reshard_label(keeps), std::move(title),
                   with_entries(std::move(units), modules,
                                [keeps](UnitEntry& entry) { entry.reshard_after_forward = keeps; }),
                   before, pytorch_.keep(modules)),
               fmt::format("no:last{}", modules.size()));
}

PlanEdit PlanEdits::no_backward_gather(const std::vector<std::string>& modules,
                                       std::vector<UnitEntry> units,
                                       const std::vector<UnitEntry>& before) const {
  return named(
      listed_units_edit(PlanKey::kUnshardInBackward, "no",
                        fmt::format("no gather of {} in backward", fmt::join(modules, ", ")),
                        with_entries(std::move(units), modules,
                                     [](UnitEntry& entry) { entry.unshard_in_backward = false; }),
                        before, PytorchCalls::no_backward_gather(modules)),
      "no");
}

PlanEdit PlanEdits::forward_prefetch(int64_t depth) const {
  return named(edit_of(
                   PlanKey::kForwardPrefetch, prefetch_label(depth),
                   depth == 0 ? "no prefetch in forward"
                              : fmt::format("prefetch {} in forward", prefetch_label(depth)),
                   [depth](Plan& plan) { set_forward_prefetch(plan, depth); },
                   pytorch_.forward_prefetch(depth)),
               std::to_string(depth));
}

PlanEdit PlanEdits::backward_prefetch(BackwardPrefetch prefetch) const {
  PlanEdit out = member_edit(PlanKey::kBackwardPrefetch,
                             prefetch == BackwardPrefetch::kPre    ? "before compute"
                             : prefetch == BackwardPrefetch::kPost ? "after compute (FSDP1)"
                                                                   : "none",
                             &Plan::backward_prefetch, prefetch);
  out.apply = [prefetch](Plan& plan) {
    set_backward_prefetch(plan, prefetch);
    if (prefetch == BackwardPrefetch::kPost) {
      plan.dialect = Dialect::kFsdp1;  // FSDP2 does not support it
    }
  };
  out.holds = [prefetch](const Plan& plan) {
    return plan.backward_prefetch == prefetch && plan.backward_prefetch_lists.empty();
  };
  if (prefetch == BackwardPrefetch::kPre) {
    out.title = "prefetch the next unit before compute in backward";
    out.pytorch = pytorch_.backward_prefetch();
    out.id = id_of(out.key, "pre");
  }
  return out;
}

PlanEdit PlanEdits::separate_reduce_scatter_group() const {
  PlanEdit out = member_edit(PlanKey::kCommunicators, "one for reduce-scatters",
                             &Plan::separate_reduce_scatter_group, true);
  out.title = "a communicator of its own for reduce-scatter";
  out.pytorch = PytorchCalls::separate_reduce_scatter_group();
  out.id = id_of(out.key, "separate");
  return out;
}

PlanEdit PlanEdits::reduction_inputs(int64_t count) const {
  PlanEdit out = member_edit(PlanKey::kReductionInputs, std::to_string(count),
                             &Plan::reduce_scatter_max_input_buffers, count);
  out.title = fmt::format("{} reductions in flight", count);
  out.pytorch = PytorchCalls::reduction_inputs(count);
  out.id = id_of(out.key, out.label);
  return out;
}

PlanEdit PlanEdits::checkpoints(size_t every) const {
  const std::string label = every == 0   ? "none"
                            : every == 1 ? "every block"
                            : every == 2 ? "every second block"
                                         : fmt::format("one block of {}", every);
  return named(edit_of(
                   PlanKey::kCheckpoints, label,
                   every == 0 ? "no activation checkpoints" : fmt::format("checkpoint {}", label),
                   [tree = tree_, every](Plan& plan) { set_checkpoints(plan, *tree, every); },
                   pytorch_.checkpoints(every)),
               std::to_string(every));
}

PlanEdit PlanEdits::buckets(double megabytes) const {
  const std::string label = fmt::format("{} MiB", megabytes);
  return named(edit_of(
                   PlanKey::kBuckets, label, fmt::format("buckets of {}", label),
                   [megabytes](Plan& plan) {
                     plan.bucket_cap_mb = megabytes;
                     for (UnitEntry& entry : plan.units) {
                       entry.bucket_cap_mb.reset();
                     }
                   },
                   pytorch_.buckets(megabytes)),
               fmt::format("{}", megabytes));
}

PlanEdit PlanEdits::microbatches(int64_t batch, int64_t accumulate) const {
  return {PlanKey::kMicrobatches,
          fmt::format("{} x {}", batch, accumulate),
          fmt::format("microbatches of {} ({} a step)", batch, accumulate),
          nullptr,
          nullptr,
          [batch, accumulate](StepSettings& step) {
            step.batch = batch;
            step.accumulate = accumulate;
          },
          pytorch_.microbatches(batch, accumulate),
          id_of(PlanKey::kMicrobatches, fmt::format("{}x{}", batch, accumulate)),
          {batch, accumulate}};
}

PlanEdit PlanEdits::sync_last_microbatch() const {
  return {PlanKey::kGradientSync,
          "the last microbatch",
          "reduce gradients only in the last microbatch",
          nullptr,
          nullptr,
          [](StepSettings& step) { step.sync_every_microbatch = false; },
          pytorch_.sync_last_microbatch(),
          id_of(PlanKey::kGradientSync, "last")};
}

std::vector<NamedPrecision> usual_precisions() {
  return {{"fp32", {}},
          {"bf16, reduced in fp32", {DType::kBF16, DType::kF32, {}, {}, {}}},
          {"bf16, gradients too", {DType::kBF16, DType::kBF16, {}, {}, {}}},
          {"fp16, reduced in fp32", {DType::kF16, DType::kF32, {}, {}, {}}}};
}

}  // namespace shardlens::plan
