#include "core/edits/pytorch_program.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;

std::string in_quotes(std::string_view name) {
  std::string out = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c;
  }
  return out + "\"";
}

std::string tuple(const Names& names) {
  Names quoted;
  for (const std::string& name : names) {
    quoted.push_back(in_quotes(name));
  }
  return fmt::format("({}{})", fmt::join(quoted, ", "), names.size() == 1 ? "," : "");
}

std::string_view last_part(std::string_view fqn) {
  return fqn.substr(fqn.rfind('.') + 1);
}

// Layers whose outputs are for several uses: their results are gathered.
bool for_several_uses(const Module& module) {
  const std::string_view name = last_part(module.fqn);
  return name == "qkv_proj" || name == "gate_up_proj";
}

class PytorchProgram {
 public:
  explicit PytorchProgram(const ResolvedPlan& plan) : plan_(plan) {}

  Names run() {
    for (const Unit& unit : plan_.units) {
      if (unit.api != Api::kFullyShard || plan_.plan.dialect != Dialect::kFsdp2) {
        throw UsageError(
            "--pytorch prints programs with fully_shard; expected a plan of dialect "
            "fsdp2 without replicate units");
      }
      if (unit.groups > 1 || unit.expert) {
        throw UsageError(
            "--pytorch does not print programs with an experts' mesh; expected a plan "
            "without expert");
      }
    }
    mesh();
    tensor();
    checkpoints();
    units();
    settings();
    step();
    degrees();
    return std::move(lines_);
  }

 private:
  template <typename... T>
  void line(fmt::format_string<T...> format, T&&... values) {
    lines_.push_back(fmt::format(format, std::forward<T>(values)...));
  }
  [[nodiscard]] int64_t size(std::string_view axis) const { return plan_.mesh.size(axis); }

  // FSDP shards over `shard` and `context` together.
  void mesh() {
    Names axes;
    std::vector<int64_t> sizes;
    for (const std::string_view axis :
         {mesh::kReplicate, mesh::kShard, mesh::kContext, mesh::kTensor}) {
      if (size(axis) > 1 || axis == mesh::kShard) {
        axes.emplace_back(axis);
        sizes.push_back(size(axis));
      }
    }
    line("mesh = init_device_mesh(device, ({}{}), mesh_dim_names={})", fmt::join(sizes, ", "),
         sizes.size() == 1 ? "," : "", tuple(axes));
    std::string_view shards = "shard";
    if (size(mesh::kContext) > 1) {
      line("mesh[\"shard\", \"context\"]._flatten(\"shard_context\")");
      shards = "shard_context";
    }
    sharding_ = size(mesh::kReplicate) > 1 ? fmt::format("mesh[\"replicate\", \"{}\"]", shards)
                                           : fmt::format("mesh[\"{}\"]", shards);
  }

  [[nodiscard]] bool in_rows() const { return plan_.plan.sequence_parallel; }
  [[nodiscard]] std::string_view between() const { return in_rows() ? "Shard(1)" : "Replicate()"; }

  // The dimension along which `tensor` divides the module's weight; -1: none.
  [[nodiscard]] int64_t dimension(const Module& module) const {
    for (const uint32_t index : module.parameters) {
      const Placement& placed = plan_.placements[index];
      if (plan_.tree.parameters[index].shape.size() >= 2 && placed.group != mesh::kNoGroup &&
          placed.group == plan_.group_named(mesh::kTensor)) {
        return placed.dim;
      }
    }
    return -1;
  }

  // The module's style; "": none. `depth`: of the module below its block; 0: outside of blocks.
  [[nodiscard]] std::string style(const Module& module, int64_t depth) const {
    const int64_t dim = dimension(module);
    const bool embedding = module.type.ends_with("Embedding");
    if (dim == 0 && embedding) {
      return fmt::format("RowwiseParallel(input_layouts=Replicate(), output_layouts={})",
                         between());
    }
    if (dim >= 0 && depth == 0) {
      const bool apart = plan_.plan.loss_parallel;
      return fmt::format(
          "ColwiseParallel(input_layouts={}, output_layouts={}, use_local_output={})", between(),
          apart ? "Shard(-1)" : "Replicate()", apart ? "False" : "True");
    }
    if (dim >= 0 && (dim == 0) != embedding) {
      return for_several_uses(module) ? "ColwiseParallel(output_layouts=Replicate())"
                                      : "ColwiseParallel()";
    }
    if (dim >= 0) {
      const std::vector<uint32_t>& siblings = plan_.tree.modules[module.parent].children;
      const bool whole = std::ranges::any_of(siblings, [&](uint32_t sibling) {
        return for_several_uses(plan_.tree.modules[sibling]);
      });
      return fmt::format("RowwiseParallel({}{}{})", whole ? "input_layouts=Replicate()" : "",
                         whole && in_rows() ? ", " : "",
                         in_rows() ? "output_layouts=Shard(1)" : "");
    }
    if (module.parameters.empty() || module.type.find("Norm") == std::string::npos) {
      return gathers(module) && depth > 0 ? input_style(module) : "";
    }
    return depth > 1   ? "SequenceParallel(sequence_dim=2, use_local_output=True)"  // of heads
           : in_rows() ? "SequenceParallel()"
                       : "";
  }

  // Whether layers by columns in the module share its input.
  [[nodiscard]] bool gathers(const Module& module) const {
    return in_rows() && std::ranges::any_of(module.children, [&](uint32_t child) {
             return dimension(plan_.tree.modules[child]) == 0;
           });
  }
  // transformers passes the input of attention by name.
  static std::string input_style(const Module& module) {
    return last_part(module.fqn) == "self_attn"
               ? "PrepareModuleInput(input_kwarg_layouts={\"hidden_states\": Shard(1)}, "
                 "desired_input_kwarg_layouts={\"hidden_states\": Replicate()})"
               : "PrepareModuleInput(input_layouts=(Shard(1),), "
                 "desired_input_layouts=(Replicate(),))";
  }

  // Adds the styles of the modules below `parent`, by their names in it.
  void add_styles(uint32_t parent, const std::string& prefix, int64_t depth, Names& out) const {
    for (const uint32_t child : plan_.tree.modules[parent].children) {
      const Module& module = plan_.tree.modules[child];
      if (std::ranges::find(plan_.tree.blocks, child) != plan_.tree.blocks.end()) {
        continue;
      }
      const std::string name = prefix.empty() ? std::string(last_part(module.fqn))
                                              : fmt::format("{}.{}", prefix, last_part(module.fqn));
      if (const std::string found = style(module, depth); !found.empty()) {
        out.push_back(fmt::format("{}: {}", in_quotes(name), found));
      }
      add_styles(child, name, depth == 0 ? 0 : depth + 1, out);
    }
  }

  void tensor() {
    if (size(mesh::kTensor) == 1) {
      return;
    }
    std::vector<std::pair<Names, Names>> groups;  // blocks with equal styles
    for (const uint32_t block : plan_.tree.blocks) {
      Names styles;
      add_styles(block, "", 1, styles);
      const auto same = std::ranges::find(groups, styles, &std::pair<Names, Names>::second);
      const std::string& fqn = plan_.tree.modules[block].fqn;
      if (same == groups.end()) {
        groups.emplace_back(Names{fqn}, std::move(styles));
      } else {
        same->first.push_back(fqn);
      }
    }
    Names outside;
    add_styles(0, "", 0, outside);
    groups.emplace_back(Names{}, std::move(outside));
    for (const auto& [blocks, styles] : groups) {
      if (styles.empty()) {
        continue;
      }
      line("styles = {{");
      for (const std::string& each : styles) {
        line("    {},", each);
      }
      line("}}");
      if (blocks.empty()) {
        line("parallelize_module(model, mesh[\"tensor\"], styles)");
      } else {
        line("for name in {}:", tuple(blocks));
        line("    parallelize_module(model.get_submodule(name), mesh[\"tensor\"], styles)");
      }
    }
  }

  void checkpoints() {
    if (plan_.checkpointed_modules.empty()) {
      return;
    }
    Names names;
    for (const uint32_t module : plan_.checkpointed_modules) {
      names.push_back(plan_.tree.modules[module].fqn);
    }
    line("chosen = {{model.get_submodule(name) for name in {}}}", tuple(names));
    line("apply_activation_checkpointing(model, check_fn=lambda module: module in chosen)");
    if (plan_.plan.checkpointing_saves != CheckpointSaves()) {
      line("# with a context_fn that keeps the results that the plan's checkpointing_saves names");
    }
  }

  [[nodiscard]] static std::string torch_name(DType dtype) {
    return dtype == DType::kBF16  ? "torch.bfloat16"
           : dtype == DType::kF16 ? "torch.float16"
                                  : "torch.float32";
  }
  [[nodiscard]] std::string arguments(const Unit& unit) const {
    std::string out = fmt::format("mesh={}", sharding_);
    const Reshard& reshard = unit.reshard_after_forward;
    if (reshard.kind == Reshard::Kind::kNo) {
      out += ", reshard_after_forward=False";
    } else if (reshard.kind == Reshard::Kind::kSubMesh) {
      out += fmt::format(", reshard_after_forward={}", reshard.ranks);
    } else if (reshard.kind == Reshard::Kind::kYes && unit.parent == kNoUnit) {
      out += ", reshard_after_forward=True";
    }
    const MixedPrecision& precision = unit.mixed_precision;
    Names policy;
    if (precision.param_dtype) {
      policy.push_back("param_dtype=" + torch_name(*precision.param_dtype));
    }
    if (precision.reduce_dtype) {
      policy.push_back("reduce_dtype=" + torch_name(*precision.reduce_dtype));
    }
    if (!policy.empty()) {
      out += fmt::format(", mp_policy=MixedPrecisionPolicy({})", fmt::join(policy, ", "));
    }
    return out + (unit.cpu_offload ? ", offload_policy=CPUOffloadPolicy()" : "");
  }

  // fully_shard takes nested units first. Units of one module with equal arguments share a loop.
  void units() {
    Names together;
    std::string shared;
    const auto flush = [&] {
      if (!together.empty()) {
        line("for name in {}:", tuple(together));
        line("    fully_shard(model.get_submodule(name), {})", shared);
        together.clear();
      }
    };
    for (size_t id = plan_.units.size(); id-- > 1;) {
      const Unit& unit = plan_.units[id];
      Names modules;
      for (const uint32_t module : unit.modules) {
        modules.push_back(plan_.tree.modules[module].fqn);
      }
      const std::string given = arguments(unit);
      if (modules.size() > 1 || given != shared) {
        flush();
      }
      shared = given;
      if (modules.size() == 1) {
        together.insert(together.begin(), modules.front());
      } else {
        line("fully_shard([model.get_submodule(name) for name in {}], {})", tuple(modules), given);
      }
    }
    flush();
    line("fully_shard(model, {})", arguments(plan_.units.front()));
  }

  // Settings that later versions have.
  void settings() {
    if (plan_.plan.separate_reduce_scatter_group) {
      line("model.set_separate_reduce_scatter_group(True)  # PyTorch 2.13 or newer");
    }
    if (plan_.plan.reduce_scatter_unused_params) {
      line("model.set_reduce_scatter_unused_params(True)  # PyTorch 2.13 or newer");
    }
    if (const int64_t inputs = plan_.plan.reduce_scatter_max_input_buffers; inputs > 1) {
      line("model.set_reduce_scatter_max_input_buffers({})  # PyTorch 2.15 or newer", inputs);
    }
    const bool all = std::ranges::all_of(plan_.units, &Unit::keep_unsharded_storage);
    if (all) {
      line("model.set_keep_unsharded_storage(True)  # PyTorch 2.15 or newer");
    }
    for (const Unit& unit : plan_.units) {
      if (unit.keep_unsharded_storage && !all) {
        line(
            "model.get_submodule({}).set_keep_unsharded_storage(True, recurse=False)  "
            "# PyTorch 2.15 or newer",
            in_quotes(plan_.tree.modules[unit.modules.front()].fqn));
      }
    }
    if (plan_.plan.backward_finalization != Finalization::kAutomatic) {
      line("model.set_manual_backward_finalization(True)  # PyTorch 2.15 or newer");
    }
  }

  void step() {
    if (plan_.plan.backward_finalization == Finalization::kReduces) {
      line("# each backward: after model.set_requires_gradient_sync(False)");
      line(
          "# after the last one: model.set_requires_gradient_sync(True); "
          "model.finalize_backward()");
    } else if (plan_.plan.backward_finalization == Finalization::kWaits) {
      line("# after a step's last backward: model.finalize_backward()");
    }
    if (size(mesh::kContext) > 1) {
      const bool ring = plan_.plan.context_method == ContextMethod::kRing;
      line("# once: set_rotate_method(\"{}\")", ring ? "alltoall" : "allgather");
      line(
          "# each forward and backward: with context_parallel(mesh[\"context\"], "
          "buffers=[tokens, labels], buffer_seq_dims=[1, 1]):");
    }
    if (size(mesh::kTensor) > 1 && plan_.plan.loss_parallel) {
      line("# loss and backward: with loss_parallel():");
    }
  }

  void degrees() {
    line(
        "# torchtitan: --parallelism.data_parallel_replicate_degree {} "
        "--parallelism.data_parallel_shard_degree {} --parallelism.context_parallel_degree {} "
        "--parallelism.tensor_parallel_degree {}",
        size(mesh::kReplicate), size(mesh::kShard), size(mesh::kContext), size(mesh::kTensor));
    if (size(mesh::kTensor) > 1 && !plan_.plan.loss_parallel) {
      line("# torchtitan: --parallelism.disable_loss_parallel");
    }
    if (size(mesh::kContext) > 1) {
      line("# torchtitan: --parallelism.context_parallel_rotate_method {}",
           plan_.plan.context_method == ContextMethod::kRing ? "alltoall" : "allgather");
    }
  }

  const ResolvedPlan& plan_;
  std::string sharding_;  // the mesh of fully_shard
  Names lines_;
};

}  // namespace

std::vector<std::string> pytorch_program(const ResolvedPlan& plan) {
  return PytorchProgram(plan).run();
}

}  // namespace shardlens::plan
