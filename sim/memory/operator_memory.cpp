#include "sim/memory/operator_memory.h"

#include <algorithm>
#include <cstdint>
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

// The operators of a workload; if it communicates, with the communications in their order, as
// operators too. Nothing of an operator is copied.
class Sequence {
 public:
  explicit Sequence(const plan::Workload& workload) : workload_(workload) {
    if (workload.communications.empty()) {
      return;
    }
    communications_.reserve(workload.communications.size());
    std::vector<uint32_t> place(plan::numbers_in(workload));  // by number: index in the sequence
    for (const plan::WorkloadItem& item : workload.order) {
      if (item.kind == plan::WorkloadItem::Kind::kHook) {
        continue;
      }
      const uint32_t number = plan::number_of(workload, item);
      place[number] = static_cast<uint32_t>(items_.size());
      if (item.kind == plan::WorkloadItem::Kind::kOperator) {
        items_.push_back({&workload.operators[item.index], number});
      } else {
        communications_.push_back(as_operator(workload.communications[item.index]));
        items_.push_back({&communications_.back(), number});
      }
    }
    for (Item& item : items_) {
      item.forward = forward_of(item, place);
    }
  }
  Sequence(const Sequence&) = delete;  // items_ refer to communications_
  Sequence& operator=(const Sequence&) = delete;

  [[nodiscard]] size_t size() const {
    return items_.empty() ? workload_.operators.size() : items_.size();
  }
  [[nodiscard]] const Operator& operator[](size_t index) const {
    return items_.empty() ? workload_.operators[index] : *items_[index].op;
  }
  // As Operator::forward, of the sequence.
  [[nodiscard]] int32_t forward(size_t index) const {
    return items_.empty() ? workload_.operators[index].forward : items_[index].forward;
  }
  [[nodiscard]] const Operator& forward_op(size_t index) const {
    return (*this)[static_cast<size_t>(forward(index))];
  }
  // plan::number_of().
  [[nodiscard]] uint32_t number(size_t index) const {
    return items_.empty() ? static_cast<uint32_t>(index) : items_[index].number;
  }
  [[nodiscard]] bool communicates(size_t index) const {
    return number(index) >= workload_.operators.size();
  }

 private:
  struct Item {
    const Operator* op = nullptr;
    uint32_t number = 0;
    int32_t forward = -1;
  };
  int32_t forward_of(const Item& item, const std::vector<uint32_t>& place) {
    if (item.number < workload_.operators.size()) {
      const int32_t forward = item.op->forward;
      return forward < 0 ? -1 : static_cast<int32_t>(place[static_cast<size_t>(forward)]);
    }
    const size_t index = item.number - workload_.operators.size();
    if (const auto& forward = workload_.communications[index].forward) {
      return static_cast<int32_t>(place[plan::number_of(workload_, *forward)]);
    }
    SHARDLENS_CHECK(item.op->phase != Phase::kRecompute, "communication repeats nothing");
    communications_[static_cast<size_t>(item.op - communications_.data())].frees = 0;
    return -1;
  }

  const plan::Workload& workload_;
  std::vector<Item> items_;               // empty: those of the workload
  std::vector<Operator> communications_;  // does not grow while items_ refer to it
};

// What is found out, by index in the sequence.
class FoundMemory {
 public:
  FoundMemory(const Sequence& in, std::vector<OperatorMemory>& out) : in_(in), out_(out) {}
  [[nodiscard]] size_t size() const { return out_.size(); }
  [[nodiscard]] OperatorMemory& operator[](size_t index) const { return out_[in_.number(index)]; }

 private:
  const Sequence& in_;
  std::vector<OperatorMemory>& out_;  // by plan::number_of()
};

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
  explicit WeightGradients(const Sequence& in) : in_(in) {
    bool follows_another = false, one_unit = true;
    for (size_t i = 0; i < in.size(); ++i) {
      follows_another |= is_candidate(i) && in.forward_op(i).kind != OperatorKind::kGemm;
      one_unit &= in[i].unit == in[0].unit || in[i].phase == Phase::kOptimizer;
    }
    for (size_t i = 0; follows_another && one_unit && i < in.size(); ++i) {
      const Operator& op = in[i];
      if (op.phase == Phase::kForward && op.kind == OperatorKind::kGemm) {
        products_.emplace(op.unit, op.m, op.n * op.k);
      }
    }
  }

  // Whether the result may have the shape of W, and the product sums over the rows of x.
  [[nodiscard]] bool has_shape(size_t index) const {
    if (!is_candidate(index)) {
      return false;
    }
    const Operator &op = in_[index], &product = in_.forward_op(index);
    return (op.k == product.m && op.m * op.n == product.n * product.k) ||
           products_.contains({op.unit, op.k, op.m * op.n});
  }

 private:
  // Not a product of two activations.
  [[nodiscard]] bool is_candidate(size_t index) const {
    const Operator& op = in_[index];
    return op.phase == Phase::kBackward && op.kind == OperatorKind::kGemm &&
           in_.forward(index) >= 0 && op.name != "aten::bmm";
  }

  const Sequence& in_;
  std::set<std::tuple<UnitId, int64_t, int64_t>> products_;  // unit, rows of x, elements of W
};

// Whether the next operator only adds the result of operator `index` to a tensor that exists.
bool is_added(const Sequence& in, size_t index) {
  return index + 1 < in.size() && in[index + 1].name == "aten::add" && in[index + 1].written == 0 &&
         in[index + 1].takes == plan::takes_before(1);
}

// Whether operator `index` computes the gradient of W. If x has as many rows as W's result columns,
// both gradients have these sizes: autograd's formula for mm computes W's first, that for addmm
// x's.
bool writes_parameter_gradient(const Sequence& in, const WeightGradients& gradients, size_t index) {
  if (!gradients.has_shape(index) || is_added(in, index)) {
    return false;
  }
  const auto is_other = [&](size_t at) {
    return at < in.size() && in.forward(at) == in.forward(index) && gradients.has_shape(at);
  };
  const bool weight_first = in.forward_op(index).name.find("addmm") == std::string::npos;
  return weight_first ? !is_other(index - 1) : !is_other(index + 1);
}

// Whether operator `index` computes the gradient of an embedding's table: its backward, or what
// takes a part of the result of its backward.
bool writes_table_gradient(const Sequence& in, size_t index) {
  const auto is_part = [&](size_t at) {
    return in[at].phase == Phase::kBackward && in[at].kind == OperatorKind::kElementwise &&
           in.forward(at) >= 0 && in.forward_op(at).kind == OperatorKind::kEmbedding &&
           in[at].name == "aten::clone";
  };
  const Operator& op = in[index];
  if (op.phase != Phase::kBackward || op.kind != OperatorKind::kEmbedding) {
    return op.kind == OperatorKind::kElementwise && is_part(index);
  }
  return index + 1 == in.size() || in.forward(index + 1) != in.forward(index) ||
         !is_part(index + 1);
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
  Handing(const Sequence& in, const FoundMemory& out) : in_(in), out_(out) {}

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

  [[nodiscard]] const Operator& op(uint32_t index) const { return in_[index]; }
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
    const bool last =
        sum || next == kNone || is_sum(next) || in_.forward(next) != in_.forward(index);
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
    if (joins || (of_norm(index) && !is_sum(next) && residual_ == kNone)) {
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

  [[nodiscard]] bool of_norm(uint32_t index) const {
    return op(index).kind == OperatorKind::kNorm ||
           (in_.forward(index) >= 0 && in_.forward_op(index).kind == OperatorKind::kNorm);
  }

  void make_parts(uint32_t index, uint32_t next) {
    const Bytes written = out_[index].written;
    Bytes first = written;
    if (next != kNone && in_.forward(next) >= 0 && in_.forward(next) != in_.forward(index) &&
        parts_.empty() &&
        (op(index).kind == OperatorKind::kAttention ||
         (op(index).kind == OperatorKind::kElementwise && !is_sum(index)))) {
      first = std::min(written, out_[static_cast<size_t>(in_.forward(next))].written);
    }
    made_ = make(index, 0, first);
    for (uint32_t part = 1; part < kHanded && first < written; ++part) {
      const Bytes rest = written - first;
      const Bytes bytes = part + 1 == kHanded ? rest : std::min(first, rest);
      parts_.push_back(make(index, part, bytes));
      first += bytes;
    }
  }

  const Sequence& in_;
  const FoundMemory& out_;
  std::vector<std::pair<HandedOn, uint32_t>> users_;  // each with the last operator that takes it
  std::vector<Id> parts_, waiting_;
  // Tensors of operators with Operator::takes, by operator: all, and those that none took yet.
  std::vector<std::pair<uint32_t, Id>> made_by_, made_here_;
  Id current_ = kNone, made_ = kNone, residual_ = kNone;
};

// Parts of what an operator saves that are freed before the rest are tensors that it hands on. If
// it runs again, they are made then. Nothing is done where fewer bytes are saved: in a checkpoint.
void free_parts(const Sequence& in, const FoundMemory& out) {
  std::vector<uint32_t> maker(out.size());  // by forward operator
  std::vector<Bytes> freed(out.size());
  for (uint32_t i = 0; i < out.size(); ++i) {
    const Operator& op = in[i];
    maker[op.phase == Phase::kRecompute ? static_cast<size_t>(in.forward(i)) : i] = i;
    if (op.phase == Phase::kBackward && op.frees > 0) {
      freed[static_cast<size_t>(in.forward(i))] += op.frees;
    }
  }
  for (uint32_t i = 0; i < out.size(); ++i) {
    const Operator& op = in[i];
    if (op.phase != Phase::kBackward || op.frees == 0) {
      continue;
    }
    const auto forward = static_cast<size_t>(in.forward(i));
    OperatorMemory& from = out[maker[forward]];
    const auto part = static_cast<uint32_t>(std::find(from.handed.begin(), from.handed.end(), 0) -
                                            from.handed.begin());
    if (in[maker[forward]].saved < freed[forward] || part == kHanded) {
      continue;
    }
    from.handed[part] = op.frees;
    from.saved -= op.frees;
    out[i].ends.at(out[i].end_count++) = {maker[forward], part};
  }
}

// What a checkpoint kept of an operator's result lives until the recomputation has taken it.
void free_kept_results(const Sequence& in, const FoundMemory& out) {
  for (uint32_t i = 0; i < out.size(); ++i) {
    const Operator& op = in[i];
    if (op.phase != Phase::kRecompute || op.frees == 0) {
      continue;
    }
    const auto forward = static_cast<uint32_t>(in.forward(i));
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
void keep_logits(const Sequence& in, const FoundMemory& out) {
  size_t first = 0;
  while (first < in.size() && in[first].phase != Phase::kLoss) {
    ++first;
  }
  size_t last = first;
  while (last + 1 < in.size() && in[last + 1].phase == Phase::kLoss) {
    ++last;
  }
  if (first == in.size() || first == 0 || last == first ||
      in[first].kind == OperatorKind::kGemm) {  // a loss in parts begins with the head's product
    return;
  }
  out[first + 1].handed[0] = out[first - 1].written;
  out[last].ends.at(out[last].end_count++) = {static_cast<uint32_t>(first + 1), 0};
}

// Tensors that an optimizer with foreach makes live until its last operator.
void keep_optimizer_tensors(const Sequence& in, const FoundMemory& out) {
  if (out.size() == 0 || out[out.size() - 1].kind != OperatorMemory::Kind::kOptimizer) {
    return;
  }
  OperatorMemory& last = out[out.size() - 1];
  for (uint32_t i = 0; i + 1 < out.size(); ++i) {
    if (out[i].kind == OperatorMemory::Kind::kOptimizer && in[i].saved > 0) {
      out[i].handed[0] = in[i].saved;
      last.ends.at(last.end_count++) = {i, 0};
    }
  }
}

// Sets `each` to what operator `index` says itself.
void describe(const Sequence& in,
              const WeightGradients& gradients,
              size_t index,
              OperatorMemory& each) {
  const Operator& op = in[index];
  each.saved = op.saved;
  each.written = op.written;
  each.scratch = op.scratch;
  each.forward = in.forward(index);
  each.unit = op.unit;
  each.kind = kind_of(op.phase);
  const bool backward = op.phase == Phase::kBackward;
  const bool of_table = backward && writes_table_gradient(in, index);
  const bool of_weight = backward && writes_parameter_gradient(in, gradients, index);
  each.hands_on = !keeps_its_output(op) && !of_weight && !of_table;
  each.makes_gradient = backward && op.kind != OperatorKind::kLoss;
  each.gradient = of_table ? kRest : of_weight ? op.written : 0;
  each.of_norm = each.makes_gradient && op.kind == OperatorKind::kNorm;
  if (op.phase == Phase::kLoss && op.takes == plan::kTakesGradient) {
    each.makes_gradient = true;
    each.hands_on = false;
    each.gradient = op.written;
  }
  if (in.communicates(index)) {
    each.makes_gradient = false;
    each.in_place = op.written == 0;
    each.hands_on = each.hands_on && !each.in_place;
  }
}

}  // namespace

std::vector<OperatorMemory> operator_memory(const plan::Workload& workload) {
  const Sequence in(workload);
  std::vector<OperatorMemory> memory(plan::numbers_in(workload));
  const FoundMemory out(in, memory);
  const WeightGradients gradients(in);
  for (size_t i = 0; i < in.size(); ++i) {
    describe(in, gradients, i, out[i]);
  }
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].phase == Phase::kBackward && in.forward(i) >= 0) {
      ++out[static_cast<size_t>(in.forward(i))].users;
    }
  }
  Handing(in, out).run();
  for (uint32_t i = 0; i < in.size(); ++i) {
    // Autograd adds a tied table's gradient by the embedding to that by the product in a new
    // tensor.
    const Operator& op = in[i];
    if (out[i].gradient == kRest && op.m > 0) {
      out[i].handed[0] = out[i].handed[1] = op.m * op.n * size_of(op.dtype);
      out[i].ends.at(out[i].end_count++) = {i, 0};
      out[i].ends.at(out[i].end_count++) = {i, 1};
    }
  }
  free_parts(in, out);
  free_kept_results(in, out);
  keep_logits(in, out);
  keep_optimizer_tensors(in, out);
  if (!workload.communications.empty()) {
    for (OperatorMemory& each : memory) {
      each.forward = each.forward < 0
                         ? -1
                         : static_cast<int32_t>(in.number(static_cast<size_t>(each.forward)));
      for (uint32_t end = 0; end < each.end_count; ++end) {
        each.ends[end].op = in.number(each.ends[end].op);
      }
    }
  }
  return memory;
}

}  // namespace shardlens::sim
