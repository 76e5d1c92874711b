#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/json/json_dump.h"
#include "core/plan/accelerate_plan.h"
#include "core/plan/accelerate_units.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using nlohmann::ordered_json;

class AccelerateWriter {
 public:
  AccelerateWriter(const ResolvedPlan& plan, AccelerateFile file)
      : resolved_(plan), plan_(plan.plan), file_(file), second_(plan_.dialect == Dialect::kFsdp2) {}

  AccelerateText write() {
    if (resolved_.is_replicated()) {
      return replicated();
    }
    require_settings();
    require_units_alike();
    ordered_json fsdp{{"version", second_ ? 2 : 1}};
    add_strategy(fsdp);
    add_wrap(fsdp);
    const bool yaml = file_ == AccelerateFile::kLaunchYaml;
    fsdp[yaml ? "offload_params" : "cpu_offload"] = plan_.cpu_offload;
    fsdp["activation_checkpointing"] = checkpoints();
    if (!second_) {
      add_first_version(fsdp);
    }
    AccelerateText out{.text = yaml ? launch_text(fsdp) : json_text(fsdp, 2) + "\n",
                       .notes = std::move(notes_)};
    add_dtype_note(out);
    if (plan_.mixed_precision.param_dtype && second_ && !plan_.mixed_precision.output_dtype) {
      out.notes.push_back("accelerate casts what a unit returns too (output_dtype)");
    }
    if (!yaml) {
      const auto size = [&](std::string_view axis) { return resolved_.mesh.size(axis); };
      if (size("replicate") * size("context") * size("tensor") > 1) {
        refuse("other axes of a mesh than 'shard' in an fsdp_config");
      }
      out.notes.push_back(precision_note());
      std::erase(out.notes, "");
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(plan_.source, fmt::format("a file of accelerate cannot say {}", what));
  }
  void require(bool holds, std::string_view key) const {
    if (!holds) {
      refuse(fmt::format("'{}' as the plan has it", key));
    }
  }

  void require_settings() const {
    require(plan_.views == Views::kFresh, "views");
    require(plan_.reshard_after_backward, "reshard_after_backward");
    require(plan_.requires_all_reduce, "requires_all_reduce");
    require(plan_.backward_prefetch_lists.empty(), "backward_prefetch");
    require(plan_.forward_prefetch_lists.empty(), "forward_prefetch");
    require(!second_ || plan_.forward_prefetch == 0, "forward_prefetch");
    require(!second_ || plan_.backward_prefetch == BackwardPrefetch::kPre, "backward_prefetch");
    require(plan_.limit_all_gathers, "limit_all_gathers");
    require(!plan_.separate_reduce_scatter_group, "separate_reduce_scatter_group");
    require(!plan_.reduce_scatter_unused_params, "reduce_scatter_unused_params");
    require(plan_.reduce_scatter_max_input_buffers == 1, "reduce_scatter_max_input_buffers");
    require(!plan_.keep_unsharded_storage, "keep_unsharded_storage");
    require(plan_.backward_finalization == Finalization::kAutomatic, "backward_finalization");
    require(!plan_.checkpointing_saves.any(), "checkpointing_saves");
    if (plan_.dtype && *plan_.dtype != DType::kF32 && precision() != "no") {
      refuse("a 'dtype' with mixed precision, for which accelerate converts parameters to fp32");
    }
    require(!plan_.optimizer_in_backward, "optimizer_in_backward");
    require(plan_.ignored_modules.empty(), "ignored_modules");
    require(plan_.ignored_parameters.empty(), "ignored_parameters");
    require(!plan_.gradient_divide_factor, "gradient_divide_factor");
    require(plan_.mesh.expert == 1, "mesh.expert");
    require(plan_.tensor_parallel.empty(), "tensor_parallel");
    if (!plan_.frozen_parameters.empty()) {
      refuse("'frozen_parameters', which the program freezes itself");
    }
  }

  void require_units_alike() const {
    for (const Unit& unit : resolved_.units) {
      const bool alike =
          unit.api == Api::kFullyShard && unit.mixed_precision == plan_.mixed_precision &&
          unit.cpu_offload == plan_.cpu_offload && !unit.optimizer_in_backward &&
          !unit.gradient_divide_factor && unit.reshard_after_backward && unit.requires_all_reduce &&
          unit.unshard_in_backward && !unit.keep_unsharded_storage;
      if (!alike) {
        refuse(fmt::format("that unit '{}' has settings of its own", unit.fqn));
      }
    }
  }

  // Units of one module below the root that are no end (embedding, final norm, head).
  [[nodiscard]] std::vector<const Unit*> wrapped() const {
    std::vector<UnitEntry> ends;
    add_ends(resolved_.tree, ends);
    std::set<std::string> names;
    for (const UnitEntry& each : second_ ? ends : std::vector<UnitEntry>{}) {
      names.insert(each.globs.begin(), each.globs.end());
    }
    std::vector<const Unit*> out;
    for (const Unit& unit : resolved_.units) {
      if (unit.parent != kNoUnit && unit.modules.size() == 1 && !names.contains(unit.fqn)) {
        out.push_back(&unit);
      }
    }
    return out;
  }

  [[nodiscard]] std::vector<std::string> classes() const {
    std::vector<std::string> out;
    for (const Unit* unit : wrapped()) {
      const std::string& type = resolved_.tree.modules[unit->modules.front()].type;
      if (std::ranges::find(out, type) == out.end()) {
        out.push_back(type);
      }
    }
    return out;
  }

  void add_strategy(ordered_json& fsdp) {
    std::set<Reshard::Kind> kinds;
    for (const Unit* unit : wrapped()) {
      const Reshard::Kind kind = unit->reshard_after_forward.kind;
      kinds.insert(kind == Reshard::Kind::kAuto ? Reshard::Kind::kYes : kind);
    }
    if (kinds.size() > 1 || kinds.contains(Reshard::Kind::kSubMesh)) {
      refuse("reshard_after_forward of each unit, nor a part of the ranks");
    }
    const bool keeps = kinds.contains(Reshard::Kind::kNo);
    if (second_) {
      fsdp["reshard_after_forward"] = !keeps;
      return;
    }
    if (file_ == AccelerateFile::kFsdpConfigJson) {
      if (keeps || resolved_.mesh.size("replicate") > 1) {
        refuse("another strategy than FULL_SHARD in an fsdp_config of version 1");
      }
      return;
    }
    const int64_t replicas = resolved_.mesh.size("replicate");
    const int64_t shards = resolved_.mesh.size("shard");
    if (shards == 1 && replicas > 1) {
      fsdp["sharding_strategy"] = "NO_SHARD";
    } else if (replicas > 1) {
      fsdp["sharding_strategy"] = keeps ? "HYBRID_SHARD_ZERO2" : "HYBRID_SHARD";
      machines_ = replicas;
      notes_.push_back(fmt::format("HYBRID_SHARD shards within a machine: {} machines of {} GPUs",
                                   replicas, shards));
    } else {
      fsdp["sharding_strategy"] = keeps ? "SHARD_GRAD_OP" : "FULL_SHARD";
    }
  }

  void add_wrap(ordered_json& fsdp) {
    const std::vector<std::string> names = classes();
    fsdp["auto_wrap_policy"] = names.empty() ? "NO_WRAP" : "TRANSFORMER_BASED_WRAP";
    if (!names.empty()) {
      fsdp["transformer_layer_cls_to_wrap"] =
          file_ == AccelerateFile::kLaunchYaml
              ? ordered_json(fmt::format("{}", fmt::join(names, ",")))
              : ordered_json(names);
    }
    note_units(names);
  }

  // Where accelerate's units differ from the plan's.
  void note_units(const std::vector<std::string>& names) {
    Plan other = plan_;
    other.units.clear();
    for (const std::string& each : names) {
      other.units.push_back(unit_of({"class:" + each}));
    }
    if (second_) {
      add_ends(resolved_.tree, other.units);
    }
    other.units.push_back(unit_of({""}));
    const ResolvedPlan theirs = resolve(other, resolved_.tree, resolved_.world_size);
    std::set<std::string> ours_names, their_names;
    for (const Unit& unit : resolved_.units) {
      ours_names.insert(unit.fqn);
    }
    for (const Unit& unit : theirs.units) {
      their_names.insert(unit.fqn);
      if (!ours_names.contains(unit.fqn)) {
        notes_.push_back(
            fmt::format("accelerate makes a unit of '{}', the plan does not", unit.fqn));
      }
    }
    for (const std::string& each : ours_names) {
      if (!their_names.contains(each)) {
        notes_.push_back(fmt::format("the plan makes a unit of '{}', accelerate does not", each));
      }
    }
    const Layout layout = second_ ? Layout::kPerParameter : Layout::kFlat;
    if (plan_.layout != layout) {
      notes_.push_back(second_ ? "FSDP2 shards each parameter; the plan has flat parameters"
                               : "FSDP1 has flat parameters; the plan shards each parameter");
    }
  }

  [[nodiscard]] bool checkpoints() const {
    if (resolved_.checkpointed_modules.empty()) {
      return false;
    }
    const std::vector<std::string> names = classes();
    std::vector<uint32_t> theirs;
    for (uint32_t i = 0; i < resolved_.tree.modules.size(); ++i) {
      if (std::ranges::find(names, resolved_.tree.modules[i].type) != names.end()) {
        theirs.push_back(i);
      }
    }
    if (theirs != resolved_.checkpointed_modules) {
      refuse("which modules are checkpointed: either every module of the wrapped classes, or none");
    }
    return true;
  }

  void add_first_version(ordered_json& fsdp) {
    static constexpr std::string_view kNames[] = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
    fsdp["backward_prefetch"] = kNames[static_cast<size_t>(plan_.backward_prefetch)];
    fsdp["forward_prefetch"] = plan_.forward_prefetch > 0;
    fsdp["use_orig_params"] = true;
  }

  // "no", "bf16" or "fp16".
  [[nodiscard]] std::string precision() const {
    const MixedPrecision& precision = plan_.mixed_precision;
    if (!precision.param_dtype && !precision.reduce_dtype) {
      return "no";
    }
    const DType dtype = precision.param_dtype.value_or(DType::kF32);
    if (dtype == DType::kF32 || precision.reduce_dtype.value_or(dtype) != dtype) {
      refuse("parameters and reductions of different dtypes; expected bf16 or fp16 for both");
    }
    return dtype == DType::kBF16 ? "bf16" : "fp16";
  }
  [[nodiscard]] std::string precision_note() const {
    const std::string name = precision();
    return name == "no" ? "" : fmt::format("{}=True of TrainingArguments sets the precision", name);
  }

  void add_dtype_note(AccelerateText& out) const {
    if (plan_.dtype) {
      out.notes.push_back(
          fmt::format("the program has to load its model in {} ('dtype' of the plan): no key of "
                      "accelerate converts it",
                      plan_name(*plan_.dtype)));
    }
  }

  AccelerateText replicated() {
    if (file_ == AccelerateFile::kFsdpConfigJson) {
      refuse("DDP in an fsdp_config");
    }
    AccelerateText out{
        fmt::format("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n"
                    "mixed_precision: {}\nnum_machines: 1\nnum_processes: {}\n",
                    quoted(precision()), resolved_.world_size),
        {}};
    add_dtype_note(out);
    return out;
  }

  // A bare `no` is false in YAML 1.1.
  static std::string quoted(const std::string& word) { return word == "no" ? "'no'" : word; }

  std::string launch_text(const ordered_json& fsdp) {
    std::string out = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n";
    for (const auto& [key, value] : fsdp.items()) {
      out += fmt::format("  fsdp_{}: {}\n", key,
                         value.is_string() ? value.get<std::string>() : value.dump());
    }
    out += fmt::format("mixed_precision: {}\nnum_machines: {}\nnum_processes: {}\n",
                       quoted(precision()), machines_, resolved_.world_size);
    const auto size = [&](std::string_view axis) { return resolved_.mesh.size(axis); };
    if (!second_ && size("context") * size("tensor") > 1) {
      refuse("other axes than replicas and shards under version 1");
    }
    if (second_ && size("replicate") * size("context") * size("tensor") > 1) {
      out += fmt::format(
          "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n"
          "  parallelism_config_dp_shard_size: {}\n  parallelism_config_tp_size: {}\n"
          "  parallelism_config_cp_size: {}\n",
          size("replicate"), size("shard"), size("tensor"), size("context"));
    }
    return out;
  }

  const ResolvedPlan& resolved_;
  const Plan& plan_;
  AccelerateFile file_;
  bool second_;  // FSDP2
  int64_t machines_ = 1;
  std::vector<std::string> notes_;
};

}  // namespace

AccelerateText accelerate_text(const ResolvedPlan& plan, AccelerateFile file) {
  return AccelerateWriter(plan, file).write();
}

}  // namespace shardlens::plan
