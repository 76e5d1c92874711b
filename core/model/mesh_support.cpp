#include "core/model/mesh_support.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/divisors.h"
#include "core/base/error.h"
#include "core/model/families/decoder_family.h"
#include "core/model/families/tensor_part.h"

namespace shardlens::plan {
namespace {

// Errors: InputError for models, plans and settings whose sequences cannot be divided over the axis
// `context`.
void require_context(const ModelConfig& config,
                     const ResolvedPlan& plan,
                     const StepSettings& settings) {
  const int64_t ranks = plan.mesh.size(mesh::kContext);
  if (ranks == 1) {
    return;
  }
  const auto refuse = [&](const std::string& why) {
    throw InputError(plan.plan.source + "#/mesh/context",
                     fmt::format("context {}: {}; expected 1", ranks, why));
  };
  const DecoderFamily* family = find_decoder_family(config);
  if (family == nullptr || config.head != ModelHead::kCausal) {
    refuse("only decoders with a head for the next token are simulated on parts of a sequence");
  }
  if (family->eager != Scores::kFused || family->sinks || config.score_cap > 0 ||
      std::ranges::find(config.windowed, true) != config.windowed.end()) {
    refuse(
        "attention with windows, sinks or capped scores is not simulated on parts of a "
        "sequence");
  }
  if (plan.plan.dialect == Dialect::kFsdp1 || plan.has_replicated_units()) {
    refuse("parts of a sequence are simulated with fully_shard of fsdp2 only");
  }
  const int64_t seq = settings.seq.value_or(0);
  if (seq % (2 * ranks) != 0) {  // two pieces for each rank
    const std::vector<int64_t> sizes = seq % 2 == 0 ? divisors(seq / 2) : std::vector<int64_t>{1};
    throw InputError(
        plan.plan.source + "#/mesh/context",
        fmt::format("context {}: each rank has two pieces of a sample, but {} does not divide {} "
                    "tokens; expected {}",
                    ranks, 2 * ranks, seq, one_of(sizes)));
  }
}

// Errors: InputError for models, plans and settings whose experts cannot be divided over the axis
// `expert`.
void require_experts(const ModelConfig& config,
                     const ResolvedPlan& plan,
                     const StepSettings& settings) {
  const int64_t ranks = plan.expert_mesh.size(mesh::kExpert), experts = config.experts.count;
  if (ranks == 1) {
    return;
  }
  const auto refuse = [&](const std::string& why) {
    throw InputError(plan.plan.source + "#/mesh/expert",
                     fmt::format("expert {}: {}; expected 1", ranks, why));
  };
  if (const ExpertDispatch dispatch = plan.plan.expert_dispatch;
      dispatch != ExpertDispatch::kAllToAll && plan.mesh.size(mesh::kTensor) > 1) {
    throw InputError(plan.plan.source + "#/expert_parallel/dispatch",
                     fmt::format("{} is not simulated with tensor {}, whose ranks have the same "
                                 "tokens; expected all_to_all, or tensor 1",
                                 dispatch == ExpertDispatch::kAllGather ? "all_gather" : "deep_ep",
                                 plan.mesh.size(mesh::kTensor)));
  }
  if (plan.plan.ranks_per_token > std::min(ranks, config.experts.per_token)) {
    throw InputError(
        plan.plan.source + "#/expert_parallel/ranks_per_token",
        fmt::format("a token has {} experts on {} ranks; expected 1 to {}",
                    config.experts.per_token, ranks, std::min(ranks, config.experts.per_token)));
  }
  if (config.file != nullptr) {
    refuse("the experts of a model file are not simulated in parts yet");
  }
  if (experts == 0) {
    refuse("the model has no experts");
  }
  if (settings.software.compile != Compile::kNone) {
    refuse("tokens that are sent to their experts are not simulated with --compile yet");
  }
  if (settings.software.cuda_graphs) {
    throw InputError(plan.plan.source + "#/mesh/expert",
                     fmt::format("expert {}: the host reads how many rows each rank sends, which a "
                                 "CUDA graph cannot contain; expected 1, or --no-cuda-graphs",
                                 ranks));
  }
  if (plan.plan.dialect == Dialect::kFsdp1 || plan.has_replicated_units()) {
    refuse("divided experts are simulated with fully_shard of fsdp2 only");
  }
  if (experts % ranks != 0) {
    const int64_t replica = plan.expert_mesh.ranks() / plan.expert_mesh.size(mesh::kReplicate);
    throw InputError(plan.plan.source + "#/mesh/expert",
                     fmt::format("expert {} does not divide {} experts; expected {}", ranks,
                                 experts, one_of(divisors(std::gcd(experts, replica)))));
  }
}

}  // namespace

void require_mesh(const ModelConfig& config,
                  const ResolvedPlan& plan,
                  const StepSettings& settings) {
  require_tensor_part(config, plan, settings);
  require_context(config, plan, settings);
  require_experts(config, plan, settings);
}

}  // namespace shardlens::plan
