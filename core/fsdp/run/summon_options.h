#pragma once

namespace shardlens::fsdp {

struct SummonOptions {          // as of summon_full_params
  bool recurse = true;          // also the units below the module
  bool writeback = true;        // keep changes of this rank's elements when the scope ends
  bool rank0_only = false;      // the other ranks keep their slices; without writeback
  bool offload_to_cpu = false;  // the whole parameters are on the host
  bool with_grads = false;      // the gradients are whole too; not with offload_to_cpu
};

}  // namespace shardlens::fsdp
