#pragma once

#include "core/schedule/schedule_state.h"

namespace shardlens::schedule {

// Parameters: all-gathers, copy-outs, and when their buffers are freed.
struct Gathers : ScheduleState {
  // Whether the unit's parameters are gathered, or copied as if they were.
  [[nodiscard]] bool sharded(const UnitData& unit) const { return is_sharded(unit.spec, options); }
  [[nodiscard]] static bool copied(const UnitData& unit) { return is_copied(unit.spec); }
  [[nodiscard]] static bool copies_in(const UnitData& unit) {
    return unit.spec.copy_in || unit.spec.cpu_offload;
  }
  [[nodiscard]] bool per_parameter(const UnitData& unit) const {
    return unit.spec.copy_out && sharded(unit);
  }
  // Allocates, copies in and issues the all-gather; the unit is then pending.
  void issue_gather(UnitId unit);
  void limit_gathers(UnitId unit);
  // Compute waits for the pending all-gather. With copy-out, the gathered buffer is split and then
  // freed or, if `keep`, kept in the comm state's slot.
  void wait_gather(UnitId unit, bool keep);
  void flush_gather_slot();
  void use_full(UnitId unit);
  void use_shard(UnitId unit);
  void free_unsharded(UnitId unit);
  // Waits for an all-gather that was not used, and frees its buffer.
  void drop_pending(UnitId unit);
};

}  // namespace shardlens::schedule
