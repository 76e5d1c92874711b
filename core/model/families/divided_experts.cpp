#include "core/model/families/divided_experts.h"

#include <vector>

#include "core/model/families/torchtitan_experts.h"
#include "core/model/families/weighted_experts.h"

namespace shardlens::plan {

DividedExperts::DividedExperts(WorkloadBuilder& build, const ModelConfig& config)
    : build_(build),
      config_(config),
      tokens_(build.rows()),
      copies_(!build.gathers_tokens() && !build.sends_tokens_once()),
      rows_(build.divided_routing(config.experts.count, config.experts.per_token)) {}

void DividedExperts::over(int64_t rows, const Unfused& part) {
  build_.set_rows(rows);
  build_.unfused(part, OperatorKind::kElementwise, config_.hidden_size);
}

void DividedExperts::copy_rows() {
  if (!copies_) {
    return;  // run() does
  }
  build_.set_rows(rows_.own);
  copy_expert_rows(build_, config_.hidden_size, ratio(tokens_, rows_.own));
  build_.set_rows(tokens_);
}

// The received rows get a row of zeros after them, from which padding is copied.
void DividedExperts::run(const Products& products) {
  if (build_.gathers_tokens()) {
    return run_on_all(products);
  }
  if (build_.sends_tokens_once()) {
    return run_on_sent_once(products);
  }
  const int64_t hidden = config_.hidden_size;
  build_.exchange_counts(config_.experts.count);
  build_.send_tokens(rows_, hidden);
  if (build_.program() == Program::kTorchtitan03) {
    return run_unpadded(products);
  }
  const double padded = ratio(rows_.padded, rows_.received);
  const Piece to_experts[] = {{.name = "aten::cat", .read = 1, .written = 1},
                              {.name = "aten::index", .read = padded, .written = padded}};
  const Piece from_experts[] = {
      {.name = "aten::new_zeros", .written = 1, .takes = kTakesSaved},
      {.name = "aten::index_put",
       .read = 1 + padded,
       .written = 1,
       .takes = kTakesGradient | takes_before(1)},
  };
  over(rows_.received, {to_experts, from_experts});
  build_.set_rows(rows_.padded);
  products(rows_.rows_of_experts);
  const Piece back[] = {{.name = "aten::index_put_", .read = padded, .written = 1}};
  const Piece forth[] = {
      {.name = "aten::slice_backward", .read = 1, .written = 1},
      {.name = "aten::index", .read = padded, .written = padded},
  };
  over(rows_.received, {back, forth});
  build_.return_tokens(rows_, hidden);
  build_.set_rows(tokens_);
}

// One copy from the order of the ranks into that of the experts, and one back.
void DividedExperts::run_unpadded(const Products& products) {
  build_.set_rows(rows_.received);
  copy_expert_rows(build_, config_.hidden_size, 1);
  products(rows_.rows_of_experts);
  const Piece back[] = {{.name = "aten::index_put_", .read = 1, .written = 1}};
  const Piece forth[] = {{.name = "aten::index", .read = 1, .written = 1}};
  over(rows_.received, {back, forth});
  build_.return_tokens(rows_, config_.hidden_size);
  build_.set_rows(tokens_);
}

void DividedExperts::run_on_sent_once(const Products& products) {
  const ModelConfig::Experts& experts = config_.experts;
  const DividedRouting once =
      sent_once(rows_, tokens_, experts.count, experts.per_token, build_.ranks_per_token());
  build_.exchange_counts(experts.count);
  build_.send_tokens(once, config_.hidden_size);
  const double token = ratio(once.received, rows_.received);
  const Piece copy[] = {{.name = "deep_ep::permute", .read = token, .written = 1}};
  const Piece sum[] = {{.name = "deep_ep::unpermute", .read = 1, .written = token}};
  const Piece sum_back[] = {
      {.name = "deep_ep::unpermute", .read = 1, .written = token, .takes = kTakesGradient}};
  const Piece copy_back[] = {
      {.name = "deep_ep::permute", .read = token, .written = 1, .takes = kTakesGradient}};
  over(rows_.received, {copy, sum_back});
  build_.set_rows(rows_.received);
  products(rows_.rows_of_experts);
  over(rows_.received, {sum, copy_back});
  build_.return_tokens(once, config_.hidden_size);
  build_.set_rows(tokens_);
}

// The experts' results are kept, because the gradients of the weights need them. Until the last
// operator has run, the program holds what it has gathered.
void DividedExperts::run_on_all(const Products& products) {
  const int64_t hidden = config_.hidden_size, experts = config_.experts.count;
  build_.gather_routing(experts);
  build_.gather_all_tokens(hidden);
  const int64_t tokens = tokens_ * build_.expert_ranks();
  const double all = ratio(tokens, rows_.received);
  const Piece choose[] = {{.name = "aten::index", .read = 1, .written = 1}};
  const Piece unchoose[] = {
      {.name = "aten::new_zeros", .written = all, .takes = kTakesSaved},
      {.name = "aten::index_put",
       .read = 1 + all,
       .written = all,
       .takes = kTakesGradient | takes_before(1)},
  };
  over(rows_.received, {choose, unchoose});
  build_.set_rows(rows_.received);
  products(rows_.rows_of_experts);
  const Piece sum[] = {
      {.name = "aten::mul", .read = 1, .written = 1},
      {.name = "aten::index_add_", .read = 2, .written = all, .scratch = 1 + all},
  };
  const Piece unsum[] = {
      {.name = "aten::index_select", .read = 1, .written = 1},
      {.name = "aten::mul", .read = 1, .written = 1},
      {.name = "aten::mul", .read = 2, .written = 1, .takes = takes_before(2)},
      {.name = "aten::sum", .read = 1, .takes = takes_before(1)},
  };
  over(rows_.received, {sum, unsum, 1});
  build_.set_rows(tokens_);
  build_.reduce_tokens(hidden);
}

// A rank of `tensor` has results of its own part of the tokens, and zeros for the others.
void DividedExperts::sum_rows() {
  build_.await_tokens();
  if (!copies_) {
    return;
  }
  if (build_.program() == Program::kTorchtitan03) {
    build_.set_rows(rows_.own);
    torchtitan_weighted_rows(build_, config_.hidden_size, ratio(tokens_, rows_.own));
    build_.set_rows(tokens_);
    return;
  }
  build_.set_rows(tokens_);
  torchtitan_expert_sum(build_, config_.experts, config_.hidden_size,
                        ratio(rows_.own, tokens_ * config_.experts.per_token));
}

}  // namespace shardlens::plan
