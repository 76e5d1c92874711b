#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardlens::plan {

enum class Optimizer : uint8_t { kAdamW, kSgd };
[[nodiscard]] std::string_view name_of(Optimizer optimizer);  // "adamw", "sgd"

// What one optimizer step of a rank is, beside the model and its plan: the description of a step
// that planning, training, calibrating, simulating, searching and the app share.
struct StepSettings {
  int64_t batch = 1;  // samples of a microbatch
  std::optional<int64_t> seq =
      std::nullopt;                   // tokens of a sample; nullopt: the model takes no tokens
  int64_t accumulate = 1;             // microbatches
  bool sync_every_microbatch = true;  // false: only the last one reduces gradients
  Optimizer optimizer = Optimizer::kAdamW;
  double momentum = 0.9;                      // of SGD
  std::optional<double> clip = std::nullopt;  // to this norm of all gradients
  friend bool operator==(const StepSettings&, const StepSettings&) = default;

  [[nodiscard]] int64_t samples() const { return batch * accumulate; }
  // Numbers that the optimizer keeps for each parameter: AdamW two moments, SGD one with momentum.
  [[nodiscard]] int64_t optimizer_states() const {
    return optimizer == Optimizer::kAdamW ? 2 : momentum > 0 ? 1 : 0;
  }
};

// Errors: InputError (`source`) for a batch, sequence or number of microbatches below 1.
void require_valid(const StepSettings& settings, std::string_view source);

}  // namespace shardlens::plan
