#include "sim/cost/alpha_beta_timer.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

constexpr std::string_view kExpected =
    "expected ab:MICROSECONDS:GBPS, such as ab:5000:inf or ab:12.5:40";
constexpr double kLongestMicroseconds =
    3.6e9;  // an hour; keeps sums of nanoseconds far from overflow

// All of `text` as a number. "inf" is accepted, "nan" is not.
std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || std::isnan(value)) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

AlphaBetaTimer::AlphaBetaTimer(Nanoseconds latency, double gigabytes_per_second)
    : latency_(latency), gigabytes_per_second_(gigabytes_per_second) {}

AlphaBetaTimer AlphaBetaTimer::parse(std::string_view spec) {
  const auto wrong = [spec](std::string_view part, std::string_view why) {
    return UsageError(fmt::format("hardware '{}': '{}' {}; {}", spec, part, why, kExpected));
  };
  constexpr std::string_view kPrefix = "ab:";
  if (!spec.starts_with(kPrefix)) {
    throw UsageError(fmt::format("hardware '{}': {}", spec, kExpected));
  }
  const std::string_view rest = spec.substr(kPrefix.size());
  const size_t colon = rest.find(':');
  if (colon == std::string_view::npos) {
    throw UsageError(fmt::format("hardware '{}' has no bandwidth; {}", spec, kExpected));
  }
  const std::string_view latency_text = rest.substr(0, colon);
  const std::string_view bandwidth_text = rest.substr(colon + 1);
  const std::optional<double> latency = number(latency_text);
  const std::optional<double> bandwidth = number(bandwidth_text);
  if (!latency || *latency < 0 || *latency > kLongestMicroseconds) {
    throw wrong(latency_text, "is not a latency from 0 to 3.6e9 microseconds");
  }
  if (!bandwidth || *bandwidth <= 0) {
    throw wrong(bandwidth_text, "is not a bandwidth above 0 GB/s");
  }
  return {static_cast<Nanoseconds>(std::llround(*latency * 1e3)), *bandwidth};
}

Nanoseconds AlphaBetaTimer::duration(CollectiveKind /*kind*/,
                                     int /*ranks*/,
                                     Bytes larger_message) const {
  if (std::isinf(gigabytes_per_second_) || larger_message <= 0) {
    return latency_;
  }
  // 1 GB/s is 1 byte per nanosecond.
  const double transfer = static_cast<double>(larger_message) / gigabytes_per_second_;
  constexpr double kLongest = static_cast<double>(std::numeric_limits<Nanoseconds>::max()) / 4;
  return latency_ + static_cast<Nanoseconds>(std::llround(std::fmin(transfer, kLongest)));
}

}  // namespace shardlens::sim
