#include "core/model/step_workload.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/families/heads.h"
#include "core/model/families/model_family.h"
#include "core/model/families/tensor_part.h"
#include "core/model/mesh_support.h"
#include "core/model/model_file.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

namespace {

// Whether the model ends with a head for the next token.
bool has_head(const ModelConfig& config) {
  return config.file == nullptr && config.head == ModelHead::kCausal && config.patches == 0 &&
         config.family != "mlp";
}

// Errors: InputError for software that this model or plan cannot run under.
void require_software(const ModelConfig& config,
                      const ResolvedPlan& plan,
                      const Software& software) {
  if (config.file != nullptr && software.compile != Compile::kNone) {
    throw InputError(config.source,
                     "compile: the operators of a model file were recorded eagerly, and which of "
                     "them compiled code has is not known; expected a config.json");
  }
  if (config.file != nullptr && software.matmul_dtype) {
    throw InputError(config.source,
                     "matmul_dtype: the products of a model file were recorded with their dtypes; "
                     "expected a config.json");
  }
  if (software.loss_chunks.value_or(1) > 1 && !has_head(config)) {
    throw InputError(config.source,
                     "loss_chunks: expected a config.json of a model with a head for the next "
                     "token");
  }
  if (software.matmul_tail > 0 && !software.matmul_dtype) {
    throw InputError("matmul_tail",
                     "all blocks have the plan's products without matmul_dtype; expected a "
                     "matmul_dtype, or 0");
  }
  if (software.matmul_tail > 0 && software.matmul_tail >= std::ssize(plan.tree.blocks)) {
    throw InputError("matmul_tail", fmt::format("the model has {} blocks; expected fewer, found {}",
                                                plan.tree.blocks.size(), software.matmul_tail));
  }
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    if (plan.units[id].mixed_precision.gathers_float8 && software.matmul_tail > 0) {
      throw InputError("matmul_tail",
                       fmt::format("unit '{}' gathers float8, which the last blocks do not; "
                                   "expected 0, or a plan without gather_dtype",
                                   plan.units[id].fqn));
    }
    if (plan.units[id].mixed_precision.gathers_float8 &&
        (software.matmul_dtype != MatmulDType::kFp8Tensorwise ||
         size_of(plan.param_dtype(id)) != 2)) {
      throw InputError(
          plan.plan.source + "#/mixed_precision/gather_dtype",
          fmt::format("unit '{}' would gather float8 with one scale for a tensor, in which its "
                      "linear layers do not multiply; expected --matmul-dtype fp8_tensorwise, and "
                      "param_dtype bf16",
                      plan.units[id].fqn));
    }
  }
  if (software.cuda_graphs && plan.plan.dialect == Dialect::kFsdp1 && plan.plan.limit_all_gathers) {
    throw InputError(plan.plan.source + "#/limit_all_gathers",
                     "cuda_graphs: with the limiter the host waits for the device, which a CUDA "
                     "graph cannot contain; expected false, or dialect fsdp2");
  }
}

// Errors: InputError for what SimpleFSDP and GraphTrainer do not do: see [Note: Traced steps].
void require_traced(const ModelConfig& config,
                    const ResolvedPlan& plan,
                    const StepSettings& settings) {
  const bool graphs = settings.program == Program::kGraphTrainer;
  const std::string_view name = graphs ? "GraphTrainer" : "SimpleFSDP";
  if (settings.software.compile == Compile::kBlock) {
    throw InputError(config.source,
                     fmt::format("compile block: {} traces the whole model; expected model, which "
                                 "inductor compiles, or none, which runs the traced operators",
                                 name));
  }
  if (settings.software.cuda_graphs && !graphs) {
    throw InputError(config.source,
                     "cuda_graphs: SimpleFSDP does not capture its graphs; expected no CUDA "
                     "graphs, or --stack graph-trainer");
  }
  if (plan.plan.dialect != Dialect::kFsdp2 || plan.plan.layout != Layout::kPerParameter) {
    throw InputError(plan.plan.source + "#/layout",
                     fmt::format("{} shards each parameter; expected dialect fsdp2 with layout "
                                 "per_parameter",
                                 name));
  }
  for (const Unit& unit : plan.units) {
    const char* const what = unit.api == Api::kReplicate  ? "api replicate"
                             : unit.cpu_offload           ? "cpu_offload"
                             : unit.optimizer_in_backward ? "optimizer_in_backward"
                                                          : nullptr;
    if (what != nullptr) {
      throw InputError(plan.plan.source + "#/units",
                       fmt::format("unit '{}' has {}, which {} does not have; expected units of "
                                   "fully_shard without it",
                                   unit.fqn, what, name));
    }
  }
}

}  // namespace

Workload step_workload(const ModelConfig& config,
                       const ResolvedPlan& plan,
                       const StepSettings& given) {
  if (is_torchtitan(given.program)) {
    if (const std::string why = torchtitan_refusal(config); !why.empty()) {
      throw InputError(config.source, "torchtitan: " + why);
    }
  }
  StepSettings settings = given;
  if (!settings.software.loss_chunks && has_head(config)) {
    settings.software.loss_chunks = software_by_default(settings.program).loss_chunks;
  }
  require_software(config, plan, settings.software);
  if (is_traced(settings.program)) {
    require_traced(config, plan, settings);
  }
  require_mesh(config, plan, settings);
  if (config.file != nullptr) {
    return recorded_workload(config, plan, settings);
  }
  const bool images = config.patches > 0;
  const int64_t seq = images ? config.patches + 1 : tokens_of(settings);
  if (images) {
    require_valid(settings, "");
  } else if (seq > config.max_positions) {
    throw InputError(config.source, fmt::format("seq {} is longer than the model's {} positions",
                                                seq, config.max_positions));
  }
  if (std::ranges::none_of(plan.tree.parameters, &Parameter::requires_grad)) {
    throw InputError(plan.plan.source + "#/frozen_parameters",
                     "every parameter is frozen; expected at least one that is not frozen");
  }
  const int64_t parts = settings.software.loss_chunks.value_or(1);
  const int64_t local = images ? seq : seq / plan.mesh.size(mesh::kContext);
  if (operators_of(settings.program) == Program::kTorchtitan03 && local % parts != 0) {
    throw InputError(
        "loss_chunks",
        fmt::format("torchtitan divides each rank's {} tokens of a sample into {} equal "
                    "parts; expected a sequence that allows that",
                    local, parts));
  }
  if (settings.expert_skew > 0 && config.experts.count == 0) {
    throw InputError(config.source, "expert_skew: the model has no experts");
  }
  WorkloadBuilder build(plan, settings.batch, seq / plan.mesh.size(mesh::kContext));
  build.set_settings(settings);
  build.enter("");
  family_of(config).forward(build, tensor_part(config, plan));
  const int64_t classes = images ? config.labels : outputs_of_head(config);
  const bool inside = settings.program == Program::kTransformers;  // the model returns the loss
  if (!inside) {
    build.leave();
  }
  if (classes > 0) {
    build.loss(classes);
  }
  if (inside) {
    build.leave();
  }
  build.finish_backward();
  build.optimizer(settings);
  return build.take();
}

}  // namespace shardlens::plan
