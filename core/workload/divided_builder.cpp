#include "core/workload/divided_builder.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace shardlens::plan {
namespace {

// The operators of attention over the parts of a sequence that the ranks of a context have, in the
// order of _templated_ring_attention() and its backward in torch/distributed/tensor/experimental/
// _context_parallel/_attention.py, torch 2.11, with its load balance: a rank has two of the 2·C
// pieces of the sequence, the i-th from both ends. The first of C products is causal, over the
// rank's own keys; each of the others is over half of a part of keys, or of half of the queries,
// without a mask. Results and gradients are summed in fp32.
//
// The keys and values of the others are gathered at once (C parts), or passed on from rank to rank
// while the product with the last ones runs. Gradients of keys and values are always passed on, C
// times, until they are back.
class ContextAttention {
 public:
  ContextAttention(int64_t ranks, int64_t batch, int64_t seq, DType dtype)
      : ranks(ranks), batch(batch), seq(seq), element(size_of(dtype)) {}

  void set_shape(const DividedBuilder::HeadSizes& shape) {
    heads = shape.heads;
    head_dim = shape.head_dim;
    value_dim = shape.value_dim;
    const int64_t rows = batch * seq;
    queries = rows * heads * head_dim;
    keys_and_values = rows * shape.kv_heads * (head_dim + value_dim);
    outputs = rows * heads * value_dim;
    sums = rows * heads;
  }

  // One of the products; `first`: the causal one.
  [[nodiscard]] Operator product(Operator op, bool first) const {
    op.batch = batch * heads;
    op.m = seq;
    op.n = first ? seq : seq / 2;
    op.k = head_dim;
    op.causal = first;
    const int64_t pairs = op.batch * op.m * op.n;
    op.flops = 2 * pairs * (head_dim + value_dim);
    const int64_t half = first ? 1 : 2;
    op.read = queries * element + keys_and_values * element / half;
    op.written = outputs * element + sums * kWide;
    return op;
  }
  [[nodiscard]] Operator backward(Operator op) const {
    const Bytes forward_read = op.read, forward_written = op.written;
    op.name += "_backward";
    op.flops = 2 * op.batch * op.m * op.n * (3 * head_dim + 2 * value_dim);
    op.read = forward_read + forward_written + outputs * element;
    op.written = (queries + keys_and_values) * element;
    op.saved = 0;
    op.takes = kTakesGradient;
    return op;
  }

  static constexpr Bytes kWide = 4;  // fp32
  int64_t ranks, batch, seq;
  Bytes element;
  int64_t heads = 0, head_dim = 0, value_dim = 0;
  int64_t queries = 0, keys_and_values = 0, outputs = 0, sums = 0;  // numbers
};

}  // namespace

// [Note: Divided layers] The collectives are those that torch's DTensor issues for the styles of
// torch/distributed/tensor/parallel/style.py (ColwiseParallel, RowwiseParallel, SequenceParallel,
// PrepareModuleInput) as torchtitan 0.2.2 and transformers apply them, torch 2.11. Its functional
// collectives work along the first dimension, which for activations [batch, tokens, features] is
// not the one that is divided: a reduce-scatter's input and an all-gather's result are copied into
// the other order. With one sample the latter is a view. PrepareModuleInput gathers rows once for
// all layers of a module. ColwiseParallel with input_layouts Shard(1) does it for each layer, and
// scatters each gradient before they are added; compiled code gathers once, as equal nodes of a
// graph are merged, but scatters each gradient too.
// Source  torch/distributed/_functional_collectives.py (all_gather_tensor, reduce_scatter_tensor),
//         tests/data/tensor.

int64_t DividedBuilder::divided_dimension() const {
  const auto found = divided_dimensions_.find(open_.back().module);
  return found == divided_dimensions_.end() ? -1 : found->second;
}

Communication DividedBuilder::activations(CollectiveKind kind, Bytes bytes, Bytes written) const {
  return collective(kind, Purpose::kActivations, plan_.group_named(mesh::kTensor), bytes, written);
}

// Copies all rows, from or to the order in which collectives have them.
Operator DividedBuilder::copy_of(Bytes rows) const {
  Operator op = make(OperatorKind::kElementwise, "aten::cat");
  op.read = op.written = rows;
  return op;
}

void DividedBuilder::gather_rows_of(Bytes whole) {
  const Bytes part = whole / tensor_ranks();
  communicate(activations(CollectiveKind::kAllGather, whole, whole), part,
              activations(CollectiveKind::kReduceScatter, whole, part));
  if (out_.batch > 1) {
    forward(copy_of(whole), whole, {copy_of(whole)});
  }
}

bool DividedBuilder::gather_rows(int64_t features) {
  if (divided_ != Divided::kRows) {
    return false;
  }
  if (compiles()) {
    store_current(features);
  }
  divided_ = Divided::kNothing;
  gathered_ = true;
  rows_ *= tensor_ranks();
  const Bytes whole = rows_ * features * size_of(plan_.param_dtype(unit()));
  gather_rows_of(whole);
  if (compiles()) {
    end_norm();
    compiled_result(whole);
    if (out_.batch > 1) {
      compiled_gather(static_cast<uint32_t>(out_.operators.size() - 1), 0);
    }
  }
  return true;
}

void DividedBuilder::sum_terms_of(Bytes whole) {
  if (!plan_.plan.sequence_parallel) {
    return communicate(activations(CollectiveKind::kAllReduce, whole, whole), whole);
  }
  std::vector<Operator> backward;
  if (out_.batch > 1) {
    backward.push_back(copy_of(whole));
  }
  forward(copy_of(whole), whole, std::move(backward));
  const Bytes part = whole / tensor_ranks();
  communicate(activations(CollectiveKind::kReduceScatter, whole, part), whole,
              activations(CollectiveKind::kAllGather, whole, whole));
}

void DividedBuilder::sum_terms(int64_t features) {
  if (divided_dimension() >= 0) {
    add_terms(features);
  }
}

void DividedBuilder::add_terms(int64_t features) {
  divided_ = Divided::kNothing;
  gathered_ = false;
  sum_terms_of(rows_ * features * size_of(plan_.param_dtype(unit())));
  if (plan_.plan.sequence_parallel) {
    rows_ /= tensor_ranks();
    divided_ = Divided::kRows;
  }
}

// The part of the gradient that is this rank's is copied.
void DividedBuilder::gather_features_of(Bytes whole) {
  const Bytes part = whole / tensor_ranks();
  communicate(activations(CollectiveKind::kAllGather, whole, whole), part);
  Operator slice = make(OperatorKind::kElementwise, "aten::clone");
  slice.read = slice.written = part;
  forward(copy_of(whole), whole, {slice});
}

void DividedBuilder::gather_features(int64_t features) {
  divided_ = Divided::kNothing;
  gather_features_of(rows_ * features * size_of(plan_.param_dtype(unit())));
}

void DividedBuilder::split_features(int64_t features) {
  const Bytes whole = rows_ * features * size_of(plan_.param_dtype(unit()));
  Operator slice = make(OperatorKind::kElementwise, "aten::clone");
  slice.read = slice.written = whole / tensor_ranks();
  forward(std::move(slice), whole, {copy_of(whole)});
  communicate_in_backward(activations(CollectiveKind::kAllGather, whole, whole), 0);
  divided_ = Divided::kFeatures;
}

void DividedBuilder::sum_gradient_of(Bytes whole, size_t at) {
  communicate_in_backward(activations(CollectiveKind::kAllReduce, whole, whole), at);
}

void DividedBuilder::scatter_gradient_of(Bytes whole, size_t at) {
  communicate_in_backward(
      activations(CollectiveKind::kReduceScatter, whole, whole / tensor_ranks()), at);
}

// Source  loss_parallel() in torch/distributed/tensor/parallel/loss.py, torch 2.11.
void DividedBuilder::reduce_loss() {
  const Bytes of_rows = rows_ * size_of(DType::kF32);
  Communication each = collective(CollectiveKind::kAllReduce, Purpose::kLoss,
                                  plan_.group_named(mesh::kTensor), of_rows, of_rows);
  each.phase = Phase::kLoss;
  communicate(std::move(each), of_rows);
}

void DividedBuilder::context_attention(const HeadSizes& shape) {
  ContextAttention of(plan_.mesh.size(mesh::kContext), out_.batch, out_.seq,
                      plan_.param_dtype(unit()));
  of.set_shape(shape);
  const int64_t ranks = of.ranks;
  const bool ring = plan_.plan.context_method == ContextMethod::kRing;
  const mesh::GroupId group = plan_.group_named(mesh::kContext);
  const auto element_wise = [&](std::string_view name, Bytes read, Bytes written, uint32_t takes) {
    Operator op = make(OperatorKind::kElementwise, name);
    op.read = read;
    op.written = written;
    op.takes = takes;
    return op;
  };
  const Bytes part = of.keys_and_values * of.element;
  const auto exchange = [&](bool whole) {
    return whole ? collective(CollectiveKind::kAllGather, Purpose::kContext, group, ranks * part,
                              ranks * part)
                 : collective(CollectiveKind::kSendRecv, Purpose::kContext, group, part, part);
  };
  const auto sends = [&](int64_t step) { return ring ? step + 1 < ranks : step == 0; };

  // Backward, of the first product: each step's product, its gradients added up, and those of keys
  // and values passed on.
  std::vector<Operator> backward;
  struct Passed {
    Communication what;
    size_t at, waited_at;
  };
  std::vector<Passed> passed;
  const Operator whole =
      of.product(make(OperatorKind::kAttention, "aten::scaled_dot_product_attention"), true);
  const Operator half =
      of.product(make(OperatorKind::kAttention, "aten::scaled_dot_product_attention"), false);
  const Bytes wide_keys = of.keys_and_values * ContextAttention::kWide;
  const Bytes wide = of.queries * ContextAttention::kWide + wide_keys;
  std::optional<size_t> keys, gradients;  // of the communication that is running, in `passed`
  const auto wait = [&](std::optional<size_t>& running) {
    if (running) {
      passed[*running].waited_at = backward.size();
      running.reset();
    }
  };
  for (int64_t step = 0; step < ranks; ++step) {
    wait(keys);
    if (sends(step)) {
      backward.push_back(element_wise("aten::cat", part, part, kTakesSaved));
      keys = passed.size();
      passed.push_back({exchange(!ring), backward.size(), 0});
    }
    backward.push_back(of.backward(step == 0 ? whole : half));
    wait(gradients);
    backward.push_back(
        element_wise("aten::add", wide + backward.back().written, wide, takes_before(1)));
    backward.push_back(element_wise("aten::cat", wide_keys, wide_keys, takes_before(1)));
    gradients = passed.size();
    passed.push_back(
        {collective(CollectiveKind::kSendRecv, Purpose::kContext, group, wide_keys, wide_keys),
         backward.size(), 0});
  }
  wait(gradients);
  backward.push_back(element_wise("aten::_to_copy", wide,
                                  (of.queries + of.keys_and_values) * of.element, takes_before(1)));

  std::optional<uint32_t> awaited;  // communication of forward
  const auto wait_here = [&] {
    if (const auto index = std::exchange(awaited, std::nullopt)) {
      out_.communications[*index].waited_by = {WorkloadItem::Kind::kOperator,
                                               static_cast<uint32_t>(out_.operators.size())};
    }
  };
  for (int64_t step = 0; step < ranks; ++step) {
    wait_here();
    if (sends(step)) {
      forward(element_wise("aten::cat", part, part, 0), part, {});
      awaited = static_cast<uint32_t>(out_.communications.size());
      communicate(exchange(!ring), part);
    }
    Operator op = step == 0 ? whole : half;
    const Bytes input = op.read;
    if (step > 0) {
      forward(std::move(op), input, {});
      const Bytes results = of.outputs * ContextAttention::kWide;
      forward(element_wise("aten::lerp", 3 * results, results, 0), results, {});
      continue;
    }
    op.saved = op.read + op.written;
    forward(std::move(op), input, backward);
    for (Passed& each : passed) {
      communicate_in_backward(std::move(each.what), each.at, each.waited_at);
    }
  }
  forward(element_wise("aten::_to_copy", of.outputs * ContextAttention::kWide,
                       of.outputs * of.element, 0),
          of.outputs * ContextAttention::kWide, {});
}

// [Note: Divided experts] What torchtitan 0.2.2 runs with its ExpertParallel, and with `tensor` its
// ReordererSequenceParallel and PrepareModuleInputOutput: each rank counts the rows that it has for
// each expert and exchanges these numbers (int64), then sends the rows to the ranks that have the
// experts, and gets the results back. All ranks are described as the one with the most rows, for
// which the others wait.
// Source  distributed/expert_parallel.py and models/moe/moe.py of torchtitan 0.2.2,
//         tests/data/expert.

// The router and the choice of rows read all rows. The ranks of `tensor` compute the same gradient
// of them, so that none is added up.
void DividedBuilder::gather_tokens(int64_t features) {
  if (divided_ != Divided::kRows) {
    return;
  }
  divided_ = Divided::kNothing;
  whole_tokens_ = true;
  const Bytes part = rows_ * features * size_of(plan_.param_dtype(unit()));
  rows_ *= tensor_ranks();
  const Bytes whole = part * tensor_ranks();
  communicate(activations(CollectiveKind::kAllGather, whole, whole), part);
  if (out_.batch > 1) {
    forward(copy_of(whole), whole, {});
  }
}

Operator DividedBuilder::slice_of_rows(int64_t features) const {
  Operator slice = make(OperatorKind::kElementwise, "aten::clone");
  slice.read = slice.written = rows_ / tensor_ranks() * features * size_of(slice.dtype);
  return slice;
}

DividedRouting DividedBuilder::divided_routing(int64_t experts, int64_t per_token) const {
  const bool pads =
      plan_.plan.expert_dispatch == ExpertDispatch::kAllToAll && program_ != Program::kTorchtitan03;
  return route_over(rows_ * per_token / tensor_ranks(), experts, expert_ranks(), expert_skew_,
                    pads);
}

// The host reads them, because it has to say how many rows each rank sends.
void DividedBuilder::exchange_counts(int64_t experts) {
  const Bytes bytes = experts * size_of(DType::kI64);
  Communication counts = collective(CollectiveKind::kAllToAll, Purpose::kTokens,
                                    plan_.group_named(mesh::kExpert), bytes, bytes);
  counts.read_by_host = true;
  communicate(std::move(counts), bytes);
  if (keeps_exchanges()) {
    keep_exchange(static_cast<uint32_t>(out_.communications.size() - 1), 0);
  }
}

Communication DividedBuilder::tokens(const DividedRouting& rows,
                                     int64_t features,
                                     bool back) const {
  const Bytes row = features * size_of(plan_.param_dtype(unit()));
  const int64_t most = std::max(rows.own, rows.received);
  Communication out =
      collective(CollectiveKind::kAllToAll, Purpose::kTokens, plan_.group_named(mesh::kExpert),
                 most * row, (back ? rows.returned : rows.received) * row);
  if (rows.own != rows.received) {
    for (const int64_t sent : rows.sent) {
      out.parts.push_back(sent * row);
    }
    out.returns = back;
  }
  return out;
}

void DividedBuilder::send_tokens(const DividedRouting& rows, int64_t features) {
  const Bytes row = features * size_of(plan_.param_dtype(unit()));
  communicate(tokens(rows, features, false), rows.returned * row, tokens(rows, features, true));
  if (keeps_exchanges()) {
    keep_exchange(static_cast<uint32_t>(out_.communications.size() - 1), rows.received * row);
  }
}

void DividedBuilder::return_tokens(const DividedRouting& rows, int64_t features) {
  const Bytes row = features * size_of(plan_.param_dtype(unit()));
  returning_ = static_cast<uint32_t>(out_.communications.size());
  communicate(tokens(rows, features, true), rows.received * row, tokens(rows, features, false));
}

void DividedBuilder::await_tokens() {
  if (const auto index = std::exchange(returning_, std::nullopt)) {
    out_.communications[*index].waited_by = {WorkloadItem::Kind::kOperator,
                                             static_cast<uint32_t>(out_.operators.size())};
    if (keeps_exchanges() && plan_.plan.expert_dispatch == ExpertDispatch::kAllToAll) {
      keep_exchange(*index, out_.communications[*index].written);
    }
  }
}

// [Note: Tokens sent once] What the MoEFlexTokenDispatcher of Megatron-Core and NeMo Automodel does
// with DeepEP: a token goes once to each rank that has experts of it, where one kernel copies it to
// each of them, another adds up its weighted results, and each rank's sum comes back, where DeepEP
// adds these up. The host waits for the numbers of rows. Nothing is padded. The gate multiplies by
// the experts' weights in the same kernel.
// Source  nemo_automodel/components/moe/megatron/token_dispatcher.py and moe/layers.py
//         (GroupedExpertsDeepEP), commit 8d9bfb90e.

// [Note: Gathered tokens] What Megatron-Core's MoEAllGatherTokenDispatcher does: of each token a
// rank gathers which experts it has (a byte for each of all experts), their weights (in the dtype
// of the parameters), and the token itself. Each of its experts takes its rows out of them. The
// weighted results are added up in the places of all ranks' tokens, over which a reduce-scatter
// leaves each rank its own. Source  MoEAllGatherTokenDispatcher in
// megatron/core/transformer/moe/token_dispatcher.py,
//         tests/data/expert (…-gather).

Communication DividedBuilder::all_tokens(CollectiveKind kind, Bytes whole, Bytes written) const {
  return collective(kind, Purpose::kTokens, plan_.group_named(mesh::kExpert), whole, written);
}

// The host reads how many rows each expert takes. Neither is handed on to the next operator.
void DividedBuilder::gather_routing(int64_t experts) {
  const Bytes chosen = rows_ * expert_ranks() * experts;
  Communication choice = all_tokens(CollectiveKind::kAllGather, chosen, 0);
  choice.read_by_host = true;
  communicate(std::move(choice), chosen / expert_ranks());
  const Bytes weights = chosen * size_of(plan_.param_dtype(unit()));
  communicate(all_tokens(CollectiveKind::kAllGather, weights, 0), weights / expert_ranks(),
              all_tokens(CollectiveKind::kReduceScatter, weights, 0));
}

void DividedBuilder::gather_all_tokens(int64_t features) {
  const Bytes part = rows_ * features * size_of(plan_.param_dtype(unit()));
  const Bytes whole = part * expert_ranks();
  communicate(all_tokens(CollectiveKind::kAllGather, whole, whole), part,
              all_tokens(CollectiveKind::kReduceScatter, whole, part));
}

void DividedBuilder::reduce_tokens(int64_t features) {
  const Bytes part = rows_ * features * size_of(plan_.param_dtype(unit()));
  const Bytes whole = part * expert_ranks();
  returning_ = static_cast<uint32_t>(out_.communications.size());
  communicate(all_tokens(CollectiveKind::kReduceScatter, whole, part), whole,
              all_tokens(CollectiveKind::kAllGather, whole, whole));
}

// Each rank has the results of the rows that it sent.
void DividedBuilder::sum_tokens(int64_t features) {
  if (std::exchange(whole_tokens_, false)) {
    add_terms(features);
  }
}

}  // namespace shardlens::plan
