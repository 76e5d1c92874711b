#include "core/edits/framework_settings.h"

#include <array>
#include <utility>

#include <fmt/format.h>

namespace shardlens::plan {
namespace {

using Lines = std::vector<std::string>;

constexpr std::array<std::string_view, 5> kNames{"pytorch", "accelerate", "transformers",
                                                 "torchtitan", "simple_fsdp"};

// A setting of an fsdp_config, which accelerate and transformers write differently.
struct FsdpSetting {
  std::string_view name, value;  // as YAML and JSON have them
};

// Empty: there is none.
std::vector<FsdpSetting> fsdp_settings(const FrameworkProgram& of,
                                       PlanKey key,
                                       std::string_view value) {
  const bool first = of.dialect == Dialect::kFsdp1;
  if (key == PlanKey::kCheckpoints && (value == "0" || value == "1")) {
    return {{"activation_checkpointing", value == "0" ? "false" : "true"}};
  }
  if (key == PlanKey::kUnits && value == "0") {
    return {{"auto_wrap_policy", "NO_WRAP"}};
  }
  if (key == PlanKey::kUnits && value == "1" && !of.block.empty()) {
    return {{"auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
            {"transformer_layer_cls_to_wrap", of.block}};
  }
  if (key == PlanKey::kReshard && !first && (value == "no" || value == "auto")) {
    return {{"reshard_after_forward", value == "no" ? "false" : "true"}};
  }
  if (key == PlanKey::kForwardPrefetch && first) {
    return {{"forward_prefetch", value == "0" ? "false" : "true"}};
  }
  if (key == PlanKey::kBackwardPrefetch && first) {
    return {{"backward_prefetch", "BACKWARD_PRE"}};
  }
  return {};
}

Lines of_accelerate(const FrameworkProgram& of, const PlanEdit& edit, std::string_view value) {
  const PlanKey key = edit.key;
  if (const auto settings = fsdp_settings(of, key, value); !settings.empty()) {
    Lines out{"fsdp_config:"};
    for (const FsdpSetting& each : settings) {
      out.push_back(fmt::format("  fsdp_{}: {}", each.name, each.value));
    }
    return out;
  }
  if (key == PlanKey::kReshard && of.dialect == Dialect::kFsdp1 &&
      (value == "no" || value == "auto")) {
    return {"fsdp_config:", fmt::format("  fsdp_sharding_strategy: {}",
                                        value == "no" ? "SHARD_GRAD_OP" : "FULL_SHARD")};
  }
  if (key == PlanKey::kMesh && of.dialect == Dialect::kFsdp2) {
    return {"parallelism_config:",
            fmt::format("  parallelism_config_dp_replicate_size: {}", edit.numbers.first),
            fmt::format("  parallelism_config_dp_shard_size: {}", edit.numbers.second)};
  }
  if (key == PlanKey::kSharding && value == "replicate") {
    return {"distributed_type: MULTI_GPU  # instead of FSDP; without fsdp_config"};
  }
  if (key == PlanKey::kMicrobatches) {
    return {fmt::format("Accelerator(..., gradient_accumulation_steps={})", edit.numbers.second),
            fmt::format("DataLoader(..., batch_size={})", edit.numbers.first)};
  }
  if (key == PlanKey::kGradientSync) {
    return {"GradientAccumulationPlugin(..., sync_each_batch=False)"};
  }
  if (key == PlanKey::kBuckets) {
    return {
        fmt::format("Accelerator(..., kwargs_handlers=[DistributedDataParallelKwargs("
                    "bucket_cap_mb={})])",
                    value)};
  }
  return {};
}

// false is False in Python; names are strings.
std::string in_python(std::string_view value) {
  return value == "true" ? "True" : value == "false" ? "False" : fmt::format("\"{}\"", value);
}

Lines of_transformers(const FrameworkProgram& of, const PlanEdit& edit, std::string_view value) {
  const PlanKey key = edit.key;
  const auto argument = [](std::string_view text) {
    return Lines{fmt::format("TrainingArguments(..., {})", text)};
  };
  if (const auto settings = fsdp_settings(of, key, value); !settings.empty()) {
    std::string entries;
    for (const FsdpSetting& each : settings) {
      entries += fmt::format(", \"{}\": {}", each.name,
                             each.name == "transformer_layer_cls_to_wrap"
                                 ? "[" + in_python(each.value) + "]"
                                 : in_python(each.value));
    }
    return argument(fmt::format("fsdp_config={{...{}}}", entries));
  }
  if (key == PlanKey::kMesh && of.dialect == Dialect::kFsdp2) {
    return argument(
        fmt::format("parallelism_config=ParallelismConfig(dp_replicate_size={}, dp_shard_size={})",
                    edit.numbers.first, edit.numbers.second));
  }
  if (key == PlanKey::kSharding && value == "replicate") {
    return argument("fsdp=None, fsdp_config=None");
  }
  if (key == PlanKey::kMicrobatches) {
    return argument(fmt::format("per_device_train_batch_size={}, gradient_accumulation_steps={}",
                                edit.numbers.first, edit.numbers.second));
  }
  if (key == PlanKey::kGradientSync) {
    return argument(
        "accelerator_config={\"gradient_accumulation_kwargs\": {\"sync_each_batch\": False}}");
  }
  if (key == PlanKey::kBuckets) {
    return argument(fmt::format("ddp_bucket_cap_mb={}", value));
  }
  return {};
}

Lines of_torchtitan(const FrameworkProgram& of, const PlanEdit& edit, std::string_view value) {
  const PlanKey key = edit.key;
  if (key == PlanKey::kReshard && (value == "no" || value == "auto")) {
    return {"[parallelism]", fmt::format("fsdp_reshard_after_forward = \"{}\"",
                                         value == "no" ? "never" : "default")};
  }
  if (key == PlanKey::kCheckpoints) {
    return value == "0"   ? Lines{"[activation_checkpoint]", "mode = \"none\""}
           : value == "1" ? Lines{"[activation_checkpoint]", "mode = \"full\""}
                          : Lines{"[activation_checkpoint]", "mode = \"selective\"",
                                  fmt::format("selective_ac_option = \"{}\"", value)};
  }
  if (key == PlanKey::kMesh) {
    return {"[parallelism]", fmt::format("data_parallel_replicate_degree = {}", edit.numbers.first),
            fmt::format("data_parallel_shard_degree = {}", edit.numbers.second)};
  }
  if (key == PlanKey::kSharding && value == "replicate") {
    return {"[parallelism]", fmt::format("data_parallel_replicate_degree = {}", of.ranks),
            "data_parallel_shard_degree = 1"};
  }
  if (key == PlanKey::kMicrobatches) {
    return {
        "[training]", fmt::format("local_batch_size = {}", edit.numbers.first),
        fmt::format("global_batch_size = {}", edit.numbers.first * edit.numbers.second * of.ranks)};
  }
  return {};
}

Lines of_simple_fsdp(const PlanEdit& edit, std::string_view value) {
  switch (edit.key) {
    case PlanKey::kReshard:
      return value == "auto"
                 ? Lines{"# gather again in backward: around the gather a checkpoint whose policy is",
                         "# MUST_RECOMPUTE for all_gather_into_tensor and wait_tensor, compiled",
                         "# (torchtitan: parallelism.fsdp_reshard_after_forward = \"always\")"}
                 : Lines{"# keep what was gathered: around the gather no checkpoint that recomputes it",
                         "# (torchtitan: parallelism.fsdp_reshard_after_forward = \"never\")"};
    case PlanKey::kUnits:
      return {
          "from torch._inductor.fx_passes.overlap_manual_scheduling import "
          "manual_overlap_bucketing",
          "# in the compiler's backend, for each unit of the plan its module or a list of them:",
          "graph = manual_overlap_bucketing(graph, module_bucket_plans=units)"};
    case PlanKey::kForwardPrefetch:
    case PlanKey::kBackwardPrefetch:
      return value == "0" || value == "none"
                 ? Lines{"torch._inductor.config.reorder_for_compute_comm_overlap = False"}
                 : Lines{"# compiled: gathers are called before the compute that can hide them",
                         "torch._inductor.config.reorder_for_compute_comm_overlap = True"};
    case PlanKey::kMesh:
      return {fmt::format("mesh = init_device_mesh(device, ({}, {}), "
                          "mesh_dim_names=(\"dp_replicate\", \"dp_shard\"))",
                          edit.numbers.first, edit.numbers.second),
              "# distribute_tensor(parameter, mesh, (Replicate(), Shard(0)))"};
    case PlanKey::kCheckpoints:
    case PlanKey::kMicrobatches:
      return edit.pytorch;
    default:
      return {"# no setting does this: the program's own gathers and reductions have to change"};
  }
}

}  // namespace

std::string_view name_of(Framework framework) {
  return kNames.at(static_cast<size_t>(framework));
}

std::optional<Framework> framework_named(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) {
      return static_cast<Framework>(i);
    }
  }
  return std::nullopt;
}

std::vector<std::string> framework_settings(const FrameworkProgram& program, const PlanEdit& edit) {
  const size_t at = edit.id.find('=');
  if (at == std::string::npos) {
    return {};
  }
  const std::string_view value = std::string_view(edit.id).substr(at + 1);
  switch (program.framework) {
    case Framework::kPytorch:
      return {};
    case Framework::kAccelerate:
      return of_accelerate(program, edit, value);
    case Framework::kTransformers:
      return of_transformers(program, edit, value);
    case Framework::kTorchtitan:
      return of_torchtitan(program, edit, value);
    case Framework::kSimpleFsdp:
      return of_simple_fsdp(edit, value);
  }
  return {};
}

}  // namespace shardlens::plan
