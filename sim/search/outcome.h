#pragma once

#include "core/base/units.h"

namespace shardlens::sim {

// What a candidate costs.
struct Outcome {
  Nanoseconds step = 0, compute = 0, exposed_comm = 0, exposed_copy = 0, idle = 0;
  Bytes peak = 0, peak_allocated = 0;  // reserved, and of it allocated
  bool fits = true;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

}  // namespace shardlens::sim
