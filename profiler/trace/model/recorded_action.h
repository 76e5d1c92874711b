#pragma once

#include <cstdint>
#include <string>

#include "core/base/units.h"
#include "core/schedule/action.h"

namespace shardlens::trace {

// An action of PyTorch's FSDP2 on a unit, as shardlens.record saw it: a line of
// rank<r>.actions.jsonl (docs/reference/python.md). [start, end) is the host's call, in the trace's
// clock.
struct RecordedAction {
  uint32_t seq = 0;  // from 1, in the order of the host
  schedule::Op op = schedule::Op::kAllGather;
  schedule::Cause cause = schedule::Cause::kOwn;
  std::string unit;  // FQN; "" is the root
  int64_t step = 0;  // ProfilerStep#k
  Nanoseconds start = 0, end = 0;
};

}  // namespace shardlens::trace
