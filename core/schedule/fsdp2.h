#pragma once

#include "core/schedule/dialect.h"

namespace shardlens::schedule {

// The dialect of FSDP2. Functions are named like those of PyTorch.
//
// Source   torch 2.11 _fully_shard/_fsdp_state.py, _fsdp_param_group.py.
struct Fsdp2 final : Dialect {
  void on(const HookEvent& event, UnitId unit) override;

 private:
  void unshard(UnitId unit);
  void wait_unshard(UnitId unit);
  void reshard(UnitId unit);
  void prefetch(UnitId target, Phase phase, Cause why);
  void backward_prefetch(UnitId unit);
  void pre_forward(UnitId unit, bool recompute);
  void post_forward(UnitId unit, bool recompute);
  void pre_backward(UnitId unit);
  void post_backward(UnitId unit, Grads grads);
  void backward_end();
};

}  // namespace shardlens::schedule
