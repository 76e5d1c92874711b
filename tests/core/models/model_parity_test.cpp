#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "core/models/model.h"
#include "core/models/ops.h"
#include "core/weights/checkpoint_layout.h"
#include "core/weights/safetensors.h"
#include "tests/support/case_name.h"

namespace shardlens::models {
namespace {

const std::filesystem::path kData = SHARDLENS_TEST_DATA;
constexpr int64_t kBatch = 2;
constexpr int64_t kSeq = 64;

std::vector<at::Tensor> load(CausalLm& model,
                             const plan::ModelConfig& config,
                             const std::filesystem::path& directory) {
  const c10::NoGradGuard no_grad;
  const Checkpoint checkpoint = Checkpoint::open(directory);
  std::vector<at::Tensor> out;
  auto named = model.named_parameters();
  for (const plan::Parameter& parameter : plan::module_tree(config).parameters) {
    out.push_back(named[parameter.fqn]);
    CheckpointParameter(checkpoint, config, parameter)
        .read(0, {out.back().data_ptr<float>(), static_cast<size_t>(out.back().numel())});
  }
  return out;
}

at::Tensor step_tokens(const std::vector<uint16_t>& tokens, int64_t step) {
  const auto samples = (static_cast<int64_t>(tokens.size()) - 1) / kSeq;
  at::Tensor out = at::empty({kBatch, kSeq + 1}, at::kLong);
  for (int64_t row = 0; row < kBatch; ++row) {
    const int64_t sample = (step * kBatch + row) % samples;
    for (int64_t i = 0; i <= kSeq; ++i) {
      out.data_ptr<int64_t>()[row * (kSeq + 1) + i] =
          tokens[static_cast<size_t>(sample * kSeq + i)];
    }
  }
  return out;
}

std::vector<uint16_t> read_tokens() {
  std::ifstream in(kData / "tokens.u16.bin", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<uint16_t> out(bytes.size() / 2);
  std::memcpy(out.data(), bytes.data(), out.size() * 2);
  return out;
}

// Compares ten AdamW steps of the unsharded model with PyTorch's, recorded with one rank.
void expect_parity(const std::string& name) {
  at::set_num_threads(1);
  const auto config = plan::load_model_config(kData / name);
  const auto model = make_model(config, Init::kRandom);
  const std::vector<at::Tensor> parameters = load(*model, config, kData / name);
  std::vector<at::Tensor> averages, squares, steps;
  for (const at::Tensor& parameter : parameters) {
    averages.push_back(at::zeros_like(parameter));
    squares.push_back(at::zeros_like(parameter));
    steps.push_back(at::zeros({}, at::kFloat));
  }
  nlohmann::json expected;
  std::ifstream(kData / (name + ".fsdp2.w1.json")) >> expected;
  const std::vector<uint16_t> tokens = read_tokens();
  for (int64_t step = 0; step < 10; ++step) {
    const at::Tensor batch = step_tokens(tokens, step);
    const at::Tensor logits = model->logits(batch.narrow(1, 0, kSeq));
    const at::Tensor loss = token_loss(logits.flatten(0, 1), batch.narrow(1, 1, kSeq).flatten());
    loss.backward();
    const double want = expected["loss"][static_cast<size_t>(step)];
    EXPECT_NEAR(loss.item<double>(), want, 1e-5 * want) << name << " step " << step;
    const c10::NoGradGuard no_grad;
    double squared = 0;
    std::vector<at::Tensor> gradients, values;
    for (size_t i = 0; i < parameters.size(); ++i) {
      gradients.push_back(parameters[i].grad());
      values.push_back(parameters[i].detach());
      squared += std::pow(parameters[i].grad().norm().item<double>(), 2);
      steps[i].add_(1);
    }
    const double want_norm = expected["grad_norm"][static_cast<size_t>(step)];
    EXPECT_NEAR(std::sqrt(squared), want_norm, 1e-4 * want_norm) << name << " step " << step;
    at::_fused_adamw_(values, gradients, averages, squares, {}, steps, 1e-3, 0.9, 0.999, 0.01, 1e-8,
                      false, false);
    for (const at::Tensor& gradient : gradients) {
      gradient.zero_();
    }
  }
  for (const auto& item : model->named_parameters()) {
    const double want = expected["param_norm"][item.key()];
    const double tolerance = item.key().ends_with("c_attn.bias") ? 1e-3 : 1e-5;
    EXPECT_NEAR(item.value().to(at::kDouble).norm().item<double>(), want, tolerance * want)
        << item.key();
  }
}

class ModelParityTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelParityTest, TrainsAsTransformers) {
  expect_parity(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Families,
                         ModelParityTest,
                         ::testing::Values("llama-tiny",
                                           "gpt2-tiny",
                                           "mistral-tiny",
                                           "qwen2-tiny",
                                           "qwen3-tiny",
                                           "gemma2-tiny",
                                           "gemma3-tiny",
                                           "mixtral-tiny",
                                           "qwen3-moe-tiny"),
                         [](const auto& each) { return test::case_name(each.param); });

}  // namespace
}  // namespace shardlens::models
