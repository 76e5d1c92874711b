#include "core/models/model.h"

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "core/base/error.h"
#include "core/model/families/decoder_family.h"
#include "core/models/decoder_model.h"
#include "core/models/gpt2.h"
#include "core/models/initial_values.h"
#include "core/models/mlp.h"

namespace shardlens::models {
namespace {

void require(bool condition,
             const plan::ModelConfig& config,
             const char* key,
             const std::string& message) {
  if (!condition) {
    throw InputError(config.source + "#/" + key, message);
  }
}

// Refuses settings of the config that the models do not support.
void check(const plan::ModelConfig& config) {
  require(config.dropout == 0.0, config,
          config.family == "gpt2" ? "resid_pdrop" : "attention_dropout",
          "dropout " + std::to_string(config.dropout) +
              " is not supported; set every dropout of the model to 0");
  require(config.quantization.empty(), config, "quantization_config",
          "quantised weights are not supported; expected a checkpoint in fp32, bf16 or fp16");
  require(config.head == plan::ModelHead::kCausal, config, "architectures",
          config.torch_type + " can be planned and simulated, not trained");
  require(config.lora.rank == 0, config, "lora",
          "adapters can be planned and simulated, not trained; remove them");
  require(config.experts.jitter == 0.0, config, "router_jitter_noise",
          "noise on the router's input is not supported; set it to 0");
  require(!config.experts.auxiliary_loss, config, "output_router_logits",
          "the router's auxiliary loss is not supported; set it to false");
  if (config.family == "gpt2") {
    require(config.heads > 0 && config.hidden_size % config.heads == 0, config, "n_head",
            std::to_string(config.heads) + " does not divide n_embd " +
                std::to_string(config.hidden_size));
  }
}

using Make = std::shared_ptr<CausalLm> (*)(const plan::ModelConfig& config, Init init);

// By config.family, besides the decoders of the table of families.
constexpr std::array<std::pair<std::string_view, Make>, 2> kOthers{
    {{"gpt2", make_gpt2}, {"mlp", make_mlp}}};

Make maker_of(const plan::ModelConfig& config) {
  std::string names;
  for (const plan::DecoderFamily& family : plan::decoder_families()) {
    if (family.trained && family.model_type == config.family) {
      return make_decoder;
    }
    names += family.trained ? std::string(family.model_type) + ", " : "";
  }
  for (const auto& [family, make] : kOthers) {
    if (family == config.family) {
      return make;
    }
    names += std::string(family) + ", ";
  }
  names.resize(names.size() - 2);
  throw InputError(config.source + "#/model_type",
                   "models of type '" + config.family +
                       "' can be planned and simulated, not trained; expected one of " + names);
}

void fill(CausalLm& model, const plan::ModelConfig& config, uint64_t seed) {
  const plan::ModuleTree tree = plan::module_tree(config);
  auto named = model.named_parameters();
  for (uint32_t index = 0; index < tree.parameters.size(); ++index) {
    const plan::Parameter& parameter = tree.parameters[index];
    at::Tensor* tensor = named.find(parameter.fqn);
    SHARDLENS_CHECK(tensor != nullptr, "module tree names a parameter the model lacks");
    auto* data = tensor->data_ptr<float>();
    initial_values(config, parameter, index, seed, 0, {data, static_cast<size_t>(parameter.numel)});
  }
}

// Moves the parameters in place. torch::nn::Module::to() would read parameters without storage.
void move(CausalLm& model, Init init, c10::Device device) {
  const c10::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters()) {
    if (init == Init::kNone) {
      at::Tensor shape_only = at::empty({0}, parameter.options().device(device));
      shape_only.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.sizes());
      parameter.set_data(shape_only);
    } else {
      parameter.set_data(parameter.detach().to(device));
    }
  }
}

}  // namespace

std::shared_ptr<CausalLm> make_model(const plan::ModelConfig& config,
                                     Init init,
                                     uint64_t seed,
                                     c10::Device device) {
  check(config);
  const std::shared_ptr<CausalLm> model = maker_of(config)(config, init);
  if (init == Init::kRandom) {
    fill(*model, config, seed);
  }
  if (!device.is_cpu()) {
    move(*model, init, device);
  }
  return model;
}

}  // namespace shardlens::models
