// Time of forward and backward of the experts of one layer in fp32 on the CPU: grouped, as the
// engine runs them, and as a loop over the experts. Prints JSON; expert_times.py compares it with
// transformers.
//
//   expert_times ROWS HIDDEN INTERMEDIATE EXPERTS PER_ROW THREADS REPEATS
#include <charconv>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include "core/models/expert_ops.h"

namespace {

using namespace shardlens;

struct Layer {
  at::Tensor x, gate_up, down;  // [R, D], [E, 2 I, D], [E, D, I]
  at::Tensor weights, chosen;   // [R, K]
};

at::Tensor grouped(const Layer& layer) {
  const models::Routing routing = models::route(layer.chosen, layer.gate_up.size(0));
  const at::Tensor both =
      models::grouped_mm(models::gather_rows(layer.x, routing), layer.gate_up, routing);
  return models::weighted_sum(models::grouped_mm(models::silu_gate(both), layer.down, routing),
                              layer.weights, routing);
}

at::Tensor loop(const Layer& layer) {
  at::Tensor out = at::zeros_like(layer.x);
  for (int64_t expert = 0; expert < layer.gate_up.size(0); ++expert) {
    const std::vector<at::Tensor> where = (layer.chosen == expert).nonzero().unbind(1);
    const auto halves =
        at::matmul(layer.x.index_select(0, where[0]), layer.gate_up[expert].t()).chunk(2, -1);
    const at::Tensor rows = at::matmul(at::silu(halves[0]) * halves[1], layer.down[expert].t());
    out = out.index_add(0, where[0], rows * layer.weights.index({where[0], where[1]}).unsqueeze(1));
  }
  return out;
}

// Milliseconds of each repeat.
std::vector<double> times(const Layer& layer,
                          const std::function<at::Tensor(const Layer&)>& run,
                          const at::Tensor& grad,
                          int repeats) {
  std::vector<double> out;
  for (int i = 0; i < repeats + 1; ++i) {
    for (const at::Tensor& each : {layer.x, layer.gate_up, layer.down, layer.weights}) {
      each.mutable_grad().reset();
    }
    const auto start = std::chrono::steady_clock::now();
    run(layer).backward(grad);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (i > 0) {  // the first allocates
      out.push_back(took.count());
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> n;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= 1) {
      n.push_back(value);
    }
  }
  if (argc != 8 || n.size() != 7 || n[4] > n[3]) {
    fmt::print(stderr,
               "usage: expert_times ROWS HIDDEN INTERMEDIATE EXPERTS PER_ROW THREADS REPEATS\n"
               "numbers of at least 1; PER_ROW is at most EXPERTS\n");
    return 2;
  }
  at::set_num_threads(static_cast<int>(n[5]));
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(1);
  Layer layer{at::randn({n[0], n[1]}),
              at::randn({n[3], 2 * n[2], n[1]}) * 0.02,
              at::randn({n[3], n[1], n[2]}) * 0.02,
              {},
              {}};
  std::tie(layer.weights, layer.chosen) = at::topk(at::randn({n[0], n[3]}).softmax(-1), n[4]);
  layer.weights = layer.weights.contiguous();
  for (at::Tensor* each : {&layer.x, &layer.gate_up, &layer.down, &layer.weights}) {
    each->set_requires_grad(true);
  }
  const at::Tensor grad = at::randn({n[0], n[1]});
  const double apart = (grouped(layer) - loop(layer)).abs().max().item<double>();
  const int repeats = static_cast<int>(n[6]);
  const auto ours = times(layer, grouped, grad, repeats);
  const auto naive = times(layer, loop, grad, repeats);
  fmt::print("{{\"largest_difference\": {}, \"grouped_ms\": [{:.3f}], \"loop_ms\": [{:.3f}]}}\n",
             apart, fmt::join(ours, ", "), fmt::join(naive, ", "));
  return 0;
}
