#pragma once

#include <string_view>

#include "core/base/collective_timer.h"
#include "core/base/units.h"

namespace shardlens::sim {

// The simplest model of hardware: every collective takes a latency plus its larger message divided
// by a bandwidth, for any kind and number of ranks. A group of one rank takes the latency too: such
// a collective runs only if it is forced.
//
// Units   bandwidth in GB/s of 1e9 bytes; infinite: only the latency.
// Source  Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994): t = alpha +
// n / beta.
class AlphaBetaTimer final : public CollectiveTimer {
 public:
  AlphaBetaTimer(Nanoseconds latency, double gigabytes_per_second);
  // "ab:MICROSECONDS:GBPS", the format of `--hardware`: "ab:5000:inf", "ab:12.5:40".
  // Errors: UsageError naming the wrong part and the expected format.
  [[nodiscard]] static AlphaBetaTimer parse(std::string_view spec);

  [[nodiscard]] Nanoseconds duration(CollectiveKind kind,
                                     int ranks,
                                     Bytes larger_message) const override;
  [[nodiscard]] Nanoseconds latency() const { return latency_; }
  [[nodiscard]] double gigabytes_per_second() const { return gigabytes_per_second_; }

 private:
  Nanoseconds latency_;
  double gigabytes_per_second_;
};

}  // namespace shardlens::sim
