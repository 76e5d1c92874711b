#pragma once

#include "core/schedule/dialect.h"

namespace shardlens::schedule {

// The dialect of FSDP2. Functions are named like those of PyTorch.
//
// Source   torch 2.11 _fully_shard/_fsdp_state.py, _fsdp_param_group.py; of torch 2.15 what
//          ScheduleOptions::finalization, reduces_unused and reduce_inputs set.
struct Fsdp2 final : Dialect {
 protected:
  void pre_forward(UnitId unit, bool recompute) override;
  void post_forward(UnitId unit, const HookEvent& event) override;
  void pre_backward(UnitId unit) override;
  void post_backward(UnitId unit, Grads grads) override;
  void backward_end() override;
  void user_unshard(UnitId unit) override;
  void wait_unshard(UnitId unit) override;
  void user_reshard(UnitId unit) override { reshard(unit); }

 private:
  void unshard(UnitId unit);
  void reshard(UnitId unit);
  void prefetch(UnitId target, Phase phase, Cause why);
  void backward_prefetch(UnitId unit);
  void finish_units();
};

}  // namespace shardlens::schedule
