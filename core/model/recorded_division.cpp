#include "core/model/recorded_division.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/divided_weights.h"

namespace shardlens::plan {
namespace {

// The part of a tensor that a rank has: all, some rows, or some features of each row.
enum class Has : uint8_t { kAll, kRows, kFeatures };
enum class By : uint8_t { kNothing, kColumns, kRows, kTable };  // how a weight is divided

class RecordedDivider {
 public:
  RecordedDivider(const ResolvedPlan& plan, const RecordedStep& step)
      : plan_(plan),
        step_(step),
        dimensions_(divided_weights(plan)),
        by_(step.operators.size(), By::kNothing),
        on_(step.operators.size(), Has::kAll) {
    out_.ranks = plan.mesh.size(mesh::kTensor);
  }

  RecordedDivision run() {
    if (dimensions_.empty()) {
      fail("no module is divided; expected styles of modules in tensor_parallel");
    }
    out_.operators.resize(step_.operators.size());
    for (const RecordedOperator& each : step_.operators) {
      if (each.op.forward >= 0) {
        used_.insert(each.inputs.begin(), each.inputs.end());
      }
    }
    find_head();
    for (const RecordedEvent& event : step_.forward) {
      if (event.kind == RecordedEvent::Kind::kOperator) {
        forward(event.index);
      }
    }
    for (uint32_t i = 0; i < step_.operators.size(); ++i) {
      if (step_.operators[i].op.forward >= 0) {
        backward(i);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw InputError(plan_.plan.source + "#/tensor_parallel", why);
  }
  [[noreturn]] void fail_at(const Operator& op, std::string_view why) const {
    fail(fmt::format("'{}' in module '{}' {}", op.name, op.module, why));
  }
  void require_divisible(int64_t count, const Operator& op, std::string_view what) const {
    if (count % out_.ranks != 0) {
      throw InputError(plan_.plan.source + "#/mesh/tensor",
                       fmt::format("tensor {} does not divide {} {} of module '{}'; expected a "
                                   "divisor of {}",
                                   out_.ranks, count, what, op.module, count));
    }
  }
  [[nodiscard]] const RecordedTensor& tensor(uint32_t index) const { return step_.tensors[index]; }

  // How the weight that the operator takes is divided.
  [[nodiscard]] By division_of(const RecordedOperator& each) const {
    const auto found = dimensions_.find(each.op.module);
    const bool takes =
        std::ranges::any_of(each.inputs, [&](uint32_t input) { return tensor(input).parameter; });
    if (found == dimensions_.end() || !takes) {
      return By::kNothing;
    }
    if (each.op.kind == OperatorKind::kEmbedding) {
      if (found->second != 0) {
        fail_at(each.op, "is divided by features; expected style vocabulary or replicate");
      }
      return By::kTable;
    }
    if (each.op.kind != OperatorKind::kGemm) {
      fail_at(each.op,
              "has a weight that is divided, and is no linear layer or embedding; expected "
              "style replicate");
    }
    return found->second == 0 ? By::kColumns : By::kRows;
  }

  void find_head() {
    for (const RecordedEvent& event : step_.forward) {
      if (event.kind != RecordedEvent::Kind::kOperator) {
        continue;
      }
      const By by = by_[event.index] = division_of(step_.operators[event.index]);
      head_ = by == By::kColumns ? std::optional(event.index)
              : by == By::kRows  ? std::nullopt
                                 : head_;
    }
    if (plan_.plan.loss_parallel && !head_) {
      fail(
          "loss_parallel: no module that makes the logits is divided; expected style column for "
          "it");
    }
  }

  void forward(uint32_t index) {
    const RecordedOperator& each = step_.operators[index];
    DividedOperator& out = out_.operators[index];
    out.inputs.assign(each.inputs.size(), false);
    out.outputs.assign(each.outputs.size(), false);
    switch (by_[index]) {
      case By::kColumns:
        by_columns(index);
        break;
      case By::kRows:
        by_rows(index);
        break;
      case By::kTable:
        set(each.outputs, plan_.plan.sequence_parallel ? Has::kRows : Has::kAll);
        out.sums_terms = true;
        break;
      case By::kNothing:
        undivided(index);
        break;
    }
    for (const uint32_t saved : each.saved) {
      const bool whole = out.gathers_rows && saved == out.gathered;
      const bool gathered = by_[index] == By::kColumns && !is_output(each, saved);
      out.saved.push_back(!whole && !gathered && has(saved) != Has::kAll);
    }
  }

  static bool is_output(const RecordedOperator& each, uint32_t of) {
    return std::ranges::find(each.outputs, of) != each.outputs.end();
  }
  // Tensors that share their memory are parts of each other, so they have what the first has.
  [[nodiscard]] Has has(uint32_t of) const {
    if (tensor(of).parameter) {
      return Has::kAll;
    }
    const auto found = by_storage_.find(tensor(of).storage);
    return found == by_storage_.end() ? Has::kAll : found->second;
  }
  void set(const std::vector<uint32_t>& tensors, Has has) {
    for (const uint32_t each : tensors) {
      by_storage_[tensor(each).storage] = has;
    }
  }

  void by_columns(uint32_t index) {
    const RecordedOperator& each = step_.operators[index];
    DividedOperator& out = out_.operators[index];
    require_divisible(each.op.n, each.op, "features");
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      const uint32_t input = each.inputs[i];
      if (tensor(input).parameter) {
        out.inputs[i] = true;
      } else if (has(input) == Has::kFeatures) {
        fail_at(each.op, "takes features of which each rank has a part; expected style row");
      } else if (has(input) == Has::kRows) {
        // PrepareModuleInput of the module that contains the layer gathers once.
        const std::string parent = plan_.plan.shared_gathers
                                       ? each.op.module.substr(0, each.op.module.rfind('.') + 1)
                                       : each.op.module;
        if (gathered_.emplace(tensor(input).storage, parent).second) {
          require_divisible(rows(), each.op, "rows");
          out.gathers_rows = true;
          out.gathered = input;
        }
      } else if (plan_.plan.sequence_parallel) {
        fail_at(each.op,
                "takes rows that every rank has; expected style vocabulary for the embedding, or "
                "\"sequence_parallel\": false");
      }
    }
    out.work = out.n = true;
    out.outputs.assign(each.outputs.size(), true);
    out.gathers_features = index == head_ && !plan_.plan.loss_parallel;
    set(each.outputs, out.gathers_features ? Has::kAll : Has::kFeatures);
  }

  void by_rows(uint32_t index) {
    const RecordedOperator& each = step_.operators[index];
    DividedOperator& out = out_.operators[index];
    require_divisible(each.op.k, each.op, "features");
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      const bool vector = tensor(each.inputs[i]).parameter && i == 0 && each.inputs.size() == 3;
      if (!tensor(each.inputs[i]).parameter && has(each.inputs[i]) != Has::kFeatures) {
        fail_at(each.op, "takes whole features; expected style column for the layers before it");
      }
      out.inputs[i] = !vector;  // the bias is whole
    }
    out.work = out.k = out.sums_terms = true;
    set(each.outputs, plan_.plan.sequence_parallel ? Has::kRows : Has::kAll);
  }

  [[nodiscard]] int64_t rows() const { return step_.batch * step_.seq.value_or(1); }

  // An operator without a divided weight works on what the rank has of its inputs.
  void undivided(uint32_t index) {
    const RecordedOperator& each = step_.operators[index];
    DividedOperator& out = out_.operators[index];
    Has on = Has::kAll;
    Bytes part = 0;
    bool parameters = false;
    for (const uint32_t input : each.inputs) {
      parameters = parameters || tensor(input).parameter;
      if (has(input) == Has::kAll) {
        continue;
      }
      if (on != Has::kAll && on != has(input)) {
        fail_at(each.op,
                "takes rows and features of which each rank has a part, which do not fit "
                "together");
      }
      on = has(input);
      part = std::max(part, tensor(input).bytes);
    }
    if (on == Has::kFeatures && each.op.kind == OperatorKind::kLoss && plan_.plan.loss_parallel) {
      if (!out_.loss) {
        out_.loss = index;
        out_.logits = *std::ranges::find_if(
            each.inputs, [&](uint32_t input) { return has(input) == Has::kFeatures; });
      }
      return set(each.outputs, Has::kFeatures);
    }
    if (on == Has::kAll) {
      return;
    }
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      const uint32_t input = each.inputs[i];
      out.inputs[i] = has(input) != Has::kAll;
      if (on == Has::kRows && !out.inputs[i] && !tensor(input).parameter &&
          tensor(input).bytes * step_.batch >= part) {
        fail_at(each.op,
                "takes rows of which each rank has a part and rows that every rank has; "
                "expected \"sequence_parallel\": false");
      }
    }
    const bool product = each.op.kind == OperatorKind::kGemm;
    const bool attends = each.op.kind == OperatorKind::kAttention;
    if ((product && (parameters || on == Has::kRows)) || (attends && on == Has::kRows)) {
      fail_at(each.op,
              "takes a part of what its weight or the other operand is for; expected style "
              "column or row for the layer");
    }
    if (product || attends) {
      require_divisible(each.op.batch / step_.batch, each.op, "heads");
      out.batch = true;
    }
    out.work = true;
    out.partial_gradients = parameters;
    on_[index] = on;
    for (size_t i = 0; i < each.outputs.size(); ++i) {
      // Less than a byte for each row: a state of the generator of random numbers.
      out.outputs[i] = tensor(each.outputs[i]).bytes >= rows();
      if (out.outputs[i]) {
        set({each.outputs[i]}, on);
      }
    }
  }

  void backward(uint32_t index) {
    const RecordedOperator& each = step_.operators[index];
    DividedOperator& out = out_.operators[index];
    const auto of = static_cast<uint32_t>(each.op.forward);
    out.inputs.assign(each.inputs.size(), false);
    out.outputs.assign(each.outputs.size(), false);
    switch (by_[of]) {
      case By::kTable:
        out.copies_rows = each.op.kind == OperatorKind::kEmbedding;
        return;
      case By::kColumns:
      case By::kRows:
        return linear_backward(index);
      case By::kNothing:
        break;
    }
    if (on_[of] == Has::kAll) {
      return;
    }
    const RecordedOperator& forward = step_.operators[of];
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      const uint32_t input = each.inputs[i];
      const bool of_forward = std::ranges::find(forward.inputs, input) != forward.inputs.end();
      out.inputs[i] = !tensor(input).parameter && (!of_forward || has(input) != Has::kAll);
    }
    for (size_t i = 0; i < each.outputs.size(); ++i) {
      out.outputs[i] = used_.contains(each.outputs[i]);  // otherwise the gradient of a parameter
    }
    out.work = true;
    out.batch = each.op.kind == OperatorKind::kGemm || each.op.kind == OperatorKind::kAttention;
  }

  void linear_backward(uint32_t index) {
    const RecordedOperator& each = step_.operators[index];
    DividedOperator& out = out_.operators[index];
    const RecordedOperator& product = step_.operators[static_cast<size_t>(each.op.forward)];
    const bool by_columns = by_[static_cast<size_t>(each.op.forward)] == By::kColumns;
    const bool used =
        std::ranges::any_of(each.outputs, [&](uint32_t output) { return used_.contains(output); });
    if (each.op.kind != OperatorKind::kGemm) {  // the gradient of the bias, or a sum of the input's
      const bool part = used != by_columns;
      out.inputs.assign(each.inputs.size(), part);
      out.outputs.assign(each.outputs.size(), part);
      out.work = part;
      return;
    }
    bool of_input = false;
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      const uint32_t input = each.inputs[i];
      const bool parameter = tensor(input).parameter;
      of_input = of_input || parameter;
      const bool is_input = std::ranges::any_of(product.inputs, [&](uint32_t of) {
        return !tensor(of).parameter && tensor(of).storage == tensor(input).storage;
      });
      out.inputs[i] = parameter || is_input != by_columns;
    }
    out.work = true;
    if (of_input) {  // [rows, out] · [out, in]
      out.outputs.assign(each.outputs.size(), !by_columns);
      (by_columns ? out.k : out.n) = true;
      out.sums_gradient = by_columns && !plan_.plan.sequence_parallel;
      return;
    }
    out.outputs.assign(each.outputs.size(), true);  // [out, rows] · [rows, in], or transposed
    const int64_t divided = by_columns ? product.op.n : product.op.k;
    const bool first = each.op.m == divided && (by_columns || each.op.n != divided);
    (first ? out.m : out.n) = true;
  }

  const ResolvedPlan& plan_;
  const RecordedStep& step_;
  std::unordered_map<std::string, int64_t> dimensions_;  // as divided_weights()
  std::vector<By> by_;                                   // by operator of forward
  std::vector<Has> on_;  // by operator of forward without a divided weight: what it works on
  std::unordered_map<int64_t, Has> by_storage_;
  std::set<std::pair<int64_t, std::string>> gathered_;  // storages, in modules
  std::unordered_set<uint32_t> used_;                   // tensors that operators of backward take
  std::optional<uint32_t> head_;
  RecordedDivision out_;
};

}  // namespace

RecordedDivision recorded_division(const ResolvedPlan& plan, const RecordedStep& step) {
  return plan.mesh.size(mesh::kTensor) == 1 ? RecordedDivision()
                                            : RecordedDivider(plan, step).run();
}

}  // namespace shardlens::plan
