#include "core/models/expert_ops.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/record_function.h>

#include "core/models/fused.h"
#include "core/models/kernels.h"
#include "core/models/named_node.h"

// Source  transformers 5.23 integrations/moe.py, grouped_mm_experts_forward.
namespace shardlens::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls `each(expert, first place, number of places)` for all experts.
template <typename Each>
void for_each_expert(const std::vector<int64_t>& ends, Each each) {
  int64_t begin = 0;
  for (size_t expert = 0; expert < ends.size(); ++expert) {
    each(static_cast<int64_t>(expert), begin, ends[expert] - begin);
    begin = ends[expert];
  }
}

// out[r] = sum over k of scales[r · K + k] · rows[place[r · K + k]]; scales may be null: 1.
void sum_copies(const at::Tensor& rows,
                const float* scales,
                const at::Tensor& place,
                int64_t per_row,
                at::Tensor& out) {
  const int64_t features = rows.size(1);
  const auto* from = rows.const_data_ptr<float>();
  const auto* places = place.const_data_ptr<int64_t>();
  auto* to = out.mutable_data_ptr<float>();
  at::parallel_for(
      0, out.size(0), fused_rows_per_task(features * per_row), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          float* sum = to + row * features;
          std::fill_n(sum, features, 0.0F);
          for (int64_t copy = row * per_row; copy < (row + 1) * per_row; ++copy) {
            kernels::add_scaled(from + places[copy] * features,
                                scales == nullptr ? 1.0F : scales[copy], features, sum);
          }
        }
      });
}

struct GatherRows : torch::autograd::Function<GatherRows> {
  static constexpr std::string_view kNodeName = "GatherRowsBackward";

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& row,
                            const at::Tensor& place,
                            int64_t per_row) {
    RECORD_FUNCTION("shardlens::gather_rows", c10::ArrayRef<const c10::IValue>{});
    ctx->save_for_backward({place});
    ctx->saved_data["per_row"] = per_row;
    return x.index_select(0, row);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RECORD_FUNCTION("shardlens::gather_rows_backward", c10::ArrayRef<const c10::IValue>{});
    const at::Tensor place = ctx->get_saved_variables()[0];
    const int64_t per_row = ctx->saved_data["per_row"].toInt();
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor out;
    if (runs_fused(grad)) {
      out = at::empty({grad.size(0) / per_row, grad.size(1)}, grad.options());
      sum_copies(grad, nullptr, place, per_row, out);
    } else {
      out = grad.index_select(0, place).view({-1, per_row, grad.size(1)}).sum(1);
    }
    return {out, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// out[places of e] = rows[places of e] · weight[e], or its transpose.
at::Tensor rows_by_experts(const at::Tensor& rows,
                           const at::Tensor& weight,
                           const std::vector<int64_t>& ends,
                           bool transposed) {
  RECORD_FUNCTION("shardlens::grouped_mm", c10::ArrayRef<const c10::IValue>{});
  at::Tensor out = at::empty({rows.size(0), weight.size(transposed ? 1 : 2)}, rows.options());
  for_each_expert(ends, [&](int64_t expert, int64_t begin, int64_t count) {
    if (count > 0) {
      at::Tensor part = out.narrow(0, begin, count);
      const at::Tensor own = weight.select(0, expert);
      at::mm_out(part, rows.narrow(0, begin, count), transposed ? own.t() : own);
    }
  });
  return out;
}

// out[e] = left[places of e]ᵀ · right[places of e]; 0 for an expert without rows.
at::Tensor experts_by_rows(const at::Tensor& left,
                           const at::Tensor& right,
                           const std::vector<int64_t>& ends) {
  RECORD_FUNCTION("shardlens::grouped_mm", c10::ArrayRef<const c10::IValue>{});
  at::Tensor out =
      at::empty({static_cast<int64_t>(ends.size()), left.size(1), right.size(1)}, left.options());
  for_each_expert(ends, [&](int64_t expert, int64_t begin, int64_t count) {
    at::Tensor own = out.select(0, expert);
    if (count > 0) {
      at::mm_out(own, left.narrow(0, begin, count).t(), right.narrow(0, begin, count));
    } else {
      own.zero_();
    }
  });
  return out;
}

struct GroupedMm : torch::autograd::Function<GroupedMm> {
  static constexpr std::string_view kNodeName = "GroupedMmBackward";

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& rows,
                            const at::Tensor& weight,
                            const std::vector<int64_t>& ends) {
    // Only the weight's gradient needs the input.
    ctx->save_for_backward({weight.requires_grad() ? rows : at::Tensor(), weight});
    ctx->saved_data["ends"] = ends;
    return rows_by_experts(rows, weight, ends, /*transposed=*/true);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> ends = ctx->saved_data["ends"].toIntVector();
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor by_weight, by_rows;
    if (saved[0].defined()) {
      by_weight = experts_by_rows(grad, saved[0], ends);
    }
    if (ctx->needs_input_grad(0)) {
      by_rows = rows_by_experts(grad, saved[1], ends, /*transposed=*/false);
    }
    return {by_rows, by_weight, at::Tensor()};
  }
};

struct SiluGate : torch::autograd::Function<SiluGate> {
  static constexpr std::string_view kNodeName = "SiluGateBackward";

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input) {
    RECORD_FUNCTION("shardlens::silu_multiply", c10::ArrayRef<const c10::IValue>{});
    const at::Tensor x = input.contiguous();
    const int64_t features = x.size(1) / 2;
    at::Tensor out = at::empty({x.size(0), features}, x.options());
    const auto* from = x.const_data_ptr<float>();
    auto* to = out.mutable_data_ptr<float>();
    at::parallel_for(0, x.size(0), fused_rows_per_task(features), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* gate = from + row * 2 * features;
        kernels::silu_multiply(gate, gate + features, features, to + row * features);
      }
    });
    ctx->save_for_backward({x});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RECORD_FUNCTION("shardlens::silu_multiply_backward", c10::ArrayRef<const c10::IValue>{});
    const at::Tensor x = ctx->get_saved_variables()[0];
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor x_grad = at::empty_like(x);
    const int64_t features = grad.size(1);
    const auto* from = x.const_data_ptr<float>();
    const auto* grads_in = grad.const_data_ptr<float>();
    auto* to = x_grad.mutable_data_ptr<float>();
    at::parallel_for(0, x.size(0), fused_rows_per_task(features), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t first = row * 2 * features;
        kernels::silu_multiply_backward(grads_in + row * features, from + first,
                                        from + first + features, features, to + first,
                                        to + first + features);
      }
    });
    return {x_grad};
  }
};

struct WeightedSum : torch::autograd::Function<WeightedSum> {
  static constexpr std::string_view kNodeName = "WeightedSumBackward";

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& rows,
                            const at::Tensor& weights,
                            const at::Tensor& place,
                            const at::Tensor& copy,
                            const at::Tensor& row) {
    RECORD_FUNCTION("shardlens::weighted_sum", c10::ArrayRef<const c10::IValue>{});
    const at::Tensor scales = weights.contiguous();
    ctx->save_for_backward({rows, scales, place, copy, row});
    if (runs_fused(rows) && runs_fused(scales)) {
      at::Tensor out = at::empty({scales.size(0), rows.size(1)}, rows.options());
      sum_copies(rows, scales.const_data_ptr<float>(), place, scales.size(1), out);
      return out;
    }
    const at::Tensor copies =
        rows.index_select(0, place).view({scales.size(0), scales.size(1), rows.size(1)});
    return (copies * scales.unsqueeze(2)).sum(1).to(rows.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RECORD_FUNCTION("shardlens::weighted_sum_backward", c10::ArrayRef<const c10::IValue>{});
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &scales = saved[1], &place = saved[2];
    const at::Tensor grad = grads[0].contiguous();
    if (!runs_fused(rows) || !runs_fused(scales)) {
      // By place: the gradient of the copy's row, and the copy's weight.
      const at::Tensor wide = grad.index_select(0, saved[4]).to(scales.scalar_type());
      const at::Tensor by_rows = wide * scales.view({-1}).index_select(0, saved[3]).unsqueeze(1);
      const at::Tensor by_copy = (wide * rows).sum(1).index_select(0, place);
      return {by_rows.to(rows.scalar_type()), by_copy.view(scales.sizes()).to(scales.scalar_type()),
              at::Tensor(), at::Tensor(), at::Tensor()};
    }
    at::Tensor by_rows = at::empty_like(rows);
    at::Tensor by_weights = at::empty_like(scales);
    const int64_t features = rows.size(1), per_row = scales.size(1);
    const auto* places = place.const_data_ptr<int64_t>();
    const auto* from = rows.const_data_ptr<float>();
    const auto* grads_in = grad.const_data_ptr<float>();
    const auto* scales_in = scales.const_data_ptr<float>();
    auto* to_rows = by_rows.mutable_data_ptr<float>();
    auto* to_weights = by_weights.mutable_data_ptr<float>();
    at::parallel_for(0, scales.size(0), fused_rows_per_task(features * per_row),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t copy = begin * per_row; copy < end * per_row; ++copy) {
                         const float* of_row = grads_in + copy / per_row * features;
                         to_weights[copy] = kernels::scale_and_dot(
                             of_row, scales_in[copy], from + places[copy] * features, features,
                             to_rows + places[copy] * features);
                       }
                     });
    return {by_rows, by_weights, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Routing route(const at::Tensor& chosen, int64_t experts) {
  const at::Tensor on_host = chosen.to(at::kCPU, at::kLong).contiguous();
  const auto* expert_of = on_host.const_data_ptr<int64_t>();
  const int64_t copies = on_host.numel(), per_row = on_host.size(1);
  std::vector<int64_t> next(static_cast<size_t>(experts) + 1);
  for (int64_t copy = 0; copy < copies; ++copy) {
    ++next[static_cast<size_t>(expert_of[copy]) + 1];
  }
  for (size_t expert = 1; expert < next.size(); ++expert) {
    next[expert] += next[expert - 1];
  }
  Routing out;
  out.per_row = per_row;
  out.ends.assign(next.begin() + 1, next.end());
  out.place = at::empty({copies}, at::kLong);
  out.copy = at::empty({copies}, at::kLong);
  out.row = at::empty({copies}, at::kLong);
  auto* place = out.place.mutable_data_ptr<int64_t>();
  auto* copy_at = out.copy.mutable_data_ptr<int64_t>();
  auto* row = out.row.mutable_data_ptr<int64_t>();
  for (int64_t copy = 0; copy < copies; ++copy) {
    const int64_t at = next[static_cast<size_t>(expert_of[copy])]++;
    place[copy] = at;
    copy_at[at] = copy;
    row[at] = copy / per_row;
  }
  for (at::Tensor* each : {&out.place, &out.copy, &out.row}) {
    *each = each->to(chosen.device());
  }
  return out;
}

at::Tensor gather_rows(const at::Tensor& x, const Routing& routing) {
  return GatherRows::apply(x, routing.row, routing.place, routing.per_row);
}

at::Tensor grouped_mm(const at::Tensor& rows, const at::Tensor& weight, const Routing& routing) {
  return GroupedMm::apply(rows, weight, routing.ends);
}

at::Tensor silu_gate(const at::Tensor& x) {
  if (runs_fused(x)) {
    return SiluGate::apply(x);
  }
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

at::Tensor weighted_sum(const at::Tensor& rows, const at::Tensor& weights, const Routing& routing) {
  return WeightedSum::apply(rows, weights, routing.place, routing.copy, routing.row);
}

}  // namespace shardlens::models
