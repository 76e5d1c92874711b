#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/schedule/ledger.h"
#include "core/schedule/planned/autograd_queue.h"
#include "core/schedule/schedule.h"
#include "tests/core/schedule/orders_case.h"

namespace shardlens::schedule::test {

// How gradients that no autograd hook announces reach the schedule.
enum class FinalCallback : uint8_t {
  kPerUnit,  // a kGradsReady for each unit in the order of modules(), as FSDP2's final callback
             // calls post_backward
  kEngine,   // kGradsReady only where there are gradients, from their accumulators; kBackwardEnd
             // finishes the rest
};

// Runs a recorded configuration as PyTorch would, but with our schedule: a small model of autograd
// decides which hook runs when, and the schedule's actions are written in the codes of orders.json.
// A Ledger checks every action.
class TorchProgram {
 public:
  TorchProgram(const OrdersCase& test, plan::Layout layout, FinalCallback final_callback);

  // Runs one entry of `its`; returns its events and leaves its counts in counts().
  std::string run(const std::string& label);
  void abort();
  [[nodiscard]] const std::array<int64_t, 4>& counts() const { return counts_; }
  [[nodiscard]] Schedule& schedule() { return schedule_; }
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }
  [[nodiscard]] const std::vector<Action>& actions() const {
    return actions_;
  }  // of the last entry
  // Messages of the schedule or the ledger; empty: nothing was refused.
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  struct Value {
    AutogradQueue::Node node = AutogradQueue::kNone;  // kNone: requires no gradient
  };
  enum class Happening : uint8_t {
    kPreBackward,
    kPostBackward,
    kReshardOnly,
    kRecompute,
    kGradient
  };

  // Forward
  Value enter(UnitId unit, Value input);
  Value apply(UnitId unit, Value input, bool uses_parameters);
  void leave(UnitId unit, const std::vector<Value>& outputs);
  Value block(UnitId unit, Value input);
  std::vector<Value> forward(Value input);
  std::vector<Value> forward_groups(Value input);
  std::vector<Value> forward_branches(Value input);

  // Backward
  void backward(AutogradQueue::Node loss);
  void happens(Happening what, UnitId unit);
  void final_callback();
  void post_backward(UnitId unit);

  AutogradQueue::Tag tag(Happening what, UnitId unit);
  AutogradQueue::Node parameters(UnitId unit);
  void raise(Hook hook, UnitId unit, Grads grads = Grads::kAll, bool recompute = false);
  void render(const Action& action, const Action* before);
  void write(char code, UnitId unit);
  void set_flags(const std::string& label);
  void set(Setting::Kind kind, bool flag, UnitId unit = 0, Recurse recurse = Recurse::kYes);
  [[nodiscard]] bool has_parameters(UnitId unit) const { return !units_[unit].shapes.empty(); }

  OrdersCase test_;
  FinalCallback final_callback_;
  std::vector<OrdersUnit> units_;
  std::vector<UnitSpec> specs_;
  Schedule schedule_;
  Ledger ledger_;
  AutogradQueue graph_;
  std::vector<std::pair<Happening, UnitId>> tags_;
  std::vector<AutogradQueue::Node> leaves_;  // per unit: accumulator of its parameters
  std::vector<AutogradQueue::Node> views_;   // per unit: node that made its views (fsdp1)
  std::vector<bool> gradient_, in_pre_backward_, after_backward_, ran_pre_backward_, reshard_only_,
      full_;
  bool grad_mode_ = true, in_backward_ = false, callback_queued_ = false;
  UnitId callback_unit_ = 0;
  std::string events_, failure_;
  std::array<int64_t, 4> counts_{};
  std::vector<Action> actions_;
};

}  // namespace shardlens::schedule::test
