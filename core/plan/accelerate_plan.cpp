#include "core/plan/accelerate_plan.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/plan/accelerate_keys.h"
#include "core/plan/accelerate_units.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;

constexpr int64_t kLaunchMinParameters = 100'000'000;  // of accelerate launch

const Names kShardingStrategies{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                "HYBRID_SHARD_ZERO2"};
const Names kPrefetchNames{"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
const Names kWrapPolicies{"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"};

std::string in_upper_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return text;
}

// As accelerate's str_to_bool() reads a YAML or JSON value.
bool accelerate_flag(const JsonNode& node) {
  if (node.json().is_boolean()) {
    return node.boolean();
  }
  if (node.json().is_string()) {
    const std::string text = in_upper_case(node.string());
    for (const std::string_view yes : {"Y", "YES", "T", "TRUE", "ON", "1"}) {
      if (text == yes) {
        return true;
      }
    }
    for (const std::string_view no : {"N", "NO", "F", "FALSE", "OFF", "0"}) {
      if (text == no) {
        return false;
      }
    }
  }
  node.fail(fmt::format("expected true or false, found {}", node.shown()));
}

// The index of a name in upper or lower case, or a number from 1 on, as accelerate reads it.
size_t accelerate_choice(const JsonNode& node, const Names& names) {
  int64_t number = 0;
  if (node.json().is_number_integer()) {
    number = node.integer();
  } else {
    const std::string text = in_upper_case(node.string());
    if (const auto found = std::ranges::find(names, text); found != names.end()) {
      return static_cast<size_t>(found - names.begin());
    }
    std::from_chars(text.data(), text.data() + text.size(), number);
    if (number == 0) {
      node.fail(fmt::format("expected one of {}, found {}{}", quoted_list(names), node.shown(),
                            suggestion(text, names)));
    }
  }
  if (number < 1 || number > static_cast<int64_t>(names.size())) {
    node.fail(fmt::format("expected one of {}, or its number from 1 to {}, found {}",
                          quoted_list(names), names.size(), node.shown()));
  }
  return static_cast<size_t>(number - 1);
}

int64_t accelerate_number(const JsonNode& node, int64_t low, int64_t high) {
  int64_t value = 0;
  if (!node.json().is_string()) {
    return node.integer(low, high);
  }
  const std::string text = node.string();
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, value).ptr != end || value < low || value > high) {
    node.fail(fmt::format("expected a number from {} to {}, found {}", low, high, node.shown()));
  }
  return value;
}

// An object whose keys may have a prefix. What nothing asked for is refused by finish().
class AccelerateKeys {
 public:
  AccelerateKeys(const JsonNode& node, std::string_view prefix, ForeignPlan& out)
      : node_(node), prefix_(prefix), out_(out) {}

  // nullopt: absent or null.
  std::optional<JsonNode> find(std::string_view name) {
    known_.emplace_back(name);
    return value_of(name);
  }
  // The key has no effect: a note says so.
  void ignore(std::string_view name, std::string_view why) {
    if (const auto node = find(name)) {
      out_.notes.push_back(fmt::format("{} changes no plan: it {}", node->where(), why));
    }
  }
  void ignore(std::span<const NoPlanKey> keys) {
    for (const NoPlanKey& key : keys) {
      if (find(key.name)) {
        without_effect_ +=
            (without_effect_.empty() ? "" : ", ") + fmt::format("{} {}", key.name, key.why);
      }
    }
  }
  // Errors: InputError for a key that was not asked for.
  void finish() {
    if (!without_effect_.empty()) {
      out_.notes.push_back(
          fmt::format("{}: these keys change no plan: {}", node_.where(), without_effect_));
    }
    for (const std::string& key : node_.keys()) {
      const std::string name =
          key.starts_with(prefix_) ? key.substr(prefix_.size()) : std::string(key);
      if (std::ranges::find(known_, name) == known_.end()) {
        node_.require(key).fail(
            fmt::format("unknown key{}; expected one of accelerate's", suggestion(name, known_)));
      }
    }
  }
  [[nodiscard]] const JsonNode& node() const { return node_; }

 private:
  [[nodiscard]] std::optional<JsonNode> value_of(std::string_view name) const {
    for (const std::string& key : {prefix_ + std::string(name), std::string(name)}) {
      if (const auto node = node_.find(key); node && !node->is_null()) {
        return node;
      }
    }
    return std::nullopt;
  }

  JsonNode node_;
  std::string prefix_;
  ForeignPlan& out_;
  Names known_;
  std::string without_effect_;
};

class AccelerateReader {
 public:
  AccelerateReader(const JsonNode& root, const ModuleTree& tree) : root_(root), tree_(tree) {
    out_.plan.source = root.source();
  }

  ForeignPlan launch() {
    AccelerateKeys top(root_, "", out_);
    top.ignore(kLaunchKeys);
    const std::string type = distributed_type(top);
    if (const auto ranks = top.find("num_processes")) {
      out_.world_size = accelerate_number(*ranks, 1, kMostRanks);
    }
    if (const auto machines = top.find("num_machines")) {
      machines_ = accelerate_number(*machines, 1, kMostRanks);
    }
    for (const char* other : {"deepspeed_config", "megatron_lm_config"}) {
      if (const auto node = top.find(other); node && !node->json().empty()) {
        node->fail("expected none: only FSDP and data parallelism have plans");
      }
    }
    top.ignore("dynamo_config", "compiles the program");
    top.ignore("fp8_config", "says how products are multiplied in 8 bits");
    const auto fsdp = top.find("fsdp_config");
    const auto parallelism = top.find("parallelism_config");
    const auto precision = top.find("mixed_precision");
    top.finish();
    if (type == "FSDP") {
      read_fsdp(fsdp ? *fsdp : root_.with(kEmpty), false);
    } else {
      UnitEntry all = unit_of({""});
      all.api = Api::kReplicate;
      out_.plan.units = {all};
      out_.plan.layout = Layout::kPerParameter;
    }
    if (parallelism && !parallelism->json().empty()) {
      read_mesh(*parallelism);
    }
    if (precision) {
      read_precision(*precision, type == "FSDP");
    }
    if (!out_.plan.mixed_precision.param_dtype) {
      out_.notes.emplace_back(
          "parameters have the dtype in which the program loads its model, which is not in this "
          "file: 'dtype' of the plan, fp32 without it");
    }
    return std::move(out_);
  }

  ForeignPlan fsdp_config() {
    read_fsdp(root_, true);
    out_.notes.push_back(
        "precision is not in this file: bf16=True of TrainingArguments is --precision bf16, or "
        "mixed_precision of the plan");
    return std::move(out_);
  }

 private:
  static std::string distributed_type(AccelerateKeys& top) {
    static const Names kTypes{"FSDP", "MULTI_GPU", "MULTI_CPU"};
    const auto type = top.find("distributed_type");
    if (!type) {
      top.node().fail("key 'distributed_type' is missing; expected 'FSDP' or 'MULTI_GPU'");
    }
    const std::string text = in_upper_case(type->string());
    if (std::ranges::find(kTypes, text) == kTypes.end()) {
      type->fail(fmt::format("expected one of {}, whose parameters a plan describes; found {}{}",
                             quoted_list(kTypes), type->shown(), suggestion(text, kTypes)));
    }
    return text;
  }

  // `trainer`: the defaults are those of transformers.
  void read_fsdp(const JsonNode& node, bool trainer) {
    node.expect_object("an object with settings of FSDP");
    AccelerateKeys keys(node, "fsdp_", out_);
    Plan& plan = out_.plan;
    const auto version = keys.find("version");
    second_ = (version ? accelerate_number(*version, 1, 2) : trainer ? 2 : 1) == 2;
    plan.dialect = second_ ? Dialect::kFsdp2 : Dialect::kFsdp1;
    plan.layout = second_ ? Layout::kPerParameter : Layout::kFlat;
    keys.ignore(kFsdpKeys);
    read_strategy(keys, trainer);
    read_prefetch(keys);
    const auto offload = keys.find(trainer ? "cpu_offload" : "offload_params");
    plan.cpu_offload = offload && accelerate_flag(*offload);
    if (const auto limit = keys.find("limit_all_gathers")) {
      plan.limit_all_gathers = accelerate_flag(*limit);
    }
    for (const char* name : {"xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"}) {
      if (const auto xla = keys.find(name); xla && accelerate_flag(*xla)) {
        xla->fail("expected false: FSDP of XLA has no plan");
      }
    }
    keys.ignore("xla_fsdp_settings", "is of XLA");
    if (const auto ignored = keys.find("ignored_modules")) {
      plan.ignored_modules = modules_of_pattern(*ignored, tree_);
      if (plan.ignored_modules.empty()) {
        out_.notes.push_back(
            fmt::format("{} matches no module, so nothing is ignored", ignored->where()));
      }
    }
    const Names classes = read_wrap(keys, trainer);
    const auto checkpoints = keys.find("activation_checkpointing");
    const auto offloaded = keys.find("activation_checkpointing_offload");
    if (offloaded && accelerate_flag(*offloaded)) {
      offloaded->fail("expected false: a plan keeps the inputs of checkpoints on the device");
    }
    if (checkpoints && accelerate_flag(*checkpoints)) {
      if (classes.empty()) {
        checkpoints->fail(
            "expected false without TRANSFORMER_BASED_WRAP, whose classes are checkpointed");
      }
      plan.activation_checkpointing = modules_of_classes(tree_, classes);
    }
    keys.finish();
  }

  void read_strategy(AccelerateKeys& keys, bool trainer) {
    const auto strategy = keys.find("sharding_strategy");
    const auto reshard = keys.find("reshard_after_forward");
    Plan& plan = out_.plan;
    if (second_) {
      if (strategy) {
        keys.ignore("sharding_strategy", "is of version 1");
      }
      plan.reshard_after_forward.kind =
          !reshard || accelerate_flag(*reshard) ? Reshard::Kind::kYes : Reshard::Kind::kNo;
      return;
    }
    // accelerate takes sharding_strategy, which has a default, first.
    if (reshard) {
      keys.ignore("reshard_after_forward",
                  trainer ? "is of version 2: accelerate takes FULL_SHARD under version 1"
                          : "is of version 2: sharding_strategy takes precedence");
    }
    const size_t chosen = strategy ? accelerate_choice(*strategy, kShardingStrategies) : 0;
    if (chosen == 1 || chosen == 4) {
      plan.reshard_after_forward.kind = Reshard::Kind::kNo;
    }
    if (chosen == 2) {
      plan.mesh.shard = 1;
    } else if (chosen >= 3) {
      plan.mesh.replicate = machines_;
    }
  }

  void read_prefetch(AccelerateKeys& keys) {
    const auto backward = keys.find("backward_prefetch");
    const auto forward = keys.find("forward_prefetch");
    Plan& plan = out_.plan;
    if (second_) {
      if (backward) {
        (void)accelerate_choice(*backward, kPrefetchNames);
        keys.ignore("backward_prefetch", "is of version 1: FSDP2 prefetches the unit before");
      }
      if (forward) {
        (void)accelerate_flag(*forward);
        keys.ignore("forward_prefetch", "is of version 1");
      }
      return;
    }
    static constexpr BackwardPrefetch kKinds[] = {BackwardPrefetch::kPre, BackwardPrefetch::kPost,
                                                  BackwardPrefetch::kNone};
    plan.backward_prefetch = kKinds[backward ? accelerate_choice(*backward, kPrefetchNames) : 2];
    plan.forward_prefetch = forward && accelerate_flag(*forward) ? 1 : 0;
  }

  // The classes of TRANSFORMER_BASED_WRAP; none for another policy.
  Names read_wrap(AccelerateKeys& keys, bool trainer) {
    const auto policy = keys.find("auto_wrap_policy");
    const auto listed = keys.find("transformer_layer_cls_to_wrap");
    const auto least = keys.find("min_num_params");
    const size_t chosen = policy ? accelerate_choice(*policy, kWrapPolicies) : trainer ? 0 : 2;
    Names classes;
    std::vector<UnitEntry> wrapped;
    if (chosen == 0) {
      classes = listed ? classes_in(*listed) : classes_of_blocks(tree_);
      for (const std::string& each : classes) {
        if (listed) {
          require_class(*listed, tree_, each);
        }
        wrapped.push_back(unit_of({"class:" + each}));
      }
    } else if (chosen == 1) {
      const int64_t size = least ? accelerate_number(*least, 0, std::numeric_limits<int64_t>::max())
                           : trainer ? 0
                                     : kLaunchMinParameters;
      if (second_) {
        wrapped = units_above(keys.node(), tree_, size);
      } else if (size > 0) {
        wrapped.push_back(unit_of({fmt::format("size:{}", size)}));
      }
    }
    if (second_) {
      add_ends(tree_, wrapped);
    }
    wrapped.push_back(unit_of({""}));
    if (second_) {  // fully_shard's default
      wrapped.back().reshard_after_forward = Reshard{};
    }
    out_.plan.units = std::move(wrapped);
    return classes;
  }

  static Names classes_in(const JsonNode& node) {
    Names out;
    const Names texts =
        node.json().is_array() ? node.strings("names of classes") : Names{node.string()};
    for (const std::string& text : texts) {
      size_t begin = 0;
      while (begin <= text.size()) {
        const size_t end = std::min(text.find(',', begin), text.size());
        std::string name = text.substr(begin, end - begin);
        name.erase(0, std::min(name.find_first_not_of(' '), name.size()));
        name.erase(name.find_last_not_of(' ') + 1);
        if (!name.empty()) {
          out.push_back(std::move(name));
        }
        begin = end + 1;
      }
    }
    return out;
  }

  void read_mesh(const JsonNode& node) {
    if (!second_) {
      node.fail("expected none without version 2 of FSDP, as accelerate has it");
    }
    AccelerateKeys keys(node, "parallelism_config_", out_);
    keys.ignore(kMeshKeys);
    MeshSizes& mesh = out_.plan.mesh;
    const auto size = [&](std::string_view name) -> std::optional<int64_t> {
      const auto found = keys.find(name);
      return found ? std::optional(accelerate_number(*found, 1, kMostRanks)) : std::nullopt;
    };
    mesh.replicate = size("dp_replicate_size").value_or(1);
    mesh.shard = size("dp_shard_size");
    mesh.tensor = size("tp_size").value_or(1);
    mesh.context = size("cp_size").value_or(1);
    if (const auto sequence = keys.find("sp_size");
        sequence && accelerate_number(*sequence, 1, kMostRanks) > 1) {
      sequence->fail("expected 1: a plan has no axis of sequence parallelism");
    }
    keys.finish();
  }

  void read_precision(const JsonNode& node, bool sharded) {
    static const Names kPrecisions{"no", "fp16", "bf16", "fp8"};
    // YAML 1.1 reads a bare `no` as false.
    const size_t chosen = node.json() == false ? 0 : node.one_of(kPrecisions);
    if (chosen == 0) {
      return;
    }
    if (chosen == 3) {
      out_.notes.push_back(
          fmt::format("{}: gathers and reductions are in bf16; products in 8 bits are not part of "
                      "a plan",
                      node.where()));
    }
    if (!sharded) {
      out_.notes.push_back(fmt::format(
          "{} changes no plan: under DDP it is autocast, and parameters and gradients stay fp32",
          node.where()));
      return;
    }
    const DType dtype = chosen == 1 ? DType::kF16 : DType::kBF16;
    MixedPrecision& precision = out_.plan.mixed_precision;
    precision.param_dtype = precision.reduce_dtype = dtype;
    (second_ ? precision.output_dtype : precision.buffer_dtype) = dtype;
  }

  inline static const nlohmann::json kEmpty = nlohmann::json::object();
  JsonNode root_;
  const ModuleTree& tree_;
  ForeignPlan out_;
  bool second_ = false;  // FSDP2
  int64_t machines_ = 1;
};

}  // namespace

ForeignPlan plan_of_accelerate(const JsonNode& root, const ModuleTree& tree) {
  root.expect_object("the settings of accelerate, or an fsdp_config");
  AccelerateReader reader(root, tree);
  const bool launches =
      root.find("distributed_type") || root.find("fsdp_config") || root.find("compute_environment");
  return launches ? reader.launch() : reader.fsdp_config();
}

}  // namespace shardlens::plan
