#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/plan/unit_sizes.h"
#include "core/workload/unfused.h"
#include "core/workload/workload.h"

namespace shardlens::plan {

// Collects the operators of a forward, module by module, and derives backward from it: every
// forward operator comes with its backward operators, and finish_backward() appends them in reverse
// order. Gradients that autograd does not compute because of frozen parameters are omitted: those
// of the frozen parameters, and all before the first operator that has a parameter that is not
// frozen.
class WorkloadBuilder {
 public:
  // `plan` must outlive the builder.
  WorkloadBuilder(const ResolvedPlan& plan, int64_t batch, int64_t seq);

  // The forward of a module begins or ends. Appends the hooks of its unit. Calls nest like the
  // modules.
  void enter(const std::string& module);
  void leave();

  // The following append operators of the innermost entered module. Sizes are in elements;
  // rows = batch · seq, or what set_rows() was given.
  void set_rows(int64_t rows) { rows_ = rows; }
  // Who runs the model, and how its experts are chosen.
  void set_settings(const StepSettings& settings) {
    program_ = out_.program = settings.program;
    out_.software = settings.software;
    expert_skew_ = settings.expert_skew;
  }
  [[nodiscard]] bool is_engine() const { return plan::is_engine(program_); }
  // Whether norms, rotary embeddings, gates and the loss of the current module are one operator.
  [[nodiscard]] bool fuses() const;
  [[nodiscard]] bool compiles() const;  // whether the current module is a part of what is compiled
  [[nodiscard]] Program program() const { return program_; }
  [[nodiscard]] int64_t batch() const { return out_.batch; }
  // y[rows, out] = x[rows, in] · W (+ bias). `keeps_input`: false if an earlier operator already
  // saves x. `sums_input_grad`: x has another consumer whose gradient is computed before, so that
  // the two are added.
  struct Linear {
    int64_t in = 0, out = 0;
    bool bias = false, transposed = true;  // transposed: weight is [out, in] (torch.nn.Linear),
                                           // otherwise [in, out] (Conv1D)
    bool keeps_input = true, sums_input_grad = false;
    bool input_grad = true;  // false: x is the model's input
    bool routes = false;     // of experts: never among the products that a checkpoint keeps
  };
  void linear(const Linear& shape);
  // Same, for the linear layer `module`: enters and leaves it.
  void linear(const std::string& module, const Linear& shape);
  // The products of a layer's experts with the parameter `weight` [experts, in, out] of the
  // innermost entered module, in one operator. x has `per_token` rows for each row of the step,
  // sorted by expert; the experts are chosen as the settings say.
  struct Grouped {
    int64_t experts = 0, per_token = 0, in = 0, out = 0;
    std::string_view weight;
    bool bias = false;  // [experts, out], added by an operator of its own
    bool keeps_input = true, sums_input_grad = false;  // as for Linear
  };
  void grouped_linear(const Grouped& shape);
  void embedding(int64_t features);
  // `statistics`: fp32 numbers saved per row; `weights`: number of parameters with `features` each.
  // `sums_input_grad`: as for Linear (a residual). `groups`: of `features` each in a row, which are
  // normalised separately (heads).
  struct Norm {
    int64_t features = 0, statistics = 0, weights = 0;
    bool sums_input_grad = true;
    int64_t groups = 1;
    bool offset = false;  // weights are 1 + w, in fp32
    bool wide = false;    // weights multiply in fp32
  };
  void norm(std::string_view name, std::string_view backward, const Norm& shape);
  // `value_dim`: head size of the values, 0: head_dim. `window`: keys that a token attends to, 0:
  // all.
  struct Attention {
    int64_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0, window = 0;
    bool causal = true;
    Scores eager = Scores::kFused;  // how transformers runs it
    bool one_product = false;  // queries, keys and values are parts of the result of one product
    // Of each head, in the tensor that values are a view of; PyTorch keeps it all.
    int64_t beside_values = 0;
  };
  void attention(const Attention& given);
  // An element-wise operator. Fields: elements per row that are read, written and saved.
  // `backward`: "" for an operator whose backward only passes the gradient on.
  struct Elementwise {
    int64_t read = 0, written = 0, saved = 0, flops = 0;
    int64_t backward_read = 0, backward_written = 0, backward_flops = 0;
  };
  void elementwise(std::string_view name, std::string_view backward, const Elementwise& shape);
  void add(int64_t features);  // a residual connection
  // "relu", "silu", any kind of "gelu".
  void activation(std::string_view name, int64_t features);
  void silu_multiply(int64_t features);  // SiLU of one input times another, in one operator
  // `complex`: torchtitan multiplies fp32 pairs as complex numbers.
  void rotary(int64_t features, bool complex = false);
  // An operator and those that differentiate it, as they were recorded; their units are set.
  void record(Operator op, std::vector<Operator> backward);
  // The kernels of a part that the engine runs as one operator. `features` in each of `groups`.
  // `kind`: of the last one, which saves. `trains`: it has parameters that require grad.
  void unfused(const Unfused& part,
               OperatorKind kind,
               int64_t features,
               int64_t groups = 1,
               bool sums_input_grad = false,
               bool trains = false);
  [[nodiscard]] UnitId unit() const { return current_unit(); }
  // Mean cross entropy of [rows, vocabulary], in fp32; with loss_chunks of head()'s product in
  // parts.
  void loss(int64_t vocabulary);
  // A linear layer that makes the logits, and which loss() may compute in parts.
  void head(const std::string& module, const Linear& shape);

  void finish_backward();
  void optimizer(const StepSettings& settings);
  [[nodiscard]] Workload take() { return std::move(out_); }

 private:
  [[nodiscard]] UnitId current_unit() const { return open_.back().unit; }
  [[nodiscard]] Operator make(OperatorKind kind, std::string_view name) const;
  void masked_attention(Attention& shape);
  void eager_attention(const Attention& shape);
  void capped_scratch(const Attention& shape, Operator& op, Operator& backward) const;
  // batch times [m,k]·[k,n] of two tensors that backward differentiates. `kept`: bytes to save.
  void batched_product(int64_t batch, int64_t m, int64_t n, int64_t k, Bytes kept);
  void compiled_norm(std::string_view name, const Norm& shape);
  void compiled_head_norm(const Norm& shape);
  void compiled_rotary(int64_t features);
  void compiled_add(int64_t features);
  void compiled_loss(int64_t vocabulary);
  void whole_loss(int64_t vocabulary);
  void cast_products(const Linear& shape, Operator& op, std::vector<Operator>& backward);
  void compiled_linear(const Linear& shape, std::vector<Operator>& backward);
  void compiled_result(Bytes bytes);
  void store_sum();
  void close_compiled_block();
  // `input`: bytes that the operator reads, without parameters. `trains`: it has parameters that
  // require grad.
  void forward(Operator op, Bytes input, std::vector<Operator> backward, bool trains = false);
  // `parameter`: "weight" or "bias" of the innermost entered module.
  [[nodiscard]] bool is_frozen(std::string_view parameter) const;
  [[nodiscard]] const Parameter* tied_table() const;
  [[nodiscard]] Operator gradient_sum(int64_t features) const;
  void append(Operator op);
  void hook(Hook hook, UnitId unit, bool recompute = false);
  void hook_of_groups(Hook each, UnitId unit);  // for each group of the unit, in order

  struct Open {
    std::string module;
    UnitId unit;
    bool ends_unit;  // it is the last of its unit's modules
    bool begins_checkpoint = false;
    bool is_block = false;
  };
  // [Note: Compiled values] In what torch.compile compiles, a sum of tensors is computed where it
  // is read, and not stored, as long as it has few terms. So a value is the list of the tensors
  // whose sum it is; empty: not known, a tensor that was made outside.
  using Value = std::vector<uint32_t>;  // indices into Compiled::tensors
  struct CompiledTensor {
    Bytes bytes = 0;
    bool saved = false;  // for backward
  };
  struct CompiledNorm {  // of the rows of the residual
    uint32_t op = 0;     // its forward operator
    Value inputs;
    int32_t consumers = 1;  // products that read its result
    Bytes values = 0, kept = 0, parameters = 0;
    int64_t columns = 0, weights = 0;
    bool trains = false, residual = false;
  };
  struct Compiled {
    std::vector<CompiledTensor> tensors;
    Value residual, current;            // `current`: the result of the last operator
    std::vector<CompiledNorm> norms;    // of the block
    bool of_norm = false;               // products read the last norm's result
    std::optional<uint32_t> head_norm;  // the last operator, if it is a norm of heads
  };
  [[nodiscard]] Value& known(Value& value, int64_t features);
  [[nodiscard]] Bytes bytes_of(const Value& value) const;
  [[nodiscard]] bool mixes_orders(int64_t rows, int64_t columns) const;
  // A module whose forward runs again in backward; indices into the forward order.
  struct Checkpoint {
    size_t begin = 0;      // its first hook or operator
    size_t end = 0;        // behind its last one
    size_t last_kept = 0;  // its last operator that saves a tensor for backward
    bool keeps = false;    // whether last_kept is set
    bool empty = true;     // no operator yet
    Bytes input = 0;       // what it saves, until an operator has it
    int64_t products = 0;  // so far
  };
  void begin_block();
  void begin_checkpoint();
  // Bytes of the operator's result that its checkpoint keeps.
  [[nodiscard]] Bytes result_to_keep(const Operator& op, Checkpoint& checkpoint) const;
  void grads_ready(const HookEvent& pre_forward);
  void recompute(const Checkpoint& checkpoint, const std::vector<WorkloadItem>& forward_order);

  const ResolvedPlan& plan_;
  int64_t rows_;
  std::unordered_map<std::string, UnitId> unit_of_module_;  // only the modules listed in a unit
  std::vector<size_t> entered_;  // by unit: number of its modules entered so far
  std::vector<Open> open_;
  std::vector<std::vector<Operator>> backward_;  // by forward operator
  std::unordered_set<std::string> checkpointed_;
  std::vector<Checkpoint> checkpoints_;
  bool in_checkpoint_ = false;
  std::unordered_set<std::string> frozen_;  // all names of the frozen parameters
  bool requires_grad_ = true;               // whether the last operator's result requires grad
  bool routes_ = false;                     // the product that is being added is a router's
  bool unkept_input_ = false;  // the last GEMM did not save x (frozen weight); the next one may
  Program program_ = Program::kEngine;
  std::unordered_set<std::string> blocks_;
  int open_blocks_ = 0;  // entered modules that are blocks
  Compiled compiled_;
  struct Head {  // a product that loss() computes
    std::string module;
    UnitId unit = 0;
    Linear shape;
  };
  std::optional<Head> head_;
  double expert_skew_ = 0;
  std::vector<Bytes> kept_;     // by forward operator: its `saved` if there were no checkpoints
  std::vector<Bytes> results_;  // by forward operator: of its result, kept by its checkpoint
  Workload out_;
};

// The optimizer's operators over all shards of a rank. Their unit is the root. `saved` of one with
// foreach: tensors that it makes, which live until the last operator.
[[nodiscard]] std::vector<Operator> optimizer_operators(const ResolvedPlan& plan,
                                                        const StepSettings& settings);
// The operators of the units with optimizer_in_backward, which optimizer_operators() leaves out:
// what the action kStep of Operator::unit runs. `sizes`: unit_sizes(plan).
[[nodiscard]] std::vector<Operator> operators_in_backward(const ResolvedPlan& plan,
                                                          std::span<const UnitSize> sizes,
                                                          const StepSettings& settings);

// Number of tokens per sample. Errors: InputError if the settings are not valid or have no seq.
[[nodiscard]] int64_t tokens_of(const StepSettings& settings);

}  // namespace shardlens::plan
