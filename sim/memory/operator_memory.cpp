#include "sim/memory/operator_memory.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/collective.h"
#include "core/base/error.h"

namespace shardlens::sim {
namespace {

using plan::Operator;
using plan::OperatorKind;
using plan::Phase;

// Whether the operator's output is part of what it saves.
bool keeps_its_output(const Operator& op) {
  return op.phase != Phase::kBackward &&
         (op.kind == OperatorKind::kAttention || op.kind == OperatorKind::kLoss);
}

// Finds the operators of backward that compute the gradient of W for a product x·W.
//
// In a recorded pass backward's operators follow an operator of forward that need not be a product.
// If the pass has one unit, as under DDP, the product is then any of forward, so that the gradients
// of the whole model do not appear at once. In a pass of several units those of a unit do: they are
// part of the model, and what forward saved is freed in parts that are as coarse.
class WeightGradients {
 public:
  explicit WeightGradients(const plan::Workload& workload) : workload_(workload) {
    const auto follows_another = [&](const Operator& op) {
      return is_candidate(op) && !is_product(op.forward);
    };
    const auto in_another_unit = [&](const Operator& op) {
      return op.unit != workload.operators.front().unit && op.phase != Phase::kOptimizer;
    };
    const bool recorded = std::ranges::any_of(workload.operators, follows_another) &&
                          std::ranges::none_of(workload.operators, in_another_unit);
    for (const Operator& op : workload.operators) {
      if (recorded && op.phase == Phase::kForward && op.kind == OperatorKind::kGemm) {
        products_.emplace(op.unit, op.m, op.n * op.k);
      }
    }
  }

  // Whether the result may have the shape of W, and the product sums over the rows of x.
  [[nodiscard]] bool has_shape(const Operator& op) const {
    if (!is_candidate(op)) {
      return false;
    }
    const Operator& product = workload_.operators[static_cast<size_t>(op.forward)];
    return (op.k == product.m && op.m * op.n == product.n * product.k) ||
           products_.contains({op.unit, op.k, op.m * op.n});
  }

 private:
  [[nodiscard]] bool is_product(int32_t index) const {
    return workload_.operators[static_cast<size_t>(index)].kind == OperatorKind::kGemm;
  }
  // Not a product of two activations.
  [[nodiscard]] static bool is_candidate(const Operator& op) {
    return op.phase == Phase::kBackward && op.kind == OperatorKind::kGemm && op.forward >= 0 &&
           op.name != "aten::bmm";
  }

  const plan::Workload& workload_;
  std::set<std::tuple<UnitId, int64_t, int64_t>> products_;  // unit, rows of x, elements of W
};

// Whether the next operator only adds the result of operator `index` to a tensor that exists.
bool is_added(const std::vector<Operator>& operators, size_t index) {
  return index + 1 < operators.size() && operators[index + 1].name == "aten::add" &&
         operators[index + 1].written == 0 && operators[index + 1].takes == plan::takes_before(1);
}

// Whether operator `index` computes the gradient of W. If x has as many rows as W's result columns,
// both gradients have these sizes: autograd's formula for mm computes W's first, that for addmm
// x's.
bool writes_parameter_gradient(const plan::Workload& workload,
                               const WeightGradients& gradients,
                               size_t index) {
  const auto& operators = workload.operators;
  const Operator& op = operators[index];
  if (!gradients.has_shape(op) || is_added(operators, index)) {
    return false;
  }
  const auto is_other = [&](size_t at) {
    return at < operators.size() && operators[at].forward == op.forward &&
           gradients.has_shape(operators[at]);
  };
  const bool weight_first =
      operators[static_cast<size_t>(op.forward)].name.find("addmm") == std::string::npos;
  return weight_first ? !is_other(index - 1) : !is_other(index + 1);
}

// Whether operator `index` computes the gradient of an embedding's table: its backward, or what
// takes a part of the result of its backward.
bool writes_table_gradient(const plan::Workload& workload, size_t index) {
  const auto& operators = workload.operators;
  const Operator& op = operators[index];
  const auto is_part = [&](const Operator& each) {
    return each.phase == Phase::kBackward && each.kind == OperatorKind::kElementwise &&
           each.name == "aten::clone" && each.forward >= 0 &&
           operators[static_cast<size_t>(each.forward)].kind == OperatorKind::kEmbedding;
  };
  if (op.phase != Phase::kBackward || op.kind != OperatorKind::kEmbedding) {
    return is_part(op);
  }
  return index + 1 == operators.size() || operators[index + 1].forward != op.forward ||
         !is_part(operators[index + 1]);
}

OperatorMemory::Kind kind_of(Phase phase) {
  using Kind = OperatorMemory::Kind;
  switch (phase) {
    case Phase::kForward:
    case Phase::kLoss:
      return Kind::kForward;
    case Phase::kBackward:
      return Kind::kBackward;
    case Phase::kRecompute:
      return Kind::kRecompute;
    case Phase::kOptimizer:
      break;
  }
  return Kind::kOptimizer;
}

// Finds the operators that take the gradients that backward's operators hand on.
class Handing {
 public:
  Handing(const plan::Workload& workload, std::vector<OperatorMemory>& out)
      : workload_(workload), out_(out) {}

  void run() {
    std::vector<uint32_t> backward;
    for (uint32_t i = 0; i < out_.size(); ++i) {
      if (out_[i].kind == OperatorMemory::Kind::kBackward && !out_[i].in_place) {
        backward.push_back(i);
      }
    }
    for (size_t at = 0; at < backward.size(); ++at) {
      const uint32_t next = at + 1 < backward.size() ? backward[at + 1] : kNone;
      take(backward[at], next);
    }
    for (const auto& [handed, user] : users_) {
      OperatorMemory& last = out_[user];
      last.ends.at(last.end_count++) = handed;
    }
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffU;
  using Id = uint32_t;  // index into users_

  [[nodiscard]] const Operator& op(uint32_t index) const { return workload_.operators[index]; }
  [[nodiscard]] bool is_sum(uint32_t index) const {
    return index != kNone && op(index).name == "aten::add" && op(index).takes == 0;
  }
  void use(Id id, uint32_t user) {
    if (id != kNone) {
      users_[id].second = user;
    }
  }
  static Id pop(std::vector<Id>& from) {
    if (from.empty()) {
      return kNone;
    }
    const Id last = from.back();
    from.pop_back();
    return last;
  }
  Id make(uint32_t index, uint32_t part, Bytes bytes) {
    out_[index].handed[part] = bytes;
    users_.push_back({{index, part}, index});
    return static_cast<Id>(users_.size() - 1);
  }

  void take(uint32_t index, uint32_t next) {
    const Operator& now = op(index);
    const bool sum = is_sum(index);
    const bool takes_gradient = now.takes == 0 || (now.takes & plan::kTakesGradient) != 0;
    if (takes_gradient) {
      use(current_, index);
    }
    for (int32_t i = 0; i < now.sums; ++i) {
      use(pop(waiting_), index);
    }
    bool joins = now.takes_residual;
    if (joins) {
      use(residual_, index);
    }
    if (sum) {
      const Id other = pop(waiting_);
      joins = other == kNone;
      use(joins ? residual_ : other, index);
    }
    if (now.takes != 0) {
      take_listed(index);
    } else if (out_[index].hands_on) {
      make_parts(index, next);
    }
    const bool last = sum || next == kNone || is_sum(next) || op(next).forward != now.forward;
    if (!last) {
      return;  // the next operator differentiates the same one
    }
    if (!made_here_.empty()) {
      made_ = made_here_.back().second;
      for (size_t i = 0; i + 1 < made_here_.size(); ++i) {
        parts_.push_back(made_here_[i].second);
      }
      made_here_.clear();
    }
    const bool product = (now.kind == OperatorKind::kGemm && now.takes == 0) || sum;
    if (joins || (of_norm(now) && !is_sum(next) && residual_ == kNone)) {
      residual_ = made_;
    }
    current_ = made_;
    if (!parts_.empty() && product && !is_sum(next)) {
      waiting_.push_back(made_);
      current_ = pop(parts_);
    }
    made_ = kNone;
  }

  // An operator with Operator::takes. Tensors that no operator has taken yet are in made_here_.
  void take_listed(uint32_t index) {
    const Operator& now = op(index);
    Id first = kNone;
    for (uint32_t distance = 30; distance > 0; --distance) {
      if (distance > index || (now.takes & plan::takes_before(distance)) == 0) {
        continue;
      }
      const auto at = std::find_if(made_by_.rbegin(), made_by_.rend(), [&](const auto& each) {
        return each.first == index - distance;
      });
      if (at == made_by_.rend()) {
        continue;
      }
      use(at->second, index);
      first = first == kNone ? at->second : first;
      std::erase_if(made_here_, [&](const auto& each) { return each.second == at->second; });
    }
    const bool in_place = first != kNone && now.name.ends_with('_');
    if (!in_place && (!out_[index].hands_on || out_[index].written == 0)) {
      return;
    }
    const Id made = in_place ? first : make(index, 0, out_[index].written);
    made_by_.emplace_back(index, made);
    made_here_.emplace_back(index, made);
  }

  [[nodiscard]] bool of_norm(const Operator& now) const {
    return now.kind == OperatorKind::kNorm ||
           (now.forward >= 0 && op(static_cast<uint32_t>(now.forward)).kind == OperatorKind::kNorm);
  }

  void make_parts(uint32_t index, uint32_t next) {
    const Bytes written = out_[index].written;
    Bytes first = written;
    if (next != kNone && op(next).forward >= 0 && op(next).forward != op(index).forward &&
        parts_.empty() &&
        (op(index).kind == OperatorKind::kAttention ||
         (op(index).kind == OperatorKind::kElementwise && !is_sum(index)))) {
      first = std::min(written, out_[static_cast<size_t>(op(next).forward)].written);
    }
    made_ = make(index, 0, first);
    for (uint32_t part = 1; part < kHanded && first < written; ++part) {
      const Bytes rest = written - first;
      const Bytes bytes = part + 1 == kHanded ? rest : std::min(first, rest);
      parts_.push_back(make(index, part, bytes));
      first += bytes;
    }
  }

  const plan::Workload& workload_;
  std::vector<OperatorMemory>& out_;
  std::vector<std::pair<HandedOn, uint32_t>> users_;  // each with the last operator that takes it
  std::vector<Id> parts_, waiting_;
  // Tensors of operators with Operator::takes, by operator: all, and those that none took yet.
  std::vector<std::pair<uint32_t, Id>> made_by_, made_here_;
  Id current_ = kNone, made_ = kNone, residual_ = kNone;
};

// Parts of what an operator saves that are freed before the rest are tensors that it hands on. If
// it runs again, they are made then. Nothing is done where fewer bytes are saved: in a checkpoint.
void free_parts(const plan::Workload& workload, std::vector<OperatorMemory>& out) {
  std::vector<uint32_t> maker(out.size());  // by forward operator
  std::vector<Bytes> freed(out.size());
  for (uint32_t i = 0; i < out.size(); ++i) {
    const Operator& op = workload.operators[i];
    maker[op.phase == Phase::kRecompute ? static_cast<size_t>(op.forward) : i] = i;
    if (op.phase == Phase::kBackward && op.frees > 0) {
      freed[static_cast<size_t>(op.forward)] += op.frees;
    }
  }
  for (uint32_t i = 0; i < out.size(); ++i) {
    const Operator& op = workload.operators[i];
    if (op.phase != Phase::kBackward || op.frees == 0) {
      continue;
    }
    const auto forward = static_cast<size_t>(op.forward);
    OperatorMemory& from = out[maker[forward]];
    const auto part = static_cast<uint32_t>(std::find(from.handed.begin(), from.handed.end(), 0) -
                                            from.handed.begin());
    if (workload.operators[maker[forward]].saved < freed[forward] || part == kHanded) {
      continue;
    }
    from.handed[part] = op.frees;
    from.saved -= op.frees;
    out[i].ends.at(out[i].end_count++) = {maker[forward], part};
  }
}

// What a checkpoint kept of an operator's result lives until the recomputation has taken it.
void free_kept_results(const plan::Workload& workload, std::vector<OperatorMemory>& out) {
  for (uint32_t i = 0; i < out.size(); ++i) {
    const Operator& op = workload.operators[i];
    if (op.phase != Phase::kRecompute || op.frees == 0) {
      continue;
    }
    const auto forward = static_cast<uint32_t>(op.forward);
    OperatorMemory& from = out[forward];
    const auto part = static_cast<uint32_t>(std::find(from.handed.begin(), from.handed.end(), 0) -
                                            from.handed.begin());
    if (part < kHanded) {
      from.handed[part] = op.frees;
      from.saved -= op.frees;
      out[i].ends.at(out[i].end_count++) = {forward, part};
    }
  }
}

// A loss of several operators is inside the model, which returns its input, the logits, too. So
// they live until the last operator of the loss.
void keep_logits(const plan::Workload& workload, std::vector<OperatorMemory>& out) {
  const auto of_loss = [](const Operator& op) { return op.phase == Phase::kLoss; };
  const auto& operators = workload.operators;
  const auto found = std::find_if(operators.begin(), operators.end(), of_loss);
  const auto end = std::find_if_not(found, operators.end(), of_loss);
  const auto first = static_cast<size_t>(found - operators.begin());
  const auto last = static_cast<size_t>(end - operators.begin()) - 1;
  if (found == operators.end() || first == 0 || last == first ||
      found->kind == OperatorKind::kGemm) {  // a loss in parts begins with the head's product
    return;
  }
  out[first + 1].handed[0] = out[first - 1].written;
  out[last].ends.at(out[last].end_count++) = {static_cast<uint32_t>(first + 1), 0};
}

// Tensors that an optimizer with foreach makes live until its last operator.
void keep_optimizer_tensors(const plan::Workload& workload, std::vector<OperatorMemory>& out) {
  if (out.empty() || out.back().kind != OperatorMemory::Kind::kOptimizer) {
    return;
  }
  OperatorMemory& last = out.back();
  for (uint32_t i = 0; i + 1 < out.size(); ++i) {
    if (out[i].kind == OperatorMemory::Kind::kOptimizer && workload.operators[i].saved > 0) {
      out[i].handed[0] = workload.operators[i].saved;
      last.ends.at(last.end_count++) = {i, 0};
    }
  }
}

// `in_place`: by operator; empty: none is.
std::vector<OperatorMemory> memory_of(const plan::Workload& workload,
                                      const std::vector<bool>& in_place) {
  std::vector<OperatorMemory> out;
  out.reserve(workload.operators.size());
  const WeightGradients gradients(workload);
  for (size_t i = 0; i < workload.operators.size(); ++i) {
    const Operator& op = workload.operators[i];
    OperatorMemory& each = out.emplace_back();
    each.saved = op.saved;
    each.written = op.written;
    each.scratch = op.scratch;
    each.forward = op.forward;
    each.unit = op.unit;
    each.kind = kind_of(op.phase);
    const bool of_table = writes_table_gradient(workload, i);
    const bool of_weight = writes_parameter_gradient(workload, gradients, i);
    each.hands_on = !keeps_its_output(op) && !of_weight && !of_table;
    each.makes_gradient = op.phase == Phase::kBackward && op.kind != OperatorKind::kLoss;
    each.gradient = of_table ? kRest : of_weight ? op.written : 0;
    each.of_norm = each.makes_gradient && op.kind == OperatorKind::kNorm;
    if (op.phase == Phase::kLoss && op.takes == plan::kTakesGradient) {
      each.makes_gradient = true;
      each.hands_on = false;
      each.gradient = op.written;
    }
    if (i < in_place.size() && in_place[i]) {
      each.in_place = true;
      each.hands_on = false;
    }
  }
  for (const Operator& op : workload.operators) {
    if (op.phase == Phase::kBackward && op.forward >= 0) {
      ++out[static_cast<size_t>(op.forward)].users;
    }
  }
  Handing(workload, out).run();
  for (uint32_t i = 0; i < out.size(); ++i) {
    // Autograd adds a tied table's gradient by the embedding to that by the product in a new
    // tensor.
    const Operator& op = workload.operators[i];
    if (out[i].gradient == kRest && op.m > 0) {
      out[i].handed[0] = out[i].handed[1] = op.m * op.n * size_of(op.dtype);
      out[i].ends.at(out[i].end_count++) = {i, 0};
      out[i].ends.at(out[i].end_count++) = {i, 1};
    }
  }
  free_parts(workload, out);
  free_kept_results(workload, out);
  keep_logits(workload, out);
  keep_optimizer_tensors(workload, out);
  return out;
}

// Operators and communications in their order, all as operators.
struct Together {
  plan::Workload workload;
  std::vector<uint32_t> numbers;  // by operator of `workload`, its plan::number_of()
  std::vector<bool> in_place;     // communication that makes no new tensor
};

Operator as_operator(const plan::Communication& each) {
  Operator op;
  op.phase = each.phase;
  op.unit = each.unit;
  op.name = name_of(each.kind);
  op.written = each.written;
  op.saved = each.saved;
  op.frees = each.frees;
  op.takes = each.takes;
  return op;
}

Together together(const plan::Workload& in) {
  Together out;
  std::vector<uint32_t> place(plan::numbers_in(in));  // by number: the operator of `out`
  for (const plan::WorkloadItem& item : in.order) {
    if (item.kind == plan::WorkloadItem::Kind::kHook) {
      continue;
    }
    const bool communicates = item.kind == plan::WorkloadItem::Kind::kCommunication;
    place[plan::number_of(in, item)] = static_cast<uint32_t>(out.workload.operators.size());
    out.numbers.push_back(plan::number_of(in, item));
    out.in_place.push_back(communicates && in.communications[item.index].written == 0);
    out.workload.operators.push_back(communicates ? as_operator(in.communications[item.index])
                                                  : in.operators[item.index]);
  }
  for (size_t i = 0; i < out.workload.operators.size(); ++i) {
    Operator& op = out.workload.operators[i];
    const uint32_t number = out.numbers[i];
    if (number < in.operators.size()) {
      op.forward =
          op.forward < 0 ? -1 : static_cast<int32_t>(place[static_cast<size_t>(op.forward)]);
    } else if (const auto& forward = in.communications[number - in.operators.size()].forward) {
      op.forward = static_cast<int32_t>(place[plan::number_of(in, *forward)]);
    } else {
      SHARDLENS_CHECK(op.phase != Phase::kRecompute, "communication repeats nothing");
      op.frees = 0;  // there is nothing that it differentiates
    }
  }
  return out;
}

}  // namespace

std::vector<OperatorMemory> operator_memory(const plan::Workload& workload) {
  if (workload.communications.empty()) {
    return memory_of(workload, {});
  }
  const Together all = together(workload);
  const std::vector<OperatorMemory> found = memory_of(all.workload, all.in_place);
  std::vector<OperatorMemory> out(plan::numbers_in(workload));
  for (size_t i = 0; i < found.size(); ++i) {
    OperatorMemory& each = out[all.numbers[i]] = found[i];
    each.makes_gradient = each.makes_gradient && all.numbers[i] < workload.operators.size();
    each.forward = each.forward < 0
                       ? -1
                       : static_cast<int32_t>(all.numbers[static_cast<size_t>(each.forward)]);
    for (uint32_t end = 0; end < each.end_count; ++end) {
      each.ends[end].op = all.numbers[each.ends[end].op];
    }
  }
  return out;
}

}  // namespace shardlens::sim
