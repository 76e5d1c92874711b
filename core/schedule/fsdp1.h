#pragma once

#include <vector>

#include "core/schedule/dialect.h"

namespace shardlens::schedule {

// The dialect of FSDP1. Functions are named like those of PyTorch.
//
// Source   torch 2.11 fsdp/_runtime_utils.py, _limiter_utils.py, _exec_order_utils.py,
//          _flat_param.py.
struct Fsdp1 final : Dialect {
  explicit Fsdp1(size_t count) { forward_order_.reserve(count); }

 protected:
  void root_pre_forward(UnitId unit) override;
  void pre_forward(UnitId unit, bool recompute) override;
  void post_forward(UnitId unit, const HookEvent& event) override;
  void pre_backward(UnitId unit) override;
  void post_backward(UnitId unit, Grads grads) override;
  void backward_end() override;
  void user_unshard(UnitId unit) override;
  void wait_unshard(UnitId unit) override;
  void user_reshard(UnitId unit) override;

 private:
  [[nodiscard]] bool sync() const { return units.front().sync; }  // not inside no_sync
  void unshard(UnitId unit, bool forward);
  void reshard(UnitId unit, bool give_back, bool forward, bool grad_mode);
  [[nodiscard]] bool frees_in_backward(UnitId unit) const;
  void forward_prefetch(UnitId unit);
  void backward_prefetch(UnitId unit);
  void prefetch(UnitId target, bool forward, Cause why);
  void end_forward(UnitId unit, const HookEvent& event);
  void drop_prefetched();

  bool first_iteration_ = true;
  std::vector<UnitId> forward_order_;  // pre-forward order of the first iteration
};

}  // namespace shardlens::schedule
