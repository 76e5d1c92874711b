#pragma once

#include <string_view>

#include "core/base/collective_timer.h"
#include "core/base/units.h"

namespace shardlens::sim {

// The simplest hardware there is: every collective takes a latency plus its larger message over a
// bandwidth, whatever its kind and however many ranks; a group of one rank takes the latency too
// (it is only asked for when a collective is forced).
//
// Units   bandwidth in GB/s of 1e9 bytes; infinite: the latency alone.
// Source  Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994): t = alpha +
// n / beta.
class AlphaBetaTimer final : public CollectiveTimer {
 public:
  AlphaBetaTimer(Nanoseconds latency, double gigabytes_per_second);
  // "ab:MICROSECONDS:GBPS", as `--hardware` takes it: "ab:5000:inf", "ab:12.5:40".
  // Errors: UsageError naming the part that is wrong and what was expected.
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
