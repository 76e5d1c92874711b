#pragma once

#include <string>

#include "core/schedule/reduce.h"

namespace shardlens::schedule {

// The rules that FSDP1 and FSDP2 have in common: which hooks are legal, the optimizer's event, and
// abort.
struct Dialect : Reductions {
  Dialect() = default;
  Dialect(const Dialect&) = delete;
  Dialect& operator=(const Dialect&) = delete;
  virtual ~Dialect() = default;

  // Adds the actions of a legal hook to `out`; `unit` is the local id of the event's unit.
  void on(const HookEvent& event, UnitId unit);

  [[nodiscard]] std::string check(const HookEvent& event) const;  // "" if the event is legal
  void begin_forward(UnitId root);
  // Later all-gathers wait for all earlier work of compute, or for the optimizer's event.
  void wait_for_compute();
  void optimizer_done();
  void abort(Grads grads);

 protected:
  // The actions of a dialect at each hook; a function is named like its hook.
  virtual void root_pre_forward(UnitId unit) { begin_forward(unit); }
  virtual void pre_forward(UnitId unit, bool recompute) = 0;
  virtual void post_forward(UnitId unit, const HookEvent& event) = 0;
  virtual void pre_backward(UnitId unit) = 0;
  virtual void post_backward(UnitId unit, Grads grads) = 0;
  virtual void backward_end() = 0;
  // Calls of the program: unshard(), its wait, and reshard().
  virtual void user_unshard(UnitId unit) = 0;
  virtual void wait_unshard(UnitId unit) = 0;
  virtual void user_reshard(UnitId unit) = 0;

 private:
  void record_compute();

  bool optimizer_event_ = false;     // recorded by kOptimizerDone; the next all-gather waits for it
  uint64_t frees_before_event_ = 0;  // frees that the event of record_compute() covers
};

}  // namespace shardlens::schedule
