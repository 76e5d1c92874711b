#include "core/model/families/tensor_part.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/base/divisors.h"
#include "core/base/error.h"
#include "core/model/families/decoder_family.h"

namespace shardlens::plan {
namespace {

constexpr int64_t kWhole = -1;  // a parameter that is not divided

bool has(const DecoderFamily& family, Part part) {
  return std::ranges::any_of(
      std::array{family.model, family.layer, family.attention, family.mlp},
      [part](std::span<const Slot> slots) { return find_slot(slots, part) != nullptr; });
}

class TensorPart {
 public:
  TensorPart(const ModelConfig& config, const ResolvedPlan& plan, const StepSettings& settings)
      : config_(config), plan_(plan), settings_(settings), ranks_(plan.mesh.size(mesh::kTensor)) {}

  void require() {
    require_plan();
    if (config_.file != nullptr) {
      return;  // see recorded_division()
    }
    require_model();
    require_styles();
    require_sizes();
  }

 private:
  [[noreturn]] void fail(std::string_view key, const std::string& why) const {
    throw InputError(fmt::format("{}#/{}", plan_.plan.source, key), why);
  }
  [[noreturn]] void refuse(const std::string& why,
                           std::string_view expected = "; expected 1") const {
    fail("mesh/tensor", fmt::format("tensor {}: {}{}", ranks_, why, expected));
  }

  void require_model() const {
    const DecoderFamily* family = find_decoder_family(config_);
    if (family == nullptr) {
      refuse(
          fmt::format("family {} has layers that are not simulated in parts yet", config_.family));
    }
    if (family->whole_norms || family->parallel || family->sinks || has(Part::kPositions) ||
        !has(Part::kInputNorm) || !config_.norm_before || config_.head != ModelHead::kCausal ||
        (has(Part::kQueryKeyValue) && !family->rotary)) {
      refuse(fmt::format("layers of {} are not simulated in parts yet",
                         config_.torch_type.empty() ? config_.family : config_.torch_type));
    }
    if (config_.experts.count > 0 && plan_.expert_mesh.size(mesh::kExpert) == 1) {
      refuse(
          "experts are divided over the axis expert only, so that each of them is whole on its "
          "rank; with expert 2 or more the axis tensor can be used, without it");
    }
    if (config_.experts.count > 0 && !plan_.plan.sequence_parallel) {
      refuse("ranks that send tokens to experts are simulated with sequence_parallel only");
    }
    if (config_.latent.key_value_rank > 0) {
      refuse(fmt::format("latent attention of family {} is not simulated in parts yet",
                         config_.family));
    }
  }

  // What torchtitan 0.2.2 and torchao 0.18 run on divided layers. Their activations are gathered in
  // 16 bits, but for fp8_tensorwise.
  void require_products(const Software& software) const {
    if (!software.matmul_dtype) {
      return;
    }
    if (software.matmul_dtype == MatmulDType::kFp8Tensorwise) {
      refuse(
          "with --matmul-dtype fp8_tensorwise torchao's ranks also agree on the largest number of "
          "each tensor that is cast, which is not described; expected fp8_rowwise, or tensor 1",
          "");
    }
    const bool mxfp8 = software.matmul_dtype == MatmulDType::kMxfp8 ||
                       software.matmul_dtype == MatmulDType::kMxfp8CublasRceil;
    if (mxfp8 && software.compile != Compile::kNone) {
      refuse(
          "torchtitan refuses mxfp8 in compiled blocks with tensor parallelism; expected "
          "--compile none, fp8_rowwise, or tensor 1",
          "");
    }
    if (software.matmul_dtype == MatmulDType::kNvfp4) {
      refuse("torchao's nvfp4 layers are not divided; expected fp8_rowwise, or tensor 1", "");
    }
  }

  void require_plan() const {
    if (plan_.plan.dialect == Dialect::kFsdp1) {
      refuse(
          "FSDP1 takes layers that parallelize_module divides only through an extension that is "
          "private in PyTorch, whose steps were not recorded; expected dialect fsdp2, or tensor 1",
          "");
    }
    if (plan_.has_replicated_units()) {
      refuse(
          "DDP takes no layers that parallelize_module divides (torchtitan and accelerate refuse "
          "the two together); expected units with api fully_shard, such as on a mesh with replicas",
          "");
    }
    const Software& software = settings_.software;
    require_products(software);
    if (software.loss_chunks.value_or(1) > 1 &&
        operators_of(settings_.program) != Program::kTorchtitan03) {
      refuse(
          "only torchtitan 0.3 computes the loss in parts on divided layers; expected --stack "
          "torchtitan-0.3, --loss-chunks 1, or tensor 1",
          "");
    }
  }

  [[nodiscard]] bool has(Part part) const {
    return shardlens::plan::has(decoder_family_of(config_), part);
  }

  [[nodiscard]] int64_t dimension_of(const std::string& weight) const {
    for (size_t i = 0; i < plan_.tree.parameters.size(); ++i) {
      const Parameter& each = plan_.tree.parameters[i];
      if (each.fqn == weight || std::ranges::find(each.aliases, weight) != each.aliases.end()) {
        const Placement& placed = plan_.placements[i];
        return placed.group == plan_.group_named(mesh::kTensor) ? placed.dim : kWhole;
      }
    }
    return kWhole;
  }

  void require_style(const std::string& module, int64_t dim, std::string_view style) const {
    if (dimension_of(module + ".weight") != dim) {
      fail("tensor_parallel",
           fmt::format("'{}' is divided in another way than the layers that it works with; "
                       "expected style {}",
                       module, style));
    }
  }

  // Attention and MLP are divided as a whole, by columns and then by rows.
  void require_styles() {
    const DecoderFamily& family = decoder_family_of(config_);
    struct Layer {
      Part part;
      int64_t dim;
      std::string_view style;
    };
    constexpr std::array<Layer, 9> kLayers{{{Part::kQuery, 0, "column"},
                                            {Part::kKey, 0, "column"},
                                            {Part::kValue, 0, "column"},
                                            {Part::kQueryKeyValue, 0, "column"},
                                            {Part::kOutput, 1, "row"},
                                            {Part::kGate, 0, "column"},
                                            {Part::kUp, 0, "column"},
                                            {Part::kGateUp, 0, "column"},
                                            {Part::kDown, 1, "row"}}};
    for (size_t index = 0; index < plan_.tree.blocks.size(); ++index) {
      const uint32_t block = plan_.tree.blocks[index];
      const bool sparse = flag_of(config_.sparse, static_cast<int64_t>(index));
      for (const Layer& each : kLayers) {
        const bool attends = each.part <= Part::kOutput;
        if (!attends && sparse) {
          continue;  // experts, which are whole
        }
        const Slot* found = find_slot(attends ? family.attention : family.mlp, each.part);
        if (found == nullptr) {
          continue;
        }
        const Slot* in = find_slot(family.layer, attends ? Part::kAttention : Part::kMlp);
        const std::string& layer = plan_.tree.modules[block].fqn;
        require_style(in == nullptr ? fmt::format("{}.{}", layer, found->name)
                                    : fmt::format("{}.{}.{}", layer, in->name, found->name),
                      each.dim, each.style);
      }
    }
    const Slot* embedding = find_slot(family.model, Part::kEmbedding);
    for (const Module& module : plan_.tree.modules) {
      const std::string_view name = std::string_view(module.fqn).substr(module.fqn.rfind('.') + 1);
      if (embedding != nullptr && name == embedding->name) {
        embedding_ = module.fqn;
      }
    }
    divides_head_ = dimension_of("lm_head.weight") != kWhole;
    divides_vocabulary_ = divides_head_ || dimension_of(embedding_ + ".weight") != kWhole;
    for (const auto& [module, style] :
         {std::pair<std::string, std::string_view>{embedding_, "vocabulary"},
          {"lm_head", "column"}}) {
      if (plan_.plan.sequence_parallel || dimension_of(module + ".weight") != kWhole) {
        require_style(module, 0, style);
      }
    }
    if (plan_.plan.loss_parallel && !divides_head_) {
      require_style("lm_head", 0, "column");
    }
  }

  void require_sizes() const {
    struct Size {
      int64_t count;
      std::string_view what;
    };
    const int64_t queries = config_.heads * config_.head_dim;
    const int64_t keys = config_.kv_heads * config_.head_dim;
    std::vector<Size> sizes;
    if (std::ranges::count(config_.sparse, true) < config_.layers) {
      sizes.push_back({config_.intermediate_size, "features of the MLP"});
    }
    if (has(Part::kQueryKeyValue)) {
      sizes.push_back({queries, "features of queries"});
      sizes.push_back({queries + 2 * keys, "features of queries, keys and values"});
    } else {
      sizes.insert(sizes.begin(),
                   {{config_.heads, "heads"}, {config_.kv_heads, "heads of keys and values"}});
    }
    if (config_.lora.rank > 0) {
      sizes.push_back({config_.lora.rank, "rows of the adapters"});
    }
    if (divides_vocabulary_) {
      sizes.push_back({config_.vocab_size, "tokens in the vocabulary"});
    }
    if (plan_.plan.sequence_parallel) {
      sizes.push_back({settings_.seq.value_or(1) / plan_.mesh.size(mesh::kContext),
                       plan_.mesh.size(mesh::kContext) > 1 ? "tokens in a part of a sample"
                                                           : "tokens in a sample"});
    }
    int64_t common = 0;
    for (const Size& each : sizes) {
      common = std::gcd(common, each.count);
    }
    for (const Size& each : sizes) {
      if (each.count % ranks_ != 0) {
        fail("mesh/tensor", fmt::format("tensor {} does not divide {} {}; expected {}", ranks_,
                                        each.count, each.what, one_of(divisors(common))));
      }
    }
  }

  const ModelConfig& config_;
  const ResolvedPlan& plan_;
  const StepSettings& settings_;
  int64_t ranks_;
  std::string embedding_;  // the module
  bool divides_head_ = false, divides_vocabulary_ = false;
};

}  // namespace

void require_tensor_part(const ModelConfig& config,
                         const ResolvedPlan& plan,
                         const StepSettings& settings) {
  if (plan.mesh.size(mesh::kTensor) > 1) {
    TensorPart(config, plan, settings).require();
  }
}

ModelConfig tensor_part(const ModelConfig& config, const ResolvedPlan& plan) {
  const int64_t ranks = plan.mesh.size(mesh::kTensor);
  ModelConfig out = config;
  if (ranks == 1) {
    return out;
  }
  // What follows layers whose outputs are for several uses is whole on every rank.
  const DecoderFamily& family = decoder_family_of(config);
  if (!has(family, Part::kQueryKeyValue)) {
    out.heads /= ranks;
    out.kv_heads /= ranks;
  }
  if (!has(family, Part::kGateUp)) {
    out.intermediate_size /= ranks;
  }
  if (plan.plan.loss_parallel) {
    out.vocab_size /= ranks;
  }
  return out;
}

}  // namespace shardlens::plan
