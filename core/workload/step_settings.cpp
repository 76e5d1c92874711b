#include "core/workload/step_settings.h"

#include <array>
#include <string>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/workload/step_limits.h"

namespace shardlens::plan {

std::string_view name_of(Optimizer optimizer) {
  return optimizer == Optimizer::kAdamW ? "adamw" : "sgd";
}

std::string_view name_of(OptimizerImpl impl) {
  return impl == OptimizerImpl::kFused ? "fused" : "foreach";
}

std::string_view name_of(Program program) {
  constexpr std::array<std::string_view, kProgramCount> kNames{
      "engine",          "engine_on_cpu",  "engine_on_gpu", "transformers", "torchtitan",
      "torchtitan_2024", "torchtitan_0_3", "simple_fsdp",   "graph_trainer"};
  return kNames[static_cast<size_t>(program)];
}

bool is_engine(Program program) {
  return program == Program::kEngine || program == Program::kEngineOnCpu ||
         program == Program::kEngineOnGpu;
}

bool is_torchtitan(Program program) {
  const Program runs = operators_of(program);
  return runs == Program::kTorchtitan || runs == Program::kTorchtitan2024 ||
         runs == Program::kTorchtitan03;
}

bool is_traced(Program program) {
  return program == Program::kSimpleFsdp || program == Program::kGraphTrainer;
}

Program operators_of(Program program) {
  return program == Program::kSimpleFsdp     ? Program::kTorchtitan
         : program == Program::kGraphTrainer ? Program::kTorchtitan03
                                             : program;
}

Software software_by_default(Program program) {
  constexpr int64_t kLossChunks = 8;  // of ChunkedLossWrapper
  return operators_of(program) == Program::kTorchtitan03
             ? Software{.cuda_graphs = true, .loss_chunks = kLossChunks}
             : Software{};
}

bool expands_segments(const StepSettings& settings) {
  return settings.software.expandable_segments.value_or(is_torchtitan(settings.program));
}

bool compiles_loss(Program program) {
  return program != Program::kTorchtitan2024;
}

bool keeps_gradients(Program program, const Software& software) {
  return operators_of(program) == Program::kTorchtitan03 && software.cuda_graphs;
}

void require_valid(const StepSettings& settings, std::string_view source) {
  struct Size {
    const char* name;
    int64_t value, most;
  };
  const int64_t seq = settings.seq.value_or(1);
  for (const Size& size : {Size{"batch", settings.batch, kMostSamples},
                           {"seq", seq, kLongestSample},
                           {"accumulate", settings.accumulate, kMostMicrobatches}}) {
    if (size.value < 1 || size.value > size.most) {
      throw InputError(std::string(source),
                       fmt::format("{} {}: expected 1 to {}", size.name, size.value, size.most));
    }
  }
  if (settings.batch * seq > kMostTokens) {
    throw InputError(std::string(source), fmt::format("batch {} of {} tokens: expected at most {}",
                                                      settings.batch, seq, kMostTokens));
  }
  if (!(settings.expert_skew >= 0)) {
    throw InputError(std::string(source), "expert_skew: expected 0 (balanced) or more");
  }
}

}  // namespace shardlens::plan
