#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/workload/software.h"

namespace shardlens::plan {

enum class Optimizer : uint8_t { kAdamW, kSgd };
[[nodiscard]] std::string_view name_of(Optimizer optimizer);  // "adamw", "sgd"

// How an optimizer runs, as the keywords of torch.optim: one kernel that updates everything in
// place, or one operator after the other over lists of all tensors, with temporary lists.
enum class OptimizerImpl : uint8_t { kFused, kForeach };
[[nodiscard]] std::string_view name_of(OptimizerImpl impl);  // "fused", "foreach"

// Who runs the model. Products are the same. kEngine fuses what is between them (norms, rotary
// embeddings, gates). Of the engine itself this is true for fp32 on a CPU only: kEngineOnCpu fuses
// where the parameters are fp32, kEngineOnGpu nowhere. kTransformers and kTorchtitan run the
// operators of that PyTorch code. kTorchtitan (0.2.2) has some families only, and its norms are one
// kernel; in kTorchtitan2024, of December 2024, they are several, because PyTorch had no kernel for
// them before version 2.9 (pull request 153666). kTorchtitan03 (0.3) has one product for queries,
// keys and values, and computes head and loss in parts. kSimpleFsdp runs the operators of
// kTorchtitan and kGraphTrainer those of kTorchtitan03, each as in [Note: Traced steps].
enum class Program : uint8_t {
  kEngine,
  kEngineOnCpu,
  kEngineOnGpu,
  kTransformers,
  kTorchtitan,
  kTorchtitan2024,
  kTorchtitan03,
  kSimpleFsdp,
  kGraphTrainer
};
inline constexpr int kProgramCount = 9;
// "engine", "engine_on_cpu", "engine_on_gpu", "transformers", "torchtitan", "torchtitan_2024",
// "torchtitan_0_3", "simple_fsdp", "graph_trainer"
[[nodiscard]] std::string_view name_of(Program program);
[[nodiscard]] bool is_engine(Program program);
[[nodiscard]] bool is_torchtitan(Program program);

// [Note: Traced steps] torchtitan's SimpleFSDP (experiments/simple_fsdp) and GraphTrainer
// (experiments/graph_trainer) trace forward and backward into graphs that have FSDP's collectives
// in them, and call the graph's operators one after the other, as aot_eager does, unless inductor
// compiles it:
// - A block's parameters, and its experts, are gathered by one all-gather each, which begins a unit
//   early (transformer_block_bucketing). What is packed for a collective, and unpacked, is copied
//   where compute runs.
// - Gradients are converted and then packed, by two kernels. FSDP2 has one for both.
// - SimpleFSDP's operators are not in place: index_put copies its destination first.
// - No hook runs, so that the host spends no time on them. An operator takes it what an eager one
//   takes.
// - SimpleFSDP without checkpoints keeps what the min-cut partitioner leaves of a block: all but
//   the results of activation functions, which it computes again in backward.
// - With checkpoints, only what backward reads is computed again, where an eager checkpoint repeats
//   the whole block.
// - GraphTrainer keeps what eager checkpoints keep, but counts the router's product as one, and is
//   captured as a CUDA graph. The graph's gradients take the places of those before.
// - SimpleFSDP divides the gradients of divided experts by a factor, in a kernel of its own.
// Source  torchtitan at commit ad9f188 of November 2025 and 0e25651 and 756213e of June 2026
//         (experiments/graph_trainer: memory_policy.py, selective_activation_remat.py, trainer.py);
//         torch 2.11: _functorch/partitioners.py, _inductor/fx_passes/bucketing.py and
//         overlap_manual_scheduling.py.
[[nodiscard]] bool is_traced(Program program);
// Whose operators it runs: its own, or those of the program that it traces.
[[nodiscard]] Program operators_of(Program program);
// The software that the program runs under by default. Source: torchtitan 0.3.0, components/loss.py
// (num_chunks) and config/configs.py (disable_cuda_graphs).
[[nodiscard]] Software software_by_default(Program program);
// Whether it compiles its loss where it compiles blocks. Source: torchtitan, commit e8977b0 of
// December 2024, which turned that off for some months.
[[nodiscard]] bool compiles_loss(Program program);
// Whether the gradients of the shards stay allocated between steps, so that a CUDA graph finds them
// at the same place. Source: torchtitan 0.3.0, trainer.py (zero_grad).
[[nodiscard]] bool keeps_gradients(Program program, const Software& software);

// The settings of one optimizer step of a rank, other than the model and its plan. Shared by
// planning, training, calibration, simulation, search and the app.
struct StepSettings {
  int64_t batch = 1;  // samples per microbatch
  std::optional<int64_t> seq =
      std::nullopt;                   // tokens per sample; nullopt: the model takes no tokens
  int64_t accumulate = 1;             // microbatches per step
  bool sync_every_microbatch = true;  // false: only the last one reduces gradients
  Optimizer optimizer = Optimizer::kAdamW;
  OptimizerImpl optimizer_impl = OptimizerImpl::kFused;
  double momentum = 0.9;                      // SGD only
  std::optional<double> clip = std::nullopt;  // clip the norm of all gradients to this value
  Program program = Program::kEngine;         // a model.json's is always PyTorch's
  // Routing of experts: the share of the i-th most chosen one is proportional to i^-expert_skew.
  double expert_skew = 0;
  Software software = {};
  friend bool operator==(const StepSettings&, const StepSettings&) = default;

  [[nodiscard]] int64_t samples() const { return batch * accumulate; }
  // Numbers that the optimizer stores per parameter element: AdamW two, SGD with momentum one.
  [[nodiscard]] int64_t optimizer_states() const {
    return optimizer == Optimizer::kAdamW ? 2 : momentum > 0 ? 1 : 0;
  }
};

// Whether the allocator's segments are expandable: as the software says, or where the program sets
// PYTORCH_CUDA_ALLOC_CONF. Source: torchtitan, commit a5e57e4 of October 2024 (run_train.sh).
[[nodiscard]] bool expands_segments(const StepSettings& settings);

// Errors: InputError (`source`) for a batch, sequence or number of microbatches below 1,
// and for a skew below 0.
void require_valid(const StepSettings& settings, std::string_view source);

}  // namespace shardlens::plan
