#pragma once

#include <optional>

#include "core/base/units.h"

namespace shardlens {

// Where the time of a step, or of another window, of one rank went, measured or simulated:
// compute + exposed_comm + exposed_copy + idle is the window, always.
struct StepFigures {
  Nanoseconds compute = 0;
  Nanoseconds exposed_comm = 0;  // communication without compute
  Nanoseconds exposed_copy = 0;  // copies without either
  Nanoseconds idle = 0;
  Nanoseconds comm = 0, overlap = 0;  // all communication, and its part under compute

  [[nodiscard]] Nanoseconds duration() const {
    return compute + exposed_comm + exposed_copy + idle;
  }
  // overlap / comm; nullopt without communication.
  [[nodiscard]] std::optional<double> overlap_ratio() const {
    return comm == 0 ? std::nullopt
                     : std::optional(static_cast<double>(overlap) / static_cast<double>(comm));
  }
  friend bool operator==(const StepFigures&, const StepFigures&) = default;
};

}  // namespace shardlens
