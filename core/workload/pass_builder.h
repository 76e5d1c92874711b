#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/workload/unfused.h"
#include "core/workload/workload.h"

namespace shardlens::plan {

// Collects the operators of a forward, module by module, and derives backward from it: every
// forward operator comes with its backward operators, and finish_backward() appends them in reverse
// order. Gradients that autograd does not compute because of frozen parameters are omitted: those
// of the frozen parameters, and all before the first operator that has a parameter that is not
// frozen.
//
// WorkloadBuilder knows what the operators of models are, and CompiledBuilder those of compiled
// blocks; both add them through this class.
class PassBuilder {
 public:
  // `plan` must outlive the builder.
  PassBuilder(const ResolvedPlan& plan, int64_t batch, int64_t seq);

  // The forward of a module begins or ends. Appends the hooks of its unit. Calls nest like the
  // modules.
  void enter(const std::string& module);
  void leave();

  // Operators are those of the innermost entered module. Sizes are in elements;
  // rows = batch · seq, or what set_rows() was given.
  void set_rows(int64_t rows) { rows_ = rows; }
  // Who runs the model, and how its experts are chosen.
  void set_settings(const StepSettings& settings) {
    out_.program = settings.program;
    program_ = operators_of(settings.program);
    out_.software = settings.software;
    expert_skew_ = settings.expert_skew;
    accumulates_ = settings.accumulate > 1 && !settings.sync_every_microbatch;
  }
  [[nodiscard]] bool is_engine() const { return plan::is_engine(program_); }
  // Whether norms, rotary embeddings, gates and the loss of the current module are one operator.
  [[nodiscard]] bool fuses() const;
  [[nodiscard]] bool compiles() const;  // whether the current module is a part of what is compiled
  // Whether the min-cut partitioner chooses what is kept of the current module for backward.
  [[nodiscard]] bool cuts() const {
    return out_.program == Program::kSimpleFsdp && checkpointed_.empty();
  }
  [[nodiscard]] Program program() const { return program_; }  // whose operators run
  [[nodiscard]] int64_t batch() const { return out_.batch; }
  [[nodiscard]] UnitId unit() const { return open_.back().unit; }
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

  // Nothing that backward reads depends on the results of the operators from `first` on: they are
  // only terms of what the block returns.
  void unread_from(size_t first);
  [[nodiscard]] size_t operators() const { return out_.operators.size(); }

  void finish_backward();
  void optimizer(const StepSettings& settings);
  [[nodiscard]] Workload take() { return std::move(out_); }

 protected:
  struct Open {
    std::string module;
    UnitId unit = 0;
    bool ends_unit = false;  // it is the last of its unit's modules
    bool begins_checkpoint = false;
    bool is_block = false;
    bool in_tail = false;  // of the blocks
  };

  [[nodiscard]] Operator make(OperatorKind kind, std::string_view name) const;
  // `input`: bytes that the operator reads, without parameters. `trains`: it has parameters that
  // require grad.
  void forward(Operator op, Bytes input, std::vector<Operator> backward, bool trains = false);
  // A collective of the program over the plan's group. `written`: bytes of its result.
  [[nodiscard]] Communication collective(
      CollectiveKind kind, Purpose purpose, mesh::GroupId group, Bytes bytes, Bytes written) const;
  // Issues it here. `input`: bytes that it takes. `backward` differentiates it.
  void communicate(Communication each, Bytes input, std::optional<Communication> backward = {});
  // Whether the checkpoint around what follows keeps the results of all-to-alls: torchtitan's
  // selective ones do. Source  _op_sac_save_list in models/llama4/infra/parallelize.py of
  // torchtitan 0.2.2, _get_default_save_ops() in distributed/activation_checkpoint.py of 0.3.
  [[nodiscard]] bool keeps_exchanges() const;
  // The last communication does not run again in backward. `result`: bytes of its result that the
  // checkpoint keeps, until backward has taken them; 0: what the host has read.
  void keep_exchange(uint32_t communication, Bytes result);
  struct Step {  // an operator, or communication
    Operator op;
    std::optional<Communication> communication = std::nullopt;
  };
  // Takes back what was added to forward from item `first` of the order on. Returns it in order,
  // and then the operators that differentiate it.
  [[nodiscard]] std::vector<Step> take_back(size_t first);
  // Issues it in backward, before operator `at` of those that differentiate the last operator.
  // `waited_at`: the one of them before which compute waits for it; nullopt: what follows.
  void communicate_in_backward(Communication each,
                               size_t at,
                               std::optional<size_t> waited_at = std::nullopt);
  // From here on the program calls the last module of the unit by itself, until the end of the
  // forward, and differentiates that first: see [Note: Gradients of the last module] in
  // core/schedule/schedule.h.
  void call_last_module_of(UnitId unit);
  // The gradients of the innermost module's parameters are sums over the ranks of the plan's axis
  // `tensor`, each of which has a term.
  void sum_over_tensor();
  // `parameter`: "weight" or "bias" of the innermost entered module.
  [[nodiscard]] bool is_frozen(std::string_view parameter) const;
  [[nodiscard]] Operator gradient_sum(int64_t features) const;

  const ResolvedPlan& plan_;
  // By module with an adapter: the adapter's rank.
  std::unordered_map<std::string, int64_t> adapter_ranks_;
  // By module: the dimension along which the plan's axis `tensor` divides its weight.
  std::unordered_map<std::string, int64_t> divided_dimensions_;
  int64_t rows_;
  std::vector<Open> open_;
  int open_blocks_ = 0;                          // entered modules that are blocks
  int open_tail_ = 0;                            // of these, Software::matmul_tail
  std::vector<std::vector<Operator>> backward_;  // by forward operator
  std::vector<Bytes> kept_;     // by forward operator: its `saved` if there were no checkpoints
  std::vector<Bytes> results_;  // by forward operator: of its result, kept by its checkpoint
  bool in_checkpoint_ = false;
  bool requires_grad_ = true;    // whether the last operator's result requires grad
  bool routes_ = false;          // the product that is being added is a router's
  bool ends_with_loss_ = false;  // only the loss may follow, which computes the last product
  Program program_ = Program::kEngine;
  double expert_skew_ = 0;
  bool accumulates_ = false;  // gradients, before they are reduced
  Workload out_;

 private:
  // A module whose forward runs again in backward; indices into the forward order.
  struct Checkpoint {
    size_t begin = 0;      // its first hook or operator
    size_t end = 0;        // after its last one
    size_t last_kept = 0;  // its last operator that saves a tensor for backward
    bool keeps = false;    // whether last_kept is set
    bool empty = true;     // no operator yet
    Bytes input = 0;       // what it saves, until an operator has it
    int64_t products = 0;  // so far
  };
  struct InBackward {  // communication between operators that differentiate one of forward
    size_t at = 0;     // before this one of them
    std::optional<size_t> waited_at;
    Communication communication;
  };
  void append(Operator op);
  void append(Communication communication);
  void differentiate(uint32_t op);
  void hook(Hook hook, UnitId unit, bool recompute = false);
  void hook_of_groups(Hook each, UnitId unit);  // for each group of the unit, in order
  void begin_checkpoint();
  // Bytes of the operator's result that its checkpoint keeps.
  [[nodiscard]] Bytes result_to_keep(const Operator& op, Checkpoint& checkpoint) const;
  void drop_last_result(const Checkpoint& checkpoint);
  void grads_ready(const HookEvent& pre_forward);
  void sum_partial_gradients(UnitId unit);
  // The group of the unit's parameters that those of a module in `unit` are in.
  [[nodiscard]] UnitId group_of(const std::string& module, UnitId unit) const;
  void recompute(const Checkpoint& checkpoint, const std::vector<WorkloadItem>& forward_order);

  std::unordered_map<std::string, UnitId> unit_of_module_;  // only the modules listed in a unit
  std::unordered_map<std::string, UnitId> second_group_of_module_;  // whose parameters are in one
  std::vector<size_t> entered_;  // by unit: number of its modules entered so far
  std::unordered_map<std::string, int64_t> blocks_;  // their positions
  std::unordered_set<std::string> checkpointed_;
  std::vector<Checkpoint> checkpoints_;
  std::unordered_set<std::string> frozen_;  // all names of the frozen parameters
  // By communication of forward; and by operator of forward.
  std::vector<std::optional<Communication>> backward_of_communication_;
  std::unordered_map<uint32_t, std::vector<InBackward>> in_backward_;
  std::unordered_set<uint32_t> unread_;          // operators of unread_from()
  std::unordered_set<uint32_t> kept_exchanges_;  // communication of forward that is not repeated
  std::unordered_set<std::string> partial_;      // modules with sum_over_tensor()
  UnitId last_module_first_ = kNoUnit;           // the unit of call_last_module_of()
};

}  // namespace shardlens::plan
