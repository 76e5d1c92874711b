#include "core/model/families/compiled_experts.h"

#include "core/model/families/weighted_experts.h"

namespace shardlens::plan {
namespace {

// Rows are copied to the places of their experts. In backward their gradients are added to zeros by
// atomic operations: the kernel also reads what it adds to, each time. Its result has `token`
// numbers for each of the copies.
void copy_rows(WorkloadBuilder& build, int64_t copies, double token) {
  const Piece forward[] = {{.name = "triton_poi_fused_index", .read = 1, .written = 1}};
  const Piece backward[] = {
      {.name = "triton_poi_fused_new_zeros", .written = token, .takes = kTakesSaved},
      {.name = "triton_poi_fused_index_put",
       .read = 3 - token,
       .written = token,
       .takes = kTakesGradient | takes_before(1)},
  };
  build.unfused({forward, backward}, OperatorKind::kElementwise, copies);
}

// Every second number of a row is the gate's. The gradient of the product is interleaved by a
// kernel of its own.
void clamped_gate(WorkloadBuilder& build, int64_t features) {
  const Piece forward[] = {{.name = "triton_poi_fused_clamp_mul", .read = 2, .written = 1}};
  const Piece backward[] = {
      {.name = "triton_poi_fused_clamp_mul_backward", .read = 3, .written = 1},
      {.name = "triton_poi_fused_slice_backward_add",
       .read = 4,
       .written = 2,
       .takes = kTakesGradient | takes_before(1)}};
  build.unfused({forward, backward, 2}, OperatorKind::kElementwise, features);
}

// The results times the experts' weights, in the tokens' order, added up, with the residual. In
// backward their gradients go back into the order of the experts before they are multiplied.
void weighted_sum(WorkloadBuilder& build, int64_t copies, double token, bool wide) {
  const double f32 = wide ? 1 : 0, own = wide ? 0 : 1;
  const Piece forward[] = {{.name = "triton_per_fused_index_mul_sum", .read = 1, .written = token}};
  const Piece backward[] = {
      {.name = "triton_poi_fused_new_zeros",
       .written = own,
       .written_f32 = f32,
       .takes = kTakesSaved},
      {.name = "triton_poi_fused_index_put",
       .read = token + own,
       .read_f32 = f32,
       .written = own,
       .written_f32 = f32,
       .takes = kTakesGradient | takes_before(1)},
      {.name = "triton_red_fused_index_mul_sum", .read = 1 + own, .read_f32 = f32, .written = 1},
  };
  build.unfused({forward, backward, 1}, OperatorKind::kElementwise, copies);
}

}  // namespace

bool compiles_experts(const WorkloadBuilder& build) {
  return build.program() == Program::kTransformers && build.compiles() && !build.divides_experts();
}

// The choice comes with the order of its rows by expert and back, of 8 bytes a row, and their
// number for each expert. What these kernels move is small; their launches count. Other routers
// differ in such kernels.
void compiled_scores(WorkloadBuilder& build, const ModelConfig::Experts& experts) {
  const Piece softmax[] = {
      {.name = "triton_per_fused__softmax", .read = 1, .written_f32 = 1, .written_row = 2}};
  const Piece softmax_backward[] = {{.name = "triton_per_fused__softmax_backward_data",
                                     .read = 1,
                                     .read_f32 = 1,
                                     .written = 1,
                                     .read_row = 2}};
  build.unfused({softmax, softmax_backward, 1, 0, 2}, OperatorKind::kElementwise, experts.count);
  const auto chosen = static_cast<double>(experts.per_token);
  const double counts = static_cast<double>(experts.count) / static_cast<double>(build.rows());
  const Piece choose[] = {
      {.name = "aten::topk", .read_f32 = 1, .written_row = 3 * chosen},
      {.name = "triton_per_fused_div_sum", .read_row = chosen, .written_row = chosen},
      {.name = "aten::sort", .read_row = 2 * chosen, .written_row = 4 * chosen},
      {.name = "triton_poi_fused__to_copy", .read_row = 2 * chosen, .written_row = chosen},
      {.name = "aten::histc", .read_row = chosen, .written_row = counts},
      {.name = "triton_spl_fused_cumsum", .read_row = counts, .written_row = counts},
      {.name = "triton_poi_fused_index_put", .read_row = 3 * chosen, .written_row = 3 * chosen},
  };
  const Piece weigh[] = {
      {.name = "triton_poi_fused_scatter", .written_f32 = 1, .takes = kTakesSaved},
      {.name = "triton_per_fused_div_scatter_sum",
       .written_f32 = 1,
       .read_row = 4 * chosen,
       .takes = kTakesGradient | takes_before(1)},
  };
  // Of each row of an expert its number, two weights and both orders.
  build.unfused({choose, weigh, 0, 0, 8 * chosen}, OperatorKind::kElementwise, experts.count);
}

void compiled_experts(WorkloadBuilder& build,
                      const ModelConfig::Experts& experts,
                      int64_t hidden,
                      bool biased,
                      bool wide) {
  const int64_t inner = experts.intermediate_size, copies = experts.per_token * hidden;
  const double token = 1 / static_cast<double>(experts.per_token);
  copy_rows(build, copies, token);
  expert_product(build, experts, "gate_up_proj", hidden, 2 * inner, biased);
  if (biased) {
    clamped_gate(build, experts.per_token * inner);
  } else {  // another activation moves as much
    build.silu_multiply(experts.per_token * inner);
  }
  expert_product(build, experts, "down_proj", inner, hidden, biased);
  weighted_sum(build, copies, token, wide);
  build.set_sum(hidden);
}

}  // namespace shardlens::plan
