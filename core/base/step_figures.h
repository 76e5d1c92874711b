#pragma once

#include <optional>

#include "core/base/units.h"

namespace shardlens {

// How one rank spent the time of a step or of another window, measured or simulated. The window is
// always compute + exposed_comm + exposed_copy + idle.
struct StepFigures {
  Nanoseconds compute = 0;
  Nanoseconds exposed_comm = 0;  // communication while nothing computes
  Nanoseconds exposed_copy = 0;  // copies while there is neither compute nor communication
  Nanoseconds idle = 0;
  Nanoseconds comm = 0, overlap = 0;  // all communication, and its part concurrent with compute

  [[nodiscard]] Nanoseconds duration() const {
    return compute + exposed_comm + exposed_copy + idle;
  }
  // overlap / comm; nullopt if there is no communication.
  [[nodiscard]] std::optional<double> overlap_ratio() const {
    return comm == 0 ? std::nullopt
                     : std::optional(static_cast<double>(overlap) / static_cast<double>(comm));
  }
  friend bool operator==(const StepFigures&, const StepFigures&) = default;
};

}  // namespace shardlens
