#include "core/model/model_file.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/families/config_values.h"
#include "core/tree/wrap_policy.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;

constexpr int64_t kMostTensors = int64_t{1} << 31;
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kMostFlops = int64_t{1} << 61;
constexpr int64_t kLargestSize = int64_t{1} << 40;

DType read_dtype(const JsonNode& node, DType other) {
  const std::string name = node.string();
  const auto parsed = parse_dtype(name);
  return parsed ? *parsed : other;
}

std::string parent_of(const std::string& fqn) {
  const size_t dot = fqn.rfind('.');
  return dot == std::string::npos ? "" : fqn.substr(0, dot);
}

// The modules of `modules`, in pre-order, and their parameters.
class FileTree {
 public:
  explicit FileTree(ModelFile& file) : file_(file) {}

  // `trained`: the parameters have the dtypes with which the model was trained, not those with
  // which it was only exported.
  void read(const JsonNode& root, bool trained) {
    trained_ = trained;
    for (const JsonNode& node : root.require("modules").items("a list of modules")) {
      add_module(node);
    }
    if (tree().modules.empty()) {
      root.require("modules").fail("expected at least the model itself");
    }
    for (const JsonNode& node : root.require("parameters").items("a list of parameters")) {
      add_parameter(node);
    }
    if (tree().parameters.empty()) {
      root.require("parameters").fail("expected at least one parameter");
    }
    find_blocks();
  }

 private:
  [[nodiscard]] ModuleTree& tree() { return file_.tree; }
  [[nodiscard]] const ModuleTree& tree() const { return file_.tree; }

  void add_module(const JsonNode& node) {
    node.expect_object("a module");
    Module module;
    module.fqn = node.require("fqn").string();
    module.type = node.require("class").string();
    const auto index = static_cast<uint32_t>(tree().modules.size());
    if ((index == 0) != module.fqn.empty()) {
      node.require("fqn").fail("expected the model itself, \"\", first and only there");
    }
    if (index > 0) {
      const auto parent = index_.find(parent_of(module.fqn));
      if (parent == index_.end()) {
        node.require("fqn").fail("expected a module after the one that contains it");
      }
      module.parent = parent->second;
      tree().modules[module.parent].children.push_back(index);
    }
    if (!index_.emplace(module.fqn, index).second) {
      node.require("fqn").fail("the module is listed twice");
    }
    const auto forward = node.find("forward");
    if (forward && !forward->boolean()) {
      file_.without_forward.push_back(module.fqn);
    }
    tree().modules.push_back(std::move(module));
  }

  void add_parameter(const JsonNode& node) {
    node.expect_object("a parameter");
    const std::string name = node.require("name").string();
    const auto owner = index_.find(parent_of(name));
    if (owner == index_.end()) {
      node.require("name").fail("expected the name of a parameter of a listed module");
    }
    Module& module = tree().modules[owner->second];
    if (const auto first = node.find("same_as"); first && !first->is_null()) {
      const auto found = parameter_.find(first->string());
      if (found == parameter_.end()) {
        first->fail("expected the name of an earlier parameter");
      }
      module.parameters.push_back(found->second);
      tree().parameters[found->second].aliases.push_back(name);
      return;
    }
    Parameter parameter;
    parameter.fqn = name;
    parameter.module = owner->second;
    parameter.numel = 1;
    for (const JsonNode& size : node.require("shape").items("the sizes of a shape")) {
      parameter.shape.push_back(size.integer(1, kLargestSize));
      if (parameter.numel > kLargestSize / parameter.shape.back()) {
        size.fail("the parameter has too many elements");
      }
      parameter.numel *= parameter.shape.back();
    }
    if (const auto flag = node.find("requires_grad")) {
      parameter.requires_grad = flag->boolean();
    }
    if (trained_) {
      parameter.dtype = read_dtype(node.require("dtype"), DType::kF32);
    }
    const auto index = static_cast<uint32_t>(tree().parameters.size());
    if (!parameter_.emplace(name, index).second) {
      node.require("name").fail("the parameter is listed twice");
    }
    module.parameters.push_back(index);
    tree().parameters.push_back(std::move(parameter));
  }

  using IsList = bool (FileTree::*)(const Module&) const;

  // The members of every outermost list that have parameters; without lists, those of a Sequential
  // that is not inside another, else the only member of a list.
  void find_blocks() {
    for (const IsList is_list :
         {&FileTree::is_list, &FileTree::is_sequential, &FileTree::is_list_of_one}) {
      collect(0, is_list);
      if (!tree().blocks.empty()) {
        std::sort(tree().blocks.begin(), tree().blocks.end());
        return;
      }
    }
  }

  void collect(uint32_t module, IsList is_list) {
    const Module& list = tree().modules[module];
    if (!(this->*is_list)(list)) {
      for (const uint32_t child : list.children) {
        collect(child, is_list);
      }
      return;
    }
    for (const uint32_t child : list.children) {
      if (!is_container(child) && !tree().subtree_parameters(child).empty()) {
        tree().blocks.push_back(child);
      } else {
        collect(child, is_list);
      }
    }
  }

  // A ModuleDict names either members that are alike, as torchtitan does with its layers, or parts
  // of a model, as nanoGPT does.
  [[nodiscard]] bool is_list(const Module& module) const {
    return module.children.size() > 1 &&
           (module.type == "ModuleList" ||
            (module.type == "ModuleDict" && (has_numbers(module) || has_equal_members(module))));
  }

  [[nodiscard]] bool is_sequential(const Module& module) const {
    return module.children.size() > 1 && module.type == "Sequential";
  }

  [[nodiscard]] bool is_list_of_one(const Module& module) const {
    return module.children.size() == 1 &&
           (module.type == "ModuleList" || (module.type == "ModuleDict" && has_numbers(module)));
  }

  [[nodiscard]] bool has_numbers(const Module& module) const {
    return std::ranges::all_of(module.children, [&](uint32_t child) {
      const std::string& fqn = tree().modules[child].fqn;
      return fqn.find_first_not_of("0123456789", fqn.rfind('.') + 1) == std::string::npos;
    });
  }

  // Members of one class without lists of their own.
  [[nodiscard]] bool has_equal_members(const Module& module) const {
    const std::string& type = tree().modules[module.children.front()].type;
    return std::ranges::all_of(module.children, [&](uint32_t child) {
      return tree().modules[child].type == type && !has_list(child);
    });
  }

  [[nodiscard]] bool has_list(uint32_t module) const {
    const Module& here = tree().modules[module];
    return plan::is_container(here) ||
           std::ranges::any_of(here.children, [&](uint32_t child) { return has_list(child); });
  }

  [[nodiscard]] bool is_container(uint32_t module) const {
    const std::string& fqn = tree().modules[module].fqn;
    return std::ranges::find(file_.without_forward, fqn) != file_.without_forward.end();
  }

  ModelFile& file_;
  bool trained_ = false;
  std::unordered_map<std::string, uint32_t> index_, parameter_;
};

// Whether shardlens.record wrote the file: it describes the parameters of a program that ran.
bool is_of_a_program(const JsonNode& root) {
  const auto origin = root.find("origin");
  const auto by = origin ? origin->find("made_by") : std::nullopt;
  return by && by->string().starts_with("shardlens.record");
}

class StepReader {
 public:
  StepReader(const JsonNode& node, DType dtype) : dtype_(dtype) {
    node.expect_object("a recorded step");
    step_.batch = node.require("batch").integer(1, kLargestSize);
    if (const auto seq = node.find("seq"); seq && !seq->is_null()) {
      step_.seq = seq->integer(1, kLargestPositions);
    }
    for (const JsonNode& tensor : node.require("tensors").items("a list of tensors")) {
      read_tensor(tensor);
    }
    for (const JsonNode& op : node.require("operators").items("a list of operators")) {
      read_operator(op);
    }
    for (const JsonNode& event : node.require("order").items("a list of events")) {
      read_event(event);
    }
    if (!open_.empty()) {
      node.require("order").fail(
          fmt::format("the forward of '{}' begins and does not end", open_.back()));
    }
  }

  RecordedStep take() { return std::move(step_); }

 private:
  void read_tensor(const JsonNode& node) {
    RecordedTensor out;
    out.bytes = node.require("bytes").integer(0, kMostBytes);
    const JsonNode dtype = node.require("dtype");
    out.model_dtype = parse_dtype(dtype.string()) == dtype_;
    out.dtype = read_dtype(dtype, DType::kF32);
    out.storage = node.require("storage").integer(0, kMostTensors);
    if (const auto flag = node.find("parameter")) {
      out.parameter = flag->boolean();
    }
    tensor_.emplace(node.require("id").integer(0, kMostTensors),
                    static_cast<uint32_t>(step_.tensors.size()));
    step_.tensors.push_back(out);
  }

  std::vector<uint32_t> tensors(const JsonNode& node, std::string_view key) {
    std::vector<uint32_t> out;
    if (const auto list = node.find(key)) {
      for (const JsonNode& id : list->items("ids of tensors")) {
        const auto found = tensor_.find(id.integer(0, kMostTensors));
        if (found == tensor_.end()) {
          id.fail("no tensor has this id");
        }
        out.push_back(found->second);
      }
    }
    return out;
  }

  void read_operator(const JsonNode& node) {
    static const Names kKinds{"gemm",         "attention", "embedding", "norm",
                              "elementwise",  "loss",      "optimizer", "convolution",
                              "grouped_gemm", "index",     "other"};
    static const std::vector<OperatorKind> kMeaning{
        OperatorKind::kGemm,        OperatorKind::kAttention,   OperatorKind::kEmbedding,
        OperatorKind::kNorm,        OperatorKind::kElementwise, OperatorKind::kLoss,
        OperatorKind::kOptimizer,   OperatorKind::kGemm,        OperatorKind::kGemm,
        OperatorKind::kElementwise, OperatorKind::kElementwise};
    static const Names kPhases{"forward", "backward"};
    node.expect_object("an operator");
    RecordedOperator out;
    const size_t kind = node.require("kind").one_of(kKinds);
    out.op.kind = kMeaning[kind];
    out.grouped = kKinds[kind] == "grouped_gemm";
    out.op.phase = node.require("phase").one_of(kPhases) == 0 ? Phase::kForward : Phase::kBackward;
    out.op.name = node.require("name").string();
    out.op.module = node.require("module").string();
    out.op.flops = node.require("flops").integer(0, kMostFlops);
    if (const auto product = node.find("product")) {
      const std::vector<JsonNode> sizes = product->items("batch, m, n and k");
      if (sizes.size() != 4) {
        product->fail("expected batch, m, n and k");
      }
      out.op.batch = sizes[0].integer(1, kLargestSize);
      out.op.m = sizes[1].integer(1, kLargestSize);
      out.op.n = sizes[2].integer(1, kLargestSize);
      out.op.k = sizes[3].integer(1, kLargestSize);
      if (!dimensions_fit(out.op)) {
        product->fail(fmt::format("batch x m x n x k is more than {}", kMostWork));
      }
    } else if (out.op.kind == OperatorKind::kGemm || out.op.kind == OperatorKind::kAttention) {
      out.op.kind = OperatorKind::kElementwise;  // of unknown shape
    }
    if (const auto causal = node.find("causal")) {
      out.op.causal = causal->boolean();
    }
    if (const auto read = node.find("read_bytes")) {
      out.op.read = read->integer(0, kMostBytes);
      out.op.written = node.require("written_bytes").integer(0, kMostBytes);
      out.has_traffic = true;
    }
    out.inputs = tensors(node, "inputs");
    out.outputs = tensors(node, "outputs");
    out.saved = tensors(node, "saved");
    if (const auto forward = node.find("forward"); forward && !forward->is_null()) {
      const auto found = operator_.find(forward->integer(0, kMostTensors));
      if (found == operator_.end()) {
        forward->fail("no earlier operator has this id");
      }
      out.op.forward = static_cast<int32_t>(found->second);
    }
    const auto index = static_cast<uint32_t>(step_.operators.size());
    operator_.emplace(node.require("id").integer(0, kMostTensors), index);
    step_.operators.push_back(std::move(out));
  }

  // ">fqn": its forward begins; "<fqn": it ends; "o3": operator 3. Operators of backward follow
  // from those of forward.
  void read_event(const JsonNode& node) {
    const std::string text = node.string();
    RecordedEvent out;
    if (text.starts_with('>') || text.starts_with('<')) {
      out.kind = text.front() == '>' ? RecordedEvent::Kind::kEnter : RecordedEvent::Kind::kLeave;
      out.module = text.substr(1);
      if (out.kind == RecordedEvent::Kind::kEnter) {
        open_.push_back(out.module);
      } else if (open_.empty()) {
        node.fail("the forward of a module ends that did not begin");
      } else if (open_.back() != out.module) {
        node.fail(fmt::format("expected the end of '{}', whose forward began last", open_.back()));
      } else {
        open_.pop_back();
      }
      step_.forward.push_back(std::move(out));
      return;
    }
    int64_t id = text.size() < 2 || text.size() > 11 || text.front() != 'o' ? -1 : 0;
    for (size_t i = 1; id >= 0 && i < text.size(); ++i) {
      id = text[i] >= '0' && text[i] <= '9' ? id * 10 + (text[i] - '0') : -1;
    }
    const auto found = operator_.find(id);
    if (found == operator_.end()) {
      node.fail("expected '>' or '<' and a module, or 'o' and the id of an operator");
    }
    out.index = found->second;
    if (step_.operators[out.index].op.phase == Phase::kForward) {
      step_.forward.push_back(std::move(out));
    }
  }

  DType dtype_;
  RecordedStep step_;
  std::unordered_map<int64_t, uint32_t> tensor_, operator_;
  Names open_;  // modules whose forward has begun
};

}  // namespace

std::shared_ptr<const ModelFile> read_model_file(const JsonNode& root) {
  if (root.require("shardlens_model").json() != 1) {
    root.require("shardlens_model").fail("expected 1, the only supported version");
  }
  auto file = std::make_shared<ModelFile>();
  file->name = root.require("name").string();
  if (const auto dtype = root.find("dtype")) {
    file->dtype = read_dtype(*dtype, DType::kF32);
  }
  if (const auto experts = root.find("experts"); experts && !experts->is_null()) {
    experts->expect_object("the experts of a layer");
    file->experts = experts->require("count").integer(1, kLargestSize);
  }
  FileTree(*file).read(root, is_of_a_program(root));
  if (const auto steps = root.find("steps"); steps && !steps->is_null()) {
    for (const JsonNode& step : steps->items("a list of recorded steps")) {
      file->steps.push_back(StepReader(step, file->dtype).take());
    }
  }
  return file;
}

StepSettings default_step(const ModelConfig& config, StepSettings settings) {
  if (config.file != nullptr && !config.file->steps.empty()) {
    settings.batch = config.file->steps.front().batch;
    settings.seq = config.file->steps.front().seq;
  }
  return settings;
}

}  // namespace shardlens::plan
