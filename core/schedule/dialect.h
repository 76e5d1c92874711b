#pragma once

#include <string>

#include "core/schedule/reduce.h"

namespace shardlens::schedule {

// What FSDP1 and FSDP2 have in common: which hooks are legal, the optimizer's event, and abort.
struct Dialect : Reductions {
  Dialect() = default;
  Dialect(const Dialect&) = delete;
  Dialect& operator=(const Dialect&) = delete;
  virtual ~Dialect() = default;

  // Adds the actions of a legal hook to `out`; `unit` is the local id of the event's unit.
  virtual void on(const HookEvent& event, UnitId unit) = 0;

  [[nodiscard]] std::string check(const HookEvent& event) const;  // "" if the event is legal
  void begin_forward(UnitId root);
  // Later all-gathers wait for all earlier work of compute, or for the optimizer's event.
  void wait_for_compute();
  void optimizer_done();
  void abort(Grads grads);

 private:
  void record_compute();

  bool optimizer_event_ = false;     // recorded by kOptimizerDone; the next all-gather waits for it
  uint64_t frees_before_event_ = 0;  // frees that the event of record_compute() covers
};

}  // namespace shardlens::schedule
