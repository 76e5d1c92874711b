#include "core/models/ops.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include "core/models/fused.h"
#include "core/models/kernels.h"
#include "core/models/named_node.h"

namespace shardlens::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static constexpr std::string_view kNodeName = "RmsNormBackward";

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& input,
                            const at::Tensor& weight,
                            double epsilon,
                            double offset) {
    RECORD_FUNCTION("shardlens::rms_norm", c10::ArrayRef<const c10::IValue>{});
    const at::Tensor x = input.contiguous();
    const int64_t features = weight.size(0);
    const int64_t rows = x.numel() / features;
    at::Tensor out = at::empty_like(x);
    at::Tensor rstd = at::empty({rows}, x.options());
    const auto* x_data = x.const_data_ptr<float>();
    const auto* w_data = weight.const_data_ptr<float>();
    auto* out_data = out.mutable_data_ptr<float>();
    auto* rstd_data = rstd.mutable_data_ptr<float>();
    at::parallel_for(0, rows, fused_rows_per_task(features), [&](int64_t begin, int64_t end) {
      kernels::rms_norm(x_data + begin * features, w_data, static_cast<float>(offset),
                        static_cast<float>(epsilon), end - begin, features,
                        out_data + begin * features, rstd_data + begin);
    });
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["offset"] = offset;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RECORD_FUNCTION("shardlens::rms_norm_backward", c10::ArrayRef<const c10::IValue>{});
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad = grads[0].contiguous();
    const at::Tensor& x = saved[0];
    const int64_t features = saved[1].size(0);
    const int64_t rows = x.numel() / features;
    const auto offset = static_cast<float>(ctx->saved_data["offset"].toDouble());
    at::Tensor x_grad = at::empty_like(x);
    // One sum per thread, added in thread order: the result depends only on the number of threads.
    at::Tensor partial = at::zeros({at::get_num_threads(), features}, x.options());
    const auto* g_data = grad.const_data_ptr<float>();
    const auto* x_data = x.const_data_ptr<float>();
    const auto* w_data = saved[1].const_data_ptr<float>();
    const auto* rstd_data = saved[2].const_data_ptr<float>();
    auto* x_grad_data = x_grad.mutable_data_ptr<float>();
    auto* partial_data = partial.mutable_data_ptr<float>();
    at::parallel_for(0, rows, fused_rows_per_task(features), [&](int64_t begin, int64_t end) {
      kernels::rms_norm_backward(g_data + begin * features, x_data + begin * features, w_data,
                                 offset, rstd_data + begin, end - begin, features,
                                 x_grad_data + begin * features,
                                 partial_data + at::get_thread_num() * features);
    });
    at::Tensor weight_grad = partial.size(0) == 1 ? partial.view({features}) : partial.sum(0);
    return {x_grad, weight_grad, at::Tensor(), at::Tensor()};
  }
};

at::Tensor rotate(const at::Tensor& input,
                  const at::Tensor& cos,
                  const at::Tensor& sin,
                  float sign) {
  const at::Tensor x = input.contiguous();
  at::Tensor out = at::empty_like(x);
  const int64_t tokens = x.size(1);
  const int64_t heads = x.size(2);
  const int64_t head_dim = x.size(3);
  const auto* x_data = x.const_data_ptr<float>();
  const auto* cos_data = cos.const_data_ptr<float>();
  const auto* sin_data = sin.const_data_ptr<float>();
  auto* out_data = out.mutable_data_ptr<float>();
  at::parallel_for(0, x.size(0) * tokens, fused_rows_per_task(heads * head_dim),
                   [&](int64_t begin, int64_t end) {
                     kernels::rotary(x_data, cos_data, sin_data, sign, begin, end, tokens, heads,
                                     head_dim, out_data);
                   });
  return out;
}

struct Rotary : torch::autograd::Function<Rotary> {
  static constexpr std::string_view kNodeName = "RotaryBackward";

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& cos,
                            const at::Tensor& sin) {
    RECORD_FUNCTION("shardlens::rotary", c10::ArrayRef<const c10::IValue>{});
    ctx->save_for_backward({cos, sin});
    return rotate(x, cos, sin, 1.0F);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RECORD_FUNCTION("shardlens::rotary_backward", c10::ArrayRef<const c10::IValue>{});
    const variable_list saved = ctx->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], -1.0F), at::Tensor(), at::Tensor()};
  }
};

struct SiluMultiply : torch::autograd::Function<SiluMultiply> {
  static constexpr std::string_view kNodeName = "SiluMultiplyBackward";

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    RECORD_FUNCTION("shardlens::silu_multiply", c10::ArrayRef<const c10::IValue>{});
    const at::Tensor g = gate.contiguous();
    const at::Tensor u = up.contiguous();
    at::Tensor out = at::empty_like(g);
    const auto* g_data = g.const_data_ptr<float>();
    const auto* u_data = u.const_data_ptr<float>();
    auto* out_data = out.mutable_data_ptr<float>();
    at::parallel_for(0, g.numel(), kFusedGrain, [&](int64_t begin, int64_t end) {
      kernels::silu_multiply(g_data + begin, u_data + begin, end - begin, out_data + begin);
    });
    ctx->save_for_backward({g, u});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RECORD_FUNCTION("shardlens::silu_multiply_backward", c10::ArrayRef<const c10::IValue>{});
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor gate_grad = at::empty_like(saved[0]);
    at::Tensor up_grad = at::empty_like(saved[1]);
    const auto* grad_data = grad.const_data_ptr<float>();
    const auto* g_data = saved[0].const_data_ptr<float>();
    const auto* u_data = saved[1].const_data_ptr<float>();
    auto* gate_grad_data = gate_grad.mutable_data_ptr<float>();
    auto* up_grad_data = up_grad.mutable_data_ptr<float>();
    at::parallel_for(0, grad.numel(), kFusedGrain, [&](int64_t begin, int64_t end) {
      kernels::silu_multiply_backward(grad_data + begin, g_data + begin, u_data + begin,
                                      end - begin, gate_grad_data + begin, up_grad_data + begin);
    });
    return {gate_grad, up_grad};
  }
};

struct SoftCap : torch::autograd::Function<SoftCap> {
  static constexpr std::string_view kNodeName = "SoftCapBackward";

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double cap) {
    RECORD_FUNCTION("shardlens::softcap", c10::ArrayRef<const c10::IValue>{});
    const at::Tensor out = x.div(cap).tanh_().mul_(cap);
    ctx->save_for_backward({out});
    ctx->saved_data["cap"] = cap;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RECORD_FUNCTION("shardlens::softcap_backward", c10::ArrayRef<const c10::IValue>{});
    const double cap = ctx->saved_data["cap"].toDouble();
    at::Tensor slope = ctx->get_saved_variables()[0].div(cap);
    slope.square_().neg_().add_(1);
    return {slope.mul_(grads[0]), at::Tensor()};
  }
};

// The bias comes before the weight, as in aten::addmm: gradients are accumulated in the order of
// the arguments, and DDP assigns them to buckets in the order in which they become ready.
struct Project : torch::autograd::Function<Project> {
  static constexpr std::string_view kNodeName = "ProjectBackward";

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& input,
                            const std::optional<at::Tensor>& bias,
                            const at::Tensor& weight,
                            bool transposed) {
    const at::Tensor factor = transposed ? weight.t() : weight;
    const at::Tensor rows = input.reshape({-1, factor.size(0)});
    const at::Tensor out = bias ? at::addmm(*bias, rows, factor) : at::mm(rows, factor);
    // Only the weight's gradient needs the input.
    ctx->save_for_backward({weight.requires_grad() ? rows : at::Tensor(), weight});
    ctx->saved_data["shape"] = input.sizes().vec();
    ctx->saved_data["transposed"] = transposed;
    ctx->saved_data["bias"] = bias.has_value();
    c10::SmallVector<int64_t, 4> shape(input.sizes().begin(), input.sizes().end());
    shape.back() = factor.size(1);
    return out.view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& rows = saved[0];
    const at::Tensor& weight = saved[1];
    const bool transposed = ctx->saved_data["transposed"].toBool();
    const bool with_bias = ctx->saved_data["bias"].toBool();
    const at::Tensor grad = grads[0].reshape({-1, grads[0].size(-1)});
    const auto weight_grad = [&] {
      return !rows.defined() ? at::Tensor()  // frozen
             : transposed    ? at::mm(grad.t(), rows)
                             : at::mm(rows.t(), grad);
    };
    at::Tensor by_weight, by_input, by_bias;
    if (!with_bias) {  // aten::mm computes the gradient of its second factor first
      by_weight = weight_grad();
    }
    if (ctx->needs_input_grad(0)) {
      by_input = at::mm(grad, transposed ? weight : weight.t())
                     .view(ctx->saved_data["shape"].toIntVector());
    }
    if (with_bias) {
      by_weight = weight_grad();
      by_bias = ctx->needs_input_grad(1) ? grad.sum(0) : at::Tensor();
    }
    return {by_input, by_bias, by_weight, at::Tensor()};
  }
};

at::Tensor rotate_half(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
}

}  // namespace

at::Tensor project(const at::Tensor& input,
                   const at::Tensor& weight,
                   const at::Tensor& bias,
                   bool transposed) {
  // nullopt instead of an undefined tensor: apply() reads the device of its tensors.
  return Project::apply(input, bias.defined() ? std::optional(bias) : std::nullopt, weight,
                        transposed);
}

at::Tensor rms_norm(const at::Tensor& input,
                    const at::Tensor& weight,
                    double epsilon,
                    double offset) {
  if (runs_fused(input) && runs_fused(weight)) {
    return RmsNorm::apply(input, weight, epsilon, offset);
  }
  const at::Tensor x = input.to(at::kFloat);
  const at::Tensor normed = x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + epsilon);
  if (offset != 0) {  // in fp32 to the end
    return (normed * (weight.to(at::kFloat) + offset)).to(input.scalar_type());
  }
  return weight * normed.to(input.scalar_type());
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  if (runs_fused(x) && runs_fused(cos) && runs_fused(sin)) {
    return Rotary::apply(x, cos, sin);
  }
  return x * cos + rotate_half(x) * sin;
}

at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up) {
  if (runs_fused(gate) && runs_fused(up)) {
    return SiluMultiply::apply(gate, up);
  }
  return at::silu(gate) * up;
}

at::Tensor soft_cap(const at::Tensor& x, double cap) {
  return SoftCap::apply(x, cap);
}

at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat), targets);
}

}  // namespace shardlens::models
