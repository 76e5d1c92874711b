#pragma once

#include <cstdint>

// The loops over fp32 rows that ops.h uses. They do not include LibTorch, so that they compile fast
// and can be vectorised for each instruction set. All arrays are contiguous; outputs must not alias
// inputs.
namespace shardlens::models::kernels {

// out[r][i] = (offset + weight[i]) · x[r][i] · rstd[r]; rstd[r] = 1 / sqrt(mean(x[r]²) + epsilon),
// an output that backward needs.
void rms_norm(const float* x,
              const float* weight,
              float offset,
              float epsilon,
              int64_t rows,
              int64_t features,
              float* out,
              float* rstd);
// Adds to weight_grad, which the caller must set to zero.
void rms_norm_backward(const float* grad,
                       const float* x,
                       const float* weight,
                       float offset,
                       const float* rstd,
                       int64_t rows,
                       int64_t features,
                       float* x_grad,
                       float* weight_grad);

// x [B, T, N, H]; cos, sin [T, H] with equal halves. `sign`: +1 for forward, -1 for backward.
// Computes rows [begin, end) of B · T.
void rotary(const float* x,
            const float* cos,
            const float* sin,
            float sign,
            int64_t begin,
            int64_t end,
            int64_t tokens,
            int64_t heads,
            int64_t head_dim,
            float* out);

void silu_multiply(const float* gate, const float* up, int64_t count, float* out);
void silu_multiply_backward(const float* grad,
                            const float* gate,
                            const float* up,
                            int64_t count,
                            float* gate_grad,
                            float* up_grad);

// out[i] += scale · x[i].
void add_scaled(const float* x, float scale, int64_t count, float* out);
// out[i] = scale · x[i]; returns the sum of x[i] · y[i].
float scale_and_dot(const float* x, float scale, const float* y, int64_t count, float* out);

}  // namespace shardlens::models::kernels
