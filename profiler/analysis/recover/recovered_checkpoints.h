#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// [Note: Recomputed operators] Autograd numbers the operators that it will differentiate
// (sequence_of()), but not those that its nodes call in backward. So a numbered operator within
// backward, outside of FSDP's hooks, is part of a forward that an activation checkpoint runs again.
// It may begin within the backward of an inner unit, so what is more than that unit's forward
// belongs to the unit around it.

// Which units' forwards backward ran again.
struct RecoveredCheckpoints {
  // Modules in a checkpoint_wrapper, which the names of units at or in them have, in order of time.
  // The units and parts below are others.
  std::vector<std::string> modules;
  // Indices into FsdpLog::units, ascending, without units inside another one of the list.
  std::vector<uint32_t> units;
  // Units of which backward ran less than half of the forward again: something smaller than the
  // unit is checkpointed, and the trace does not name it.
  std::vector<uint32_t> parts;
  // Whether the operators of the pass have numbers. If not (a trace without their arguments), only
  // the units are found whose hooks show a forward within backward: a module around them may be
  // the one that is checkpointed.
  bool numbered = false;
};

// Finds the checkpoints of one pass.
[[nodiscard]] RecoveredCheckpoints recover_checkpoints(const trace::Trace& trace,
                                                       const FsdpLog& log,
                                                       const Sections& sections,
                                                       uint32_t pass);

}  // namespace shardlens::analysis
