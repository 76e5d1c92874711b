#include "core/models/kernels.h"

#include <bit>
#include <cmath>

// Compiles one version per instruction set; the program chooses one when it is loaded, which is
// before the run-time libraries of sanitizers are ready. v3 is AVX2 with FMA, v4 is AVX-512.
#if defined(__x86_64__) && __GNUC__ >= 12 && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHARDLENS_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SHARDLENS_VECTORISED
#endif

namespace shardlens::models::kernels {
namespace {

// exp with an error of at most 2 ulp on [-87, 88], clamped outside. A polynomial, which the
// compiler can vectorise, unlike a call of libm's exp.
//
// Source      Cephes expf (S. Moshier).
inline __attribute__((always_inline)) float fast_exp(float x) {
  x = x < -87.0F ? -87.0F : (x > 88.0F ? 88.0F : x);
  constexpr float kRound = 12582912.0F;  // 1.5 · 2^23: adding and subtracting rounds to an integer
  const float n = (x * 1.44269504088896341F + kRound) - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float mantissa = p * r * r + r + 1.0F;
  return mantissa * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

}  // namespace

SHARDLENS_VECTORISED
void rms_norm(const float* x,
              const float* weight,
              float offset,
              float epsilon,
              int64_t rows,
              int64_t features,
              float* out,
              float* rstd) {
  for (int64_t row = 0; row < rows; ++row, x += features, out += features) {
    float squares = 0.0F;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < features; ++i) {
      squares += x[i] * x[i];
    }
    const float scale = 1.0F / std::sqrt(squares / static_cast<float>(features) + epsilon);
    rstd[row] = scale;
#pragma omp simd
    for (int64_t i = 0; i < features; ++i) {
      out[i] = (offset + weight[i]) * (x[i] * scale);
    }
  }
}

SHARDLENS_VECTORISED
void rms_norm_backward(const float* grad,
                       const float* x,
                       const float* weight,
                       float offset,
                       const float* rstd,
                       int64_t rows,
                       int64_t features,
                       float* x_grad,
                       float* weight_grad) {
  for (int64_t row = 0; row < rows; ++row, grad += features, x += features, x_grad += features) {
    const float scale = rstd[row];
    float dot = 0.0F;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < features; ++i) {
      dot += grad[i] * (offset + weight[i]) * x[i];
    }
    const float correction = dot * scale * scale * scale / static_cast<float>(features);
#pragma omp simd
    for (int64_t i = 0; i < features; ++i) {
      weight_grad[i] += grad[i] * x[i] * scale;
      x_grad[i] = grad[i] * (offset + weight[i]) * scale - x[i] * correction;
    }
  }
}

SHARDLENS_VECTORISED
void rotary(const float* x,
            const float* cos,
            const float* sin,
            float sign,
            int64_t begin,
            int64_t end,
            int64_t tokens,
            int64_t heads,
            int64_t head_dim,
            float* out) {
  const int64_t half = head_dim / 2;
  for (int64_t row = begin; row < end; ++row) {
    const float* c = cos + (row % tokens) * head_dim;
    const float* s = sin + (row % tokens) * head_dim;
    for (int64_t head = 0; head < heads; ++head) {
      const float* a = x + (row * heads + head) * head_dim;
      float* o = out + (row * heads + head) * head_dim;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float first = a[i];
        const float second = a[i + half];
        o[i] = first * c[i] - sign * (second * s[i]);
        o[i + half] = second * c[i] + sign * (first * s[i]);
      }
    }
  }
}

SHARDLENS_VECTORISED
void silu_multiply(const float* gate, const float* up, int64_t count, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    out[i] = gate[i] / (1.0F + fast_exp(-gate[i])) * up[i];
  }
}

SHARDLENS_VECTORISED
void silu_multiply_backward(const float* grad,
                            const float* gate,
                            const float* up,
                            int64_t count,
                            float* gate_grad,
                            float* up_grad) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float sigmoid = 1.0F / (1.0F + fast_exp(-gate[i]));
    const float silu = gate[i] * sigmoid;
    up_grad[i] = grad[i] * silu;
    gate_grad[i] = grad[i] * up[i] * (sigmoid + silu * (1.0F - sigmoid));
  }
}

SHARDLENS_VECTORISED
void add_scaled(const float* x, float scale, int64_t count, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    out[i] += scale * x[i];
  }
}

SHARDLENS_VECTORISED
float scale_and_dot(const float* x, float scale, const float* y, int64_t count, float* out) {
  float dot = 0.0F;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < count; ++i) {
    out[i] = scale * x[i];
    dot += x[i] * y[i];
  }
  return dot;
}

}  // namespace shardlens::models::kernels
