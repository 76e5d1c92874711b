#include "core/model/families/torchtitan_experts.h"

#include "core/model/families/weighted_experts.h"

namespace shardlens::plan {

void torchtitan_scores(WorkloadBuilder& build, int64_t experts) {
  const Piece forward[] = {
      {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
      {.name = "aten::_softmax", .read_f32 = 1, .written_f32 = 1},
  };
  const Piece backward[] = {
      {.name = "aten::_softmax_backward_data", .read_f32 = 2, .written_f32 = 1},
      {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
  };
  const bool wide = build.program() == Program::kTorchtitan03;  // what it takes is in fp32
  build.unfused(
      {std::span(forward).subspan(wide ? 1 : 0), std::span(backward).first(wide ? 1 : 2), 0, 1},
      OperatorKind::kElementwise, experts);
}

namespace {

void interleaved_gate(WorkloadBuilder& build, int64_t features) {
  if (!build.compiles()) {
    return build.unfused(unfused_interleaved_gate(), OperatorKind::kElementwise, features);
  }
  const Piece forward[] = {{.name = "triton_poi_fused_clamp_mul", .read = 2, .written = 1}};
  const Piece backward[] = {
      {.name = "triton_poi_fused_clamp_mul_backward", .read = 3, .written = 1},
      {.name = "triton_poi_fused_clamp_slice_backward",
       .read = 5,
       .written = 2,
       .takes = kTakesGradient | takes_before(1)}};
  build.unfused({forward, backward, 2}, OperatorKind::kElementwise, features);
}

}  // namespace

void torchtitan_products(WorkloadBuilder& build,
                         const ModelConfig::Experts& experts,
                         int64_t hidden,
                         bool biased,
                         std::span<const int64_t> rows) {
  const int64_t inner =
      rows.empty() ? experts.per_token * experts.intermediate_size : experts.intermediate_size;
  WorkloadBuilder::Grouped down{.experts = experts.count,
                                .per_token = experts.per_token,
                                .in = experts.intermediate_size,
                                .out = hidden,
                                .weight = "down_proj",
                                .bias = biased,
                                .rows = rows};
  if (biased) {
    WorkloadBuilder::Grouped up = down;
    up.in = hidden;
    up.out = 2 * experts.intermediate_size;
    up.weight = "gate_up_proj";
    build.grouped_linear(up);
    interleaved_gate(build, inner);
    return build.grouped_linear(down);
  }
  WorkloadBuilder::Grouped shape{.experts = experts.count,
                                 .per_token = experts.per_token,
                                 .in = hidden,
                                 .out = experts.intermediate_size,
                                 .weight = "gate_up_proj",
                                 .sums_input_grad = true,
                                 .rows = rows};
  build.grouped_linear(shape);
  shape.sums_input_grad = shape.keeps_input = false;
  build.grouped_linear(shape);
  build.silu_multiply(inner);
  build.grouped_linear(down);
}

void torchtitan_experts(WorkloadBuilder& build,
                        const ModelConfig::Experts& experts,
                        int64_t hidden,
                        bool biased) {
  const double token = 1 / static_cast<double>(experts.per_token);
  if (build.program() == Program::kTorchtitan03) {
    copy_expert_rows(build, experts.per_token * hidden, token);
    torchtitan_products(build, experts, hidden, biased, {});
    torchtitan_weighted_rows(build, experts.per_token * hidden, token);
    if (biased) {
      build.set_result(hidden);
    }
    return;
  }
  const Piece to_experts[] = {{.name = "aten::index", .read = 1, .written = 1},
                              {.name = "aten::cat", .read = 1, .written = 1},
                              {.name = "aten::index", .read = 1, .written = 1}};
  const Piece from_experts[] = {
      {.name = "aten::new_zeros", .written = 1, .takes = kTakesSaved},
      {.name = "aten::index_put",
       .read = 2,
       .written = 1,
       .takes = kTakesGradient | takes_before(1)},
      {.name = "aten::new_zeros", .written = token, .takes = kTakesSaved},
      {.name = "aten::index_put",
       .read = 1 + token,
       .written = token,
       .takes = takes_before(2) | takes_before(1)},
  };
  build.unfused({to_experts, from_experts}, OperatorKind::kElementwise, experts.per_token * hidden);
  torchtitan_products(build, experts, hidden, biased, {});
  const Piece back[] = {{.name = "aten::index_put_", .read = 1, .written = 1}};
  const Piece forth[] = {{.name = "aten::slice_backward", .read = 1, .written = 1},
                         {.name = "aten::index", .read = 1, .written = 1}};
  build.unfused({back, forth}, OperatorKind::kElementwise, experts.per_token * hidden);
}

void torchtitan_expert_sum(WorkloadBuilder& build,
                           const ModelConfig::Experts& experts,
                           int64_t hidden,
                           double own) {
  const double token = 1 / static_cast<double>(experts.per_token);
  const Piece back[] = {{.name = "aten::index_put_", .read = own, .written = 1},
                        {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
                        {.name = "aten::bmm", .read_f32 = 1, .written_f32 = token}};
  const Piece forth[] = {
      {.name = "aten::bmm", .read_f32 = 1 + token},
      {.name = "aten::bmm",
       .read_f32 = token,
       .written_f32 = 1,
       .takes = kTakesGradient,
       .frees = 2,
       .column = experts.per_token,
       .row = hidden},
      {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
      {.name = "aten::index", .read = own, .written = own},
  };
  build.unfused({back, forth, 0, 1}, OperatorKind::kElementwise, experts.per_token * hidden);
  // The layer's last operator saves nothing, so its backward comes before a checkpoint runs the
  // layer again. Scratch: the rows to the experts, and back in two orders, and the result of the
  // shared experts, which is not added yet.
  const Piece cast[] = {{.name = "aten::_to_copy",
                         .read_f32 = token,
                         .written = token,
                         .scratch = 1 + 2 * own + (experts.shared > 0 ? token : 0)}};
  const Piece uncast[] = {{.name = "aten::_to_copy", .read = token, .written_f32 = token}};
  build.unfused({cast, uncast}, OperatorKind::kElementwise, experts.per_token * hidden);
}

void torchtitan_weighted_rows(WorkloadBuilder& build, int64_t features, double token) {
  const Piece add[] = {
      {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
      {.name = "aten::zeros_like", .written = token},
      {.name = "torchtitan::deterministic_scatter_add", .read = 1 + token, .written = token},
  };
  if (build.compiles()) {  // inductor fuses all but the sum, and gathers gradients where it reads
    const Piece weigh[] = {{.name = "triton_poi_fused_mul", .read = 1, .written = 1}};
    const Piece unweigh[] = {
        {.name = "triton_poi_fused_gather_mul", .read = 1, .written = 1},
        {.name = "triton_red_fused_gather_mul_sum", .read = 2, .takes = kTakesGradient, .frees = 1},
    };
    build.unfused({weigh, unweigh, 1}, OperatorKind::kElementwise, features);
    const size_t sum = build.operators();
    build.unfused({std::span(add).subspan(1), {}}, OperatorKind::kElementwise, features);
    return build.unread_from(sum);
  }
  const Piece weigh[] = {{.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
                         {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1}};
  const Piece unweigh[] = {
      {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
      {.name = "aten::mul", .read_f32 = 2, .written_f32 = 1, .takes = kTakesGradient, .frees = 2},
      {.name = "aten::sum", .read_f32 = 1},
      {.name = "aten::_to_copy", .read_f32 = 1, .written = 1, .takes = takes_before(3)},
  };
  build.unfused({weigh, unweigh, 0, 1}, OperatorKind::kElementwise, features);
  const size_t product = build.operators() - 1;  // which saves the rows in fp32 that it reads
  const Piece gather[] = {
      {.name = "aten::gather", .read = 1, .written = 1},
      {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
  };
  build.unfused({add, gather}, OperatorKind::kElementwise, features);
  build.unread_from(product);
}

}  // namespace shardlens::plan
