#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_dump.h"
#include "core/json/json_reader.h"
#include "core/plan/plan.h"
#include "core/plan/plan_mesh_json.h"
#include "core/tree/glob.h"
#include "core/tree/wrap_policy.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;
using nlohmann::ordered_json;

constexpr size_t kMostUnits = 16384;  // four of each block of the largest model

const Names kDialects{"fsdp1", "fsdp2"};
const Names kLayouts{"flat", "per_parameter"};
const Names kViewNames{"fresh", "frozen"};
const Names kApis{"fully_shard", "replicate"};
const Names kBackwardPrefetchNames{"pre", "post", "none"};
const Names kFinalizations{"automatic", "waits", "reduces"};

const Names kPlanKeys{"version",
                      "mesh",
                      "tensor_parallel",
                      "sequence_parallel",
                      "loss_parallel",
                      "shared_gathers",
                      "context_parallel",
                      "expert_parallel",
                      "dialect",
                      "layout",
                      "views",
                      "units",
                      "reshard_after_forward",
                      "reshard_after_backward",
                      "requires_all_reduce",
                      "keep_unsharded_storage",
                      "backward_finalization",
                      "backward_prefetch",
                      "forward_prefetch",
                      "limit_all_gathers",
                      "separate_reduce_scatter_group",
                      "reduce_scatter_unused_params",
                      "reduce_scatter_max_input_buffers",
                      "dtype",
                      "mixed_precision",
                      "activation_checkpointing",
                      "checkpointing_saves",
                      "cpu_offload",
                      "optimizer_in_backward",
                      "ignored_modules",
                      "ignored_parameters",
                      "frozen_parameters",
                      "gradient_divide_factor",
                      "bucket_cap_mb",
                      "find_unused_parameters",
                      "static_graph",
                      "gradient_as_bucket_view"};
const Names kUnitKeys{"modules",
                      "api",
                      "reshard_after_forward",
                      "reshard_after_backward",
                      "requires_all_reduce",
                      "keep_unsharded_storage",
                      "unshard_in_backward",
                      "mixed_precision",
                      "cpu_offload",
                      "optimizer_in_backward",
                      "gradient_divide_factor",
                      "bucket_cap_mb",
                      "find_unused_parameters",
                      "static_graph",
                      "gradient_as_bucket_view",
                      "groups"};

std::string read_glob(const JsonNode& node) {
  std::string glob = node.string();
  const std::string problem = is_wrap_policy(glob) ? wrap_policy_problem(glob) : glob_problem(glob);
  if (!problem.empty()) {
    node.fail(problem);
  }
  return glob;
}

Names read_globs(const JsonNode& node) {
  Names out;
  for (const JsonNode& item : node.items("a list of globs")) {
    out.push_back(read_glob(item));
  }
  return out;
}

const Names kCheckpointSaves{"attention", "products", "every_second_product"};

CheckpointSaves read_checkpoint_saves(const JsonNode& node) {
  using Products = CheckpointSaves::Products;
  CheckpointSaves out;
  for (const JsonNode& item : node.items("a list of operators")) {
    const size_t which = item.one_of(kCheckpointSaves);
    if (which == 0) {
      out.attention = true;
      continue;
    }
    const Products products = which == 1 ? Products::kAll : Products::kEverySecond;
    if (out.products != Products::kNone && out.products != products) {
      item.fail("expected products or every_second_product, found both");
    }
    out.products = products;
  }
  return out;
}

Names checkpoint_saves_json(const CheckpointSaves& saves) {
  Names out;
  if (saves.attention) {
    out.push_back(kCheckpointSaves[0]);
  }
  if (saves.products != CheckpointSaves::Products::kNone) {
    out.push_back(kCheckpointSaves[saves.products == CheckpointSaves::Products::kAll ? 1 : 2]);
  }
  return out;
}

Reshard read_reshard(const JsonNode& node) {
  if (node.is_null()) {
    return {};
  }
  if (node.json().is_boolean()) {
    return {node.boolean() ? Reshard::Kind::kYes : Reshard::Kind::kNo, 0};
  }
  if (!node.json().is_number_integer()) {
    node.fail(fmt::format(
        "expected true, false, null or the number of ranks of a sub-mesh, found {}", node.shown()));
  }
  return {Reshard::Kind::kSubMesh, node.integer(1, kMostRanks)};
}

std::optional<double> read_positive_or_null(const JsonNode& node) {
  if (node.is_null()) {
    return std::nullopt;
  }
  const double number = node.number();
  if (number <= 0) {
    node.fail(fmt::format("expected a number above 0 or null, found {}", node.shown()));
  }
  return number;
}

std::optional<bool> read_optional_flag(const JsonNode& parent, std::string_view key) {
  const auto node = parent.find(key);
  return node ? std::optional(node->boolean()) : std::nullopt;
}

bool read_flag(const JsonNode& parent, std::string_view key, bool fallback) {
  return read_optional_flag(parent, key).value_or(fallback);
}

PrefetchLists read_prefetch_lists(const JsonNode& node) {
  PrefetchLists out;
  for (const std::string& key : node.keys()) {
    out[key] = node.find(key)->strings("a list of unit FQNs");
  }
  return out;
}

// Refuses keys that have no effect with the unit's API, instead of ignoring them silently.
void refuse_keys_of_other_api(const JsonNode& node, Api api) {
  constexpr std::array kOfFullyShard = {
      "reshard_after_forward",  "reshard_after_backward", "requires_all_reduce",
      "keep_unsharded_storage", "unshard_in_backward",    "cpu_offload",
      "optimizer_in_backward",  "gradient_divide_factor", "groups"};
  constexpr std::array kOfReplicate = {"bucket_cap_mb", "find_unused_parameters", "static_graph",
                                       "gradient_as_bucket_view"};
  const auto refuse = [&](const auto& keys, const char* other) {
    for (const char* key : keys) {
      if (const auto found = node.find(key); found && !found->json().is_null()) {
        found->fail(fmt::format("allowed only in a unit with \"api\": \"{}\"", other));
      }
    }
  };
  if (api == Api::kReplicate) {
    refuse(kOfFullyShard, "fully_shard");
  } else {
    refuse(kOfReplicate, "replicate");
  }
}

UnitEntry read_unit(const JsonNode& node) {
  node.expect_object("an object with \"modules\"");
  node.allow_only(kUnitKeys);
  UnitEntry out;
  const JsonNode modules = node.require("modules");
  if (modules.json().is_array()) {
    out.grouped = true;
    out.globs = read_globs(modules);
    if (out.globs.empty()) {
      modules.fail("expected at least one glob, found an empty list");
    }
  } else if (modules.json().is_string()) {
    out.globs.push_back(read_glob(modules));
  } else {
    modules.fail(fmt::format("expected a glob or a list of globs, found {}", modules.shown()));
  }
  if (const auto api = node.find("api")) {
    out.api = static_cast<Api>(api->one_of(kApis));
  }
  refuse_keys_of_other_api(node, out.api);
  if (const auto reshard = node.find("reshard_after_forward")) {
    out.reshard_after_forward = read_reshard(*reshard);
  }
  if (const auto mixed = node.find("mixed_precision")) {
    out.mixed_precision = read_mixed_precision(*mixed);
  }
  if (const auto factor = node.find("gradient_divide_factor")) {
    out.gradient_divide_factor = read_positive_or_null(*factor);
  }
  if (const auto cap = node.find("bucket_cap_mb")) {
    out.bucket_cap_mb = read_positive_or_null(*cap);
  }
  out.reshard_after_backward = read_optional_flag(node, "reshard_after_backward");
  out.requires_all_reduce = read_optional_flag(node, "requires_all_reduce");
  out.keep_unsharded_storage = read_optional_flag(node, "keep_unsharded_storage");
  out.unshard_in_backward = read_optional_flag(node, "unshard_in_backward");
  out.cpu_offload = read_optional_flag(node, "cpu_offload");
  out.optimizer_in_backward = read_optional_flag(node, "optimizer_in_backward");
  out.find_unused_parameters = read_optional_flag(node, "find_unused_parameters");
  out.static_graph = read_optional_flag(node, "static_graph");
  out.gradient_as_bucket_view = read_optional_flag(node, "gradient_as_bucket_view");
  out.groups = read_parameter_groups(node);
  return out;
}

void read_prefetch(const JsonNode& root, Plan& plan) {
  if (const auto node = root.find("backward_prefetch")) {
    if (node->json().is_object()) {
      plan.backward_prefetch_lists = read_prefetch_lists(*node);
    } else {
      plan.backward_prefetch = static_cast<BackwardPrefetch>(node->one_of(kBackwardPrefetchNames));
    }
    if (plan.dialect == Dialect::kFsdp2 && plan.backward_prefetch == BackwardPrefetch::kPost) {
      node->fail("dialect fsdp2 has no 'post'; expected 'pre', 'none' or {unit FQN: [unit FQNs]}");
    }
  }
  if (const auto node = root.find("forward_prefetch")) {
    if (node->json().is_object()) {
      plan.forward_prefetch_lists = read_prefetch_lists(*node);
    } else if (!node->json().is_number_integer()) {
      node->fail(
          fmt::format("expected a depth or {{unit FQN: [unit FQNs]}}, found {}", node->shown()));
    } else {
      plan.forward_prefetch = node->integer(0, plan.dialect == Dialect::kFsdp1 ? 1 : kMostRanks);
    }
  }
}

// FSDP1 has only FULL_SHARD and SHARD_GRAD_OP.
void check_reshard(const JsonNode& owner, Dialect dialect) {
  if (dialect != Dialect::kFsdp1) {
    return;
  }
  const auto node = owner.find("reshard_after_forward");
  if (node && node->json().is_number()) {
    node->fail(fmt::format("dialect fsdp1 has no sub-mesh; expected true, false or null, found {}",
                           node->shown()));
  }
  for (const auto& [key, standard] : {std::pair{"reshard_after_backward", true},
                                      {"requires_all_reduce", true},
                                      {"unshard_in_backward", true},
                                      {"keep_unsharded_storage", false}}) {
    if (const auto found = owner.find(key); found && found->boolean() != standard) {
      found->fail(fmt::format("dialect fsdp1 has no {}; expected dialect fsdp2", key));
    }
  }
}

// What FSDP2 has from PyTorch 2.13 on.
void read_later_options(const JsonNode& root, Plan& plan) {
  plan.separate_reduce_scatter_group =
      read_flag(root, "separate_reduce_scatter_group", plan.separate_reduce_scatter_group);
  plan.reduce_scatter_unused_params =
      read_flag(root, "reduce_scatter_unused_params", plan.reduce_scatter_unused_params);
  plan.keep_unsharded_storage =
      read_flag(root, "keep_unsharded_storage", plan.keep_unsharded_storage);
  if (const auto node = root.find("reduce_scatter_max_input_buffers")) {
    plan.reduce_scatter_max_input_buffers = node->integer(1, kMostUnits);
  }
  if (const auto node = root.find("backward_finalization")) {
    plan.backward_finalization = static_cast<Finalization>(node->one_of(kFinalizations));
    if (plan.backward_finalization != Finalization::kAutomatic && !plan.requires_all_reduce) {
      node->fail("FSDP2 cannot end a backward so without requires_all_reduce; expected automatic");
    }
  }
  if (plan.dialect == Dialect::kFsdp2) {
    return;
  }
  for (const auto& [key, is_set] :
       {std::pair{"reduce_scatter_unused_params", plan.reduce_scatter_unused_params},
        {"reduce_scatter_max_input_buffers", plan.reduce_scatter_max_input_buffers != 1},
        {"backward_finalization", plan.backward_finalization != Finalization::kAutomatic}}) {
    if (is_set) {
      root.require(key).fail(fmt::format("dialect fsdp1 has no {}; expected dialect fsdp2", key));
    }
  }
}

void read_replicate_options(const JsonNode& root, Plan& plan) {
  if (const auto node = root.find("bucket_cap_mb")) {
    plan.bucket_cap_mb = read_positive_or_null(*node);
  }
  plan.find_unused_parameters =
      read_flag(root, "find_unused_parameters", plan.find_unused_parameters);
  plan.static_graph = read_flag(root, "static_graph", plan.static_graph);
  plan.gradient_as_bucket_view =
      read_flag(root, "gradient_as_bucket_view", plan.gradient_as_bucket_view);
}

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json reshard_json(const Reshard& reshard) {
  switch (reshard.kind) {
    case Reshard::Kind::kAuto:
      return {};
    case Reshard::Kind::kYes:
      return true;
    case Reshard::Kind::kNo:
      return false;
    case Reshard::Kind::kSubMesh:
      return reshard.ranks;
  }
  return {};
}

ordered_json unit_json(const UnitEntry& entry) {
  ordered_json out;
  out["modules"] = entry.grouped ? ordered_json(entry.globs) : ordered_json(entry.globs.at(0));
  out["api"] = kApis[static_cast<size_t>(entry.api)];
  if (entry.reshard_after_forward) {
    out["reshard_after_forward"] = reshard_json(*entry.reshard_after_forward);
  }
  if (entry.mixed_precision) {
    out["mixed_precision"] = mixed_precision_json(*entry.mixed_precision);
  }
  const auto put = [&out](const char* key, const auto& value) {
    if (value) {
      out[key] = *value;
    }
  };
  put("reshard_after_backward", entry.reshard_after_backward);
  put("requires_all_reduce", entry.requires_all_reduce);
  put("keep_unsharded_storage", entry.keep_unsharded_storage);
  put("unshard_in_backward", entry.unshard_in_backward);
  put("cpu_offload", entry.cpu_offload);
  put("optimizer_in_backward", entry.optimizer_in_backward);
  put("gradient_divide_factor", entry.gradient_divide_factor);
  put("bucket_cap_mb", entry.bucket_cap_mb);
  put("find_unused_parameters", entry.find_unused_parameters);
  put("static_graph", entry.static_graph);
  put("gradient_as_bucket_view", entry.gradient_as_bucket_view);
  if (!entry.groups.empty()) {
    out["groups"] = parameter_groups_json(entry.groups);
  }
  return out;
}

}  // namespace

Plan parse_plan(std::string_view json, const std::string& source) {
  const nlohmann::json document = parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("an object with a sharding plan");
  root.allow_only(kPlanKeys);
  const JsonNode version = root.require("version");
  if (!version.json().is_number_integer() || version.json() != 1) {
    version.fail(fmt::format("expected 1, the only supported version, found {}", version.shown()));
  }
  Plan plan;
  plan.source = source;
  plan.mesh = read_mesh(root);
  plan.tensor_parallel = read_tensor_parallel(root);
  plan.sequence_parallel = read_flag(root, "sequence_parallel", plan.sequence_parallel);
  plan.loss_parallel = read_flag(root, "loss_parallel", plan.loss_parallel);
  plan.shared_gathers = read_flag(root, "shared_gathers", plan.shared_gathers);
  plan.context_method = read_context_method(root);
  plan.expert_dispatch = read_expert_dispatch(root);
  plan.ranks_per_token = read_ranks_per_token(root);
  if (const auto node = root.find("dialect")) {
    plan.dialect = static_cast<Dialect>(node->one_of(kDialects));
  }
  if (const auto node = root.find("layout")) {
    plan.layout = static_cast<Layout>(node->one_of(kLayouts));
  }
  if (const auto node = root.find("views")) {
    plan.views = static_cast<Views>(node->one_of(kViewNames));
  }
  if (const auto units = root.find("units")) {
    const std::vector<JsonNode> items = units->items("a list of units");
    if (items.size() > kMostUnits) {  // each is compared with every module
      units->fail(fmt::format("expected at most {} units, found {}", kMostUnits, items.size()));
    }
    for (const JsonNode& item : items) {
      plan.units.push_back(read_unit(item));
      check_reshard(item, plan.dialect);
    }
    if (plan.units.empty()) {
      units->fail("expected at least one unit, found an empty list");
    }
  }
  if (const auto node = root.find("reshard_after_forward")) {
    plan.reshard_after_forward = read_reshard(*node);
  }
  plan.reshard_after_backward =
      read_flag(root, "reshard_after_backward", plan.reshard_after_backward);
  plan.requires_all_reduce = read_flag(root, "requires_all_reduce", plan.requires_all_reduce);
  check_reshard(root, plan.dialect);
  read_prefetch(root, plan);
  plan.limit_all_gathers = read_flag(root, "limit_all_gathers", plan.limit_all_gathers);
  read_later_options(root, plan);
  plan.dtype = read_float_dtype(root, "dtype");
  if (const auto node = root.find("mixed_precision")) {
    plan.mixed_precision = read_mixed_precision(*node);
  }
  if (const auto node = root.find("activation_checkpointing")) {
    plan.activation_checkpointing = read_globs(*node);
  }
  if (const auto node = root.find("checkpointing_saves")) {
    plan.checkpointing_saves = read_checkpoint_saves(*node);
  }
  plan.cpu_offload = read_flag(root, "cpu_offload", plan.cpu_offload);
  plan.optimizer_in_backward = read_flag(root, "optimizer_in_backward", plan.optimizer_in_backward);
  if (const auto node = root.find("ignored_modules")) {
    plan.ignored_modules = read_globs(*node);
  }
  if (const auto node = root.find("ignored_parameters")) {
    plan.ignored_parameters = read_globs(*node);
  }
  if (const auto node = root.find("frozen_parameters")) {
    plan.frozen_parameters = read_globs(*node);
  }
  if (const auto node = root.find("gradient_divide_factor")) {
    plan.gradient_divide_factor = read_positive_or_null(*node);
  }
  read_replicate_options(root, plan);
  return plan;
}

Plan load_plan(const std::filesystem::path& path) {
  return parse_plan(read_text_file(path), path.string());
}

std::string to_json(const Plan& plan) {
  ordered_json out;
  out["version"] = 1;
  out["mesh"] = mesh_json(plan.mesh);
  if (!plan.tensor_parallel.empty()) {
    out["tensor_parallel"] = tensor_parallel_json(plan.tensor_parallel);
  }
  if (plan.mesh.tensor > 1 || !plan.sequence_parallel || plan.loss_parallel) {
    out["sequence_parallel"] = plan.sequence_parallel;
    out["loss_parallel"] = plan.loss_parallel;
  }
  if (!plan.shared_gathers) {
    out["shared_gathers"] = false;
  }
  if (plan.mesh.context > 1 || plan.context_method != ContextMethod::kAllGather) {
    out["context_parallel"] = context_parallel_json(plan.context_method);
  }
  if (plan.mesh.expert > 1 || plan.expert_dispatch != ExpertDispatch::kAllToAll) {
    out["expert_parallel"] = expert_parallel_json(plan);
  }
  out["dialect"] = kDialects[static_cast<size_t>(plan.dialect)];
  out["layout"] = kLayouts[static_cast<size_t>(plan.layout)];
  out["views"] = kViewNames[static_cast<size_t>(plan.views)];
  for (const UnitEntry& entry : plan.units) {
    out["units"].push_back(unit_json(entry));
  }
  out["reshard_after_forward"] = reshard_json(plan.reshard_after_forward);
  out["reshard_after_backward"] = plan.reshard_after_backward;
  out["requires_all_reduce"] = plan.requires_all_reduce;
  out["backward_prefetch"] =
      plan.backward_prefetch_lists.empty()
          ? ordered_json(kBackwardPrefetchNames[static_cast<size_t>(plan.backward_prefetch)])
          : ordered_json(plan.backward_prefetch_lists);
  out["forward_prefetch"] = plan.forward_prefetch_lists.empty()
                                ? ordered_json(plan.forward_prefetch)
                                : ordered_json(plan.forward_prefetch_lists);
  out["limit_all_gathers"] = plan.limit_all_gathers;
  out["separate_reduce_scatter_group"] = plan.separate_reduce_scatter_group;
  if (plan.reduce_scatter_unused_params) {
    out["reduce_scatter_unused_params"] = true;
  }
  if (plan.reduce_scatter_max_input_buffers != 1) {
    out["reduce_scatter_max_input_buffers"] = plan.reduce_scatter_max_input_buffers;
  }
  if (plan.keep_unsharded_storage) {
    out["keep_unsharded_storage"] = true;
  }
  if (plan.backward_finalization != Finalization::kAutomatic) {
    out["backward_finalization"] = kFinalizations[static_cast<size_t>(plan.backward_finalization)];
  }
  if (plan.dtype) {
    out["dtype"] = plan_name(*plan.dtype);
  }
  out["mixed_precision"] = mixed_precision_json(plan.mixed_precision);
  out["activation_checkpointing"] = plan.activation_checkpointing;
  out["checkpointing_saves"] = checkpoint_saves_json(plan.checkpointing_saves);
  out["cpu_offload"] = plan.cpu_offload;
  out["optimizer_in_backward"] = plan.optimizer_in_backward;
  out["ignored_modules"] = plan.ignored_modules;
  out["ignored_parameters"] = plan.ignored_parameters;
  out["frozen_parameters"] = plan.frozen_parameters;
  out["gradient_divide_factor"] = or_null(plan.gradient_divide_factor);
  out["bucket_cap_mb"] = or_null(plan.bucket_cap_mb);
  out["find_unused_parameters"] = plan.find_unused_parameters;
  out["static_graph"] = plan.static_graph;
  out["gradient_as_bucket_view"] = plan.gradient_as_bucket_view;
  return json_text(out, 2) + "\n";
}

}  // namespace shardlens::plan
