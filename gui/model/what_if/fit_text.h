#pragma once

#include <QString>

#include "core/base/units.h"
#include "sim/scenario/scenario.h"

namespace shardlens::gui {

// What a plan needs and what PyTorch's allocator can reserve: "125.70 of 79.25 GiB". If only the
// allocator's cached memory is too much: "81.00 reserved of 79.25 GiB". If both would be the same
// rounded: "4.00 MiB more than 79.25 GiB".
[[nodiscard]] QString needText(Bytes allocated, Bytes reserved, Bytes available);
// "3.56 GiB simulated, 3.78 GiB measured (−5.8 %)": the peak of the run's own plan.
[[nodiscard]] QString peaksText(Bytes simulated, Bytes measured);
// Why the plan cannot run: "does not fit: it needs …"; "": it fits, or the memory is unknown.
[[nodiscard]] QString unfitText(const sim::Prediction& prediction);

}  // namespace shardlens::gui
