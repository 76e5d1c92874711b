#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/plan/workload.h"

namespace shardlens::plan {

// Collects a forward as it would run, module by module, and derives backward from it: every forward
// operator brings its backward operators along, and finish_backward() plays them in reverse. What
// autograd does not compute because of frozen parameters is left out: their gradients, and all
// before the first operator with a parameter that is not.
class WorkloadBuilder {
 public:
  // `plan` must outlive the builder.
  WorkloadBuilder(const ResolvedPlan& plan, int64_t batch, int64_t seq);

  // A module's forward begins or ends; raises the hooks of its unit. Nested like the calls.
  void enter(const std::string& module);
  void leave();

  // Operators of the module entered last. Sizes in elements; rows = batch · seq.
  // y[rows, out] = x[rows, in] · W (+ bias). `keeps_input`: x is not kept by an operator before.
  // `sums_input_grad`: x has another consumer whose gradient arrived before, so that both are
  // added.
  struct Linear {
    int64_t in = 0, out = 0;
    bool bias = false, transposed = true;  // transposed: weight is [out, in] (torch.nn.Linear),
                                           // otherwise [in, out] (Conv1D)
    bool keeps_input = true, sums_input_grad = false;
  };
  void linear(const Linear& shape);
  // As a module of its own.
  void linear(const std::string& module, const Linear& shape);
  void embedding(int64_t features);
  // `statistics`: fp32 numbers kept per row; `weights`: parameters of `features` each.
  // `sums_input_grad`: as for Linear (a residual).
  struct Norm {
    int64_t features = 0, statistics = 0, weights = 0;
    bool sums_input_grad = true;
  };
  void norm(std::string_view name, std::string_view backward, const Norm& shape);
  struct Attention {
    int64_t heads = 0, kv_heads = 0, head_dim = 0;
  };
  void attention(const Attention& shape);
  // Element-wise: per row so many elements read, written and kept; `backward` "" for an operator
  // that passes its gradient on.
  struct Elementwise {
    int64_t read = 0, written = 0, saved = 0, flops = 0;
    int64_t backward_read = 0, backward_written = 0, backward_flops = 0;
  };
  void elementwise(std::string_view name, std::string_view backward, const Elementwise& shape);
  void add(int64_t features);  // of a residual
  // "relu", "silu", any kind of "gelu".
  void activation(std::string_view name, int64_t features);
  void silu_multiply(int64_t features);  // SiLU of one input times another, in one operator
  void rotary(int64_t features);
  // Mean cross entropy of [rows, vocabulary], in fp32 as the models compute it.
  void loss(int64_t vocabulary);

  void finish_backward();
  void optimizer(const StepSettings& settings);
  [[nodiscard]] Workload take() { return std::move(out_); }

 private:
  [[nodiscard]] UnitId current_unit() const { return open_.back().unit; }
  [[nodiscard]] Operator make(OperatorKind kind, std::string_view name) const;
  // `input`: bytes of what the operator reads beside parameters. `trains`: it has parameters that
  // require grad.
  void forward(Operator op, Bytes input, std::vector<Operator> backward, bool trains = false);
  // Of the module entered last: "weight" or "bias".
  [[nodiscard]] bool is_frozen(std::string_view parameter) const;
  [[nodiscard]] Operator gradient_sum(int64_t features) const;
  void append(Operator op);
  void hook(Hook hook, UnitId unit, bool recompute = false);

  struct Open {
    std::string module;
    UnitId unit;
    bool ends_unit;  // its forward is the last of its unit's modules
    bool begins_checkpoint = false;
  };
  // A module whose forward runs again in backward, by items of the forward order.
  struct Checkpoint {
    size_t begin = 0;      // its first hook or operator
    size_t last_kept = 0;  // its last operator that keeps something for backward
    bool keeps = false;    // there is one
    bool empty = true;     // no operator yet
  };
  void begin_checkpoint();
  void grads_ready(const HookEvent& pre_forward);
  void recompute(const Checkpoint& checkpoint, const std::vector<WorkloadItem>& forward_order);

  const ResolvedPlan& plan_;
  int64_t rows_;
  std::unordered_map<std::string, UnitId> unit_of_module_;  // modules that a unit names
  std::vector<size_t> entered_;  // of each unit: its modules that began so far
  std::vector<Open> open_;
  std::vector<std::vector<Operator>> backward_;  // of each forward operator
  std::unordered_set<std::string> checkpointed_;
  std::vector<Checkpoint> checkpoints_;
  bool in_checkpoint_ = false;
  std::unordered_set<std::string> frozen_;  // parameters, by every name
  bool requires_grad_ = true;               // what the last operator returned
  bool unkept_input_ = false;  // of a product whose weight is frozen; another may need it
  std::vector<Bytes> kept_;    // of each forward operator: `saved` if there were no checkpoints
  Workload out_;
};

// The optimizer's operator over every rank's shards, fused. Its unit is the root.
[[nodiscard]] Operator optimizer_operator(const ResolvedPlan& plan, const StepSettings& settings);

// How many tokens a sample has. Errors: InputError for settings that are not valid, or without seq.
[[nodiscard]] int64_t tokens_of(const StepSettings& settings);

}  // namespace shardlens::plan
