#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/model_file.h"
#include "core/model/recorded_division.h"
#include "core/workload/routing.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {
namespace {

// The value at `batch` of a size that is affine in it. Without a second recorded batch it is the
// first one's.
struct Affine {
  int64_t first = 0, second = 0, batch = 0;  // two recorded batches, and the wanted one

  [[nodiscard]] int64_t at(int64_t of_first, int64_t of_second) const {
    return second == first ? of_first
                           : of_first + (of_second - of_first) * (batch - first) / (second - first);
  }
};

std::string shown_seq(const std::optional<int64_t>& seq) {
  return seq ? std::to_string(*seq) : "none";
}

// The recorded steps with the wanted number of tokens, by batch.
std::pair<const RecordedStep*, const RecordedStep*> steps_for(const ModelConfig& config,
                                                              const StepSettings& settings) {
  const ModelFile& file = *config.file;
  if (file.steps.empty()) {
    throw InputError(
        config.source,
        "has no \"steps\": the operators of the model are missing, so it can be planned and "
        "not simulated");
  }
  std::vector<const RecordedStep*> found;
  std::set<std::string> recorded;
  for (const RecordedStep& step : file.steps) {
    recorded.insert(shown_seq(step.seq));
    if (!step.seq || step.seq == settings.seq) {
      found.push_back(&step);
    }
  }
  if (found.empty()) {
    throw InputError(
        config.source,
        fmt::format("seq {} was not recorded; expected {}, or a file that "
                    "shardlens.export made with --seq {}",
                    shown_seq(settings.seq), fmt::join(recorded, " or "), shown_seq(settings.seq)));
  }
  std::ranges::sort(found, {}, &RecordedStep::batch);
  const auto exact = std::ranges::find(found, settings.batch, &RecordedStep::batch);
  if (exact != found.end()) {
    return {*exact, *exact};
  }
  if (found.size() < 2) {
    throw InputError(config.source,
                     fmt::format("only batch {} was recorded; a second recorded batch would "
                                 "describe every other",
                                 found.front()->batch));
  }
  return {found.front(), found.back()};
}

class RecordedForward {
 public:
  RecordedForward(const ModelConfig& config,
                  const ResolvedPlan& plan,
                  const RecordedStep& first,
                  const RecordedStep& second,
                  const StepSettings& settings)
      : source_(config.source),
        file_(*config.file),
        plan_(plan),
        first_(first),
        second_(second),
        affine_{first.batch, second.batch, settings.batch},
        division_(recorded_division(plan, first)),
        expert_skew_(settings.expert_skew),
        build_(plan, settings.batch, first.seq.value_or(1)) {
    StepSettings pytorch = settings;
    pytorch.program = Program::kTransformers;
    build_.set_settings(pytorch);
    require_same_operators();
    for (size_t i = 0; i < first_.operators.size(); ++i) {
      const int32_t forward = first_.operators[i].op.forward;
      if (forward >= 0) {
        backward_.resize(first_.operators.size());
        backward_[static_cast<size_t>(forward)].push_back(i);
        for (const uint32_t output : first_.operators[i].outputs) {
          made_in_backward_.insert(first_.tensors[output].storage);
        }
      }
    }
    backward_.resize(first_.operators.size());
    for (const Unit& unit : plan.units) {
      for (const uint32_t module : unit.modules) {
        unit_modules_.insert(plan.tree.modules[module].fqn);
      }
    }
  }

  Workload run(const StepSettings& settings) {
    build_.enter("");
    for (const RecordedEvent& event : first_.forward) {
      if (event.kind == RecordedEvent::Kind::kOperator) {
        add(event.index);
      } else if (!event.module.empty()) {
        event.kind == RecordedEvent::Kind::kEnter ? enter(event.module) : build_.leave();
      }
    }
    build_.leave();
    build_.finish_backward();
    build_.optimizer(settings);
    return build_.take();
  }

 private:
  void require_same_operators() const {
    const auto differs = [&](size_t i) {
      return first_.operators[i].op.name != second_.operators[i].op.name ||
             first_.operators[i].outputs.size() != second_.operators[i].outputs.size() ||
             first_.operators[i].inputs.size() != second_.operators[i].inputs.size();
    };
    bool same = first_.operators.size() == second_.operators.size() &&
                first_.forward.size() == second_.forward.size();
    for (size_t i = 0; same && i < first_.operators.size(); ++i) {
      same = !differs(i);
    }
    if (!same) {
      throw InputError(source_, fmt::format("the model runs other operators with batch {} than "
                                            "with batch {}; use one of these",
                                            first_.batch, second_.batch));
    }
  }

  void enter(const std::string& module) {
    if (!entered_.insert(module).second && unit_modules_.contains(module)) {
      throw InputError(source_, fmt::format("module '{}' runs more than once in a forward; it "
                                            "cannot be a unit of a simulated plan",
                                            module));
    }
    build_.enter(module);
  }

  [[nodiscard]] Bytes bytes_of(uint32_t first, uint32_t second, UnitId unit) const {
    const RecordedTensor& tensor = first_.tensors[first];
    const Bytes bytes = affine_.at(tensor.bytes, second_.tensors[second].bytes);
    return tensor.model_dtype ? bytes / size_of(file_.dtype) * size_of(plan_.param_dtype(unit))
                              : bytes;
  }

  // `parts`: of which tensors a rank has a part; empty: of none.
  [[nodiscard]] Bytes sum(const std::vector<uint32_t>& first,
                          const std::vector<uint32_t>& second,
                          const std::vector<bool>& parts,
                          UnitId unit) const {
    Bytes out = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      const bool part = i < parts.size() && parts[i];
      out += bytes_of(first[i], second[i], unit) / (part ? division_.ranks : 1);
    }
    return out;
  }

  [[nodiscard]] const DividedOperator& divided(size_t index) const {
    static const DividedOperator kWhole;
    return division_.operators.empty() ? kWhole : division_.operators[index];
  }

  [[nodiscard]] Operator sized(size_t index, UnitId unit) const {
    const RecordedOperator& a = first_.operators[index];
    const RecordedOperator& b = second_.operators[index];
    Operator out = a.op;
    out.unit = unit;
    out.forward = -1;
    const DividedOperator& part = divided(index);
    const auto size = [&](int64_t first, int64_t second, bool divides) {
      return affine_.at(first, second) / (divides ? division_.ranks : 1);
    };
    out.batch = size(a.op.batch, b.op.batch, part.batch);
    out.m = size(a.op.m, b.op.m, part.m);
    out.n = size(a.op.n, b.op.n, part.n);
    out.k = size(a.op.k, b.op.k, part.k);
    out.flops = size(a.op.flops, b.op.flops, part.work);
    out.dtype = plan_.param_dtype(unit);
    const Bytes inputs = sum(a.inputs, b.inputs, part.inputs, unit);
    const Bytes outputs = sum(a.outputs, b.outputs, part.outputs, unit);
    const bool whole = !a.has_traffic || !b.has_traffic;
    out.read = whole ? inputs : share(&RecordedOperator::inputs, index, inputs);
    out.written = whole ? outputs : share(&RecordedOperator::outputs, index, outputs);
    if (a.grouped && expert_skew_ > 0) {
      skew(out, index);
    }
    return out;
  }

  // The recorded bytes that an operator reads or writes, in the plan's dtypes as all of its tensors
  // are: `all` is their size under the plan.
  [[nodiscard]] Bytes share(std::vector<uint32_t> RecordedOperator::*tensors,
                            size_t index,
                            Bytes all) const {
    const RecordedOperator& a = first_.operators[index];
    const RecordedOperator& b = second_.operators[index];
    const bool reads = tensors == &RecordedOperator::inputs;
    const Bytes moved =
        reads ? affine_.at(a.op.read, b.op.read) : affine_.at(a.op.written, b.op.written);
    Bytes recorded = 0;
    for (size_t i = 0; i < (a.*tensors).size(); ++i) {
      recorded +=
          affine_.at(first_.tensors[(a.*tensors)[i]].bytes, second_.tensors[(b.*tensors)[i]].bytes);
    }
    return recorded == all || recorded == 0
               ? moved
               : static_cast<Bytes>(static_cast<double>(moved) * static_cast<double>(all) /
                                    static_cast<double>(recorded));
  }

  // Spreads the rows of the recorded product `index` over the experts. The gradient of the weights
  // sums over the rows.
  void skew(Operator& op, size_t index) const {
    const Operator& recorded = first_.operators[index].op;
    bool sums = false;
    if (recorded.forward >= 0) {
      const Operator& product = first_.operators[static_cast<size_t>(recorded.forward)].op;
      sums = recorded.k == product.m && recorded.m * recorded.n == product.n * product.k;
    }
    int64_t& rows = sums ? op.k : op.m;
    const Routing routing = route(op.batch * rows, std::max(file_.experts, op.batch), expert_skew_);
    op.batch = routing.chosen;
    rows = routing.rows_of_each;
  }

  void add(uint32_t index) {
    const RecordedOperator& recorded = first_.operators[index];
    if (division_.loss && recorded.op.kind == OperatorKind::kLoss) {
      if (*division_.loss == index) {
        const int64_t rows = affine_.batch * first_.seq.value_or(1);
        build_.parallel_loss(whole(division_.logits, index) / rows /
                             size_of(plan_.param_dtype(build_.unit())));
      }
      return;
    }
    const DividedOperator& part = divided(index);
    const UnitId unit = build_.unit();
    if (part.gathers_rows) {
      build_.gather_rows_of(whole(part.gathered, index));
    }
    Operator op = sized(index, unit);
    // A storage is kept once, by the operator that saves it first.
    for (size_t i = 0; i < recorded.saved.size(); ++i) {
      const RecordedTensor& tensor = first_.tensors[recorded.saved[i]];
      if (!tensor.parameter && kept_.insert(tensor.storage).second) {
        const std::vector<uint32_t>& other = second_.operators[index].saved;
        op.saved +=
            bytes_of(recorded.saved[i], i < other.size() ? other[i] : recorded.saved[i], unit) /
            (i < part.saved.size() && part.saved[i] ? division_.ranks : 1);
      }
    }
    std::vector<Operator> backward;
    std::optional<std::pair<Bytes, size_t>> summed;  // a gradient, after an operator of backward
    const std::vector<size_t>& differentiating = backward_[index];
    for (size_t i = 0; i < differentiating.size(); ++i) {
      backward.push_back(sized(differentiating[i], unit));
      backward.back().takes = takes(differentiating, i);
      if (divided(differentiating[i]).sums_gradient) {
        summed = {backward.back().written, i + 1};
      }
    }
    // Without tensors between them the default describes them.
    constexpr uint32_t kFromOutside = kTakesGradient | kTakesSaved;
    if (std::ranges::all_of(backward,
                            [](const Operator& op) { return (op.takes & ~kFromOutside) == 0; })) {
      std::ranges::for_each(backward, [](Operator& op) { op.takes = 0; });
    }
    copy_rows_of_table(differentiating, backward);
    if (part.partial_gradients) {
      build_.sum_over_tensor();
    }
    const Bytes result = recorded.outputs.empty() ? 0 : whole(recorded.outputs.front(), index);
    build_.record(std::move(op), std::move(backward));
    if (summed) {
      build_.sum_gradient_of(summed->first, summed->second);
    }
    if (part.sums_terms) {
      build_.sum_terms_of(result);
    } else if (part.gathers_features) {
      build_.gather_features_of(result);
    }
  }

  // Bytes of the tensor of operator `index`, on all ranks together.
  [[nodiscard]] Bytes whole(uint32_t tensor, uint32_t index) const {
    const RecordedOperator &a = first_.operators[index], &b = second_.operators[index];
    for (const auto of : {&RecordedOperator::inputs, &RecordedOperator::outputs}) {
      const auto found = std::ranges::find(a.*of, tensor);
      if (found != (a.*of).end()) {
        const auto at = static_cast<size_t>(found - (a.*of).begin());
        return bytes_of(tensor, (b.*of)[at], build_.unit());
      }
    }
    return 0;
  }

  // As WorkloadBuilder::embedding() does for a table that is divided.
  void copy_rows_of_table(const std::vector<size_t>& differentiating,
                          std::vector<Operator>& backward) const {
    for (size_t i = 0; i < differentiating.size(); ++i) {
      if (!divided(differentiating[i]).copies_rows) {
        continue;
      }
      const RecordedOperator &a = first_.operators[differentiating[i]],
                             &b = second_.operators[differentiating[i]];
      backward[i].written = sum(a.outputs, b.outputs, {}, backward[i].unit);
      backward[i].takes = kTakesGradient;
      const auto at = backward.begin() + static_cast<std::ptrdiff_t>(i) + 1;
      backward.insert(at, build_.rows_of_table(backward[i].written));
      return;
    }
  }

  // Operator::takes of the `at`-th of the operators that differentiate one: whether they made what
  // it reads, or other operators of backward.
  [[nodiscard]] uint32_t takes(const std::vector<size_t>& of, size_t at) const {
    uint32_t out = 0;
    for (const uint32_t input : first_.operators[of[at]].inputs) {
      const int64_t storage = first_.tensors[input].storage;
      size_t maker = at;
      while (maker > 0 && !writes(of[maker - 1], storage)) {
        --maker;
      }
      if (maker > 0 && at - (maker - 1) < 31) {
        out |= takes_before(static_cast<uint32_t>(at - (maker - 1)));
      } else if (made_in_backward_.contains(storage)) {
        out |= kTakesGradient;
      }
    }
    return out != 0 ? out : kTakesSaved;
  }
  [[nodiscard]] bool writes(size_t index, int64_t storage) const {
    return std::ranges::any_of(first_.operators[index].outputs, [&](uint32_t output) {
      return first_.tensors[output].storage == storage;
    });
  }

  const std::string& source_;
  const ModelFile& file_;
  const ResolvedPlan& plan_;
  const RecordedStep& first_;
  const RecordedStep& second_;
  Affine affine_;
  RecordedDivision division_;
  double expert_skew_;
  WorkloadBuilder build_;
  std::vector<std::vector<size_t>> backward_;  // by operator of forward
  std::unordered_set<std::string> unit_modules_, entered_;
  std::unordered_set<int64_t> kept_, made_in_backward_;  // storages
};

}  // namespace

Workload recorded_workload(const ModelConfig& config,
                           const ResolvedPlan& plan,
                           const StepSettings& settings) {
  require_valid(settings, "");
  if (!plan.plan.frozen_parameters.empty()) {
    throw InputError(plan.plan.source + "#/frozen_parameters",
                     "a recorded backward has the gradients that it was recorded with; expected no "
                     "frozen parameters");
  }
  const auto [first, second] = steps_for(config, settings);
  if (settings.expert_skew > 0 &&
      std::ranges::none_of(first->operators, &RecordedOperator::grouped)) {
    throw InputError(config.source,
                     "expert_skew: the recorded step has no product of all experts of a layer");
  }
  return RecordedForward(config, plan, *first, *second, settings).run(settings);
}

Workload hooks_of_file(const ModelFile& file, const ResolvedPlan& plan) {
  WorkloadBuilder build(plan, 1, 1);
  std::unordered_set<std::string> owners;  // of parameters
  for (const Module& module : plan.tree.modules) {
    if (!module.parameters.empty()) {
      owners.insert(module.fqn);
    }
  }
  // A unit's gradients are complete when what uses its parameters is differentiated.
  const auto enter = [&](const std::string& module) {
    build.enter(module);
    if (owners.contains(module)) {
      Operator use;
      use.unit = build.unit();
      use.module = module;
      build.record(use, {use});
    }
  };
  enter("");
  if (!file.steps.empty()) {
    std::unordered_set<std::string> entered;
    std::vector<bool> open;  // whether the module was entered
    for (const RecordedEvent& event : file.steps.front().forward) {
      if (event.kind == RecordedEvent::Kind::kEnter) {
        open.push_back(!event.module.empty() && entered.insert(event.module).second);
        if (open.back()) {
          enter(event.module);
        }
      } else if (event.kind == RecordedEvent::Kind::kLeave) {
        if (open.back()) {
          build.leave();
        }
        open.pop_back();
      }
    }
  } else {
    const auto visit = [&](const auto& self, uint32_t module) -> void {
      for (const uint32_t child : plan.tree.modules[module].children) {
        enter(plan.tree.modules[child].fqn);
        self(self, child);
        build.leave();
      }
    };
    visit(visit, 0);
  }
  build.leave();
  build.finish_backward();
  build.optimizer({});
  return build.take();
}

}  // namespace shardlens::plan
