#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/base/format_bytes.h"
#include "profiler/check/check.h"

namespace shardlens::check {
namespace {

// docs/use/gate-ci.md explains both.
constexpr double kMemoryShare = 0.02;
constexpr Bytes kLeastRise = Bytes{1} << 20;
constexpr Bytes kMostRise = Bytes{1} << 60;  // above all memory, and sums fit

using Place = std::pair<int64_t, std::string>;  // rank, device

// The highest of all runs, by rank and device.
std::map<Place, MemoryPeak> highest_of(const std::vector<RunSummary>& runs) {
  std::map<Place, MemoryPeak> out;
  for (const RunSummary& run : runs) {
    for (const MemoryPeak& peak : run.memory) {
      const auto [found, fresh] = out.try_emplace({peak.rank, peak.device}, peak);
      if (!fresh && peak.peak > found->second.peak) {
        found->second = peak;
      }
    }
  }
  return out;
}

Bytes share_of(Bytes bytes, double share) {
  return static_cast<Bytes>(
      std::min(static_cast<double>(bytes) * share, static_cast<double>(kMostRise)));
}

Bytes allowed_rise(const MemoryGate& gate, Bytes baseline) {
  if (!gate.limit) {
    return std::max(share_of(baseline, kMemoryShare), kLeastRise);
  }
  return gate.limit->bytes ? std::min(*gate.limit->bytes, kMostRise)
                           : share_of(baseline, gate.limit->relative.value_or(0));
}

std::string place_of(const MemoryPeak& peak) {
  return fmt::format("rank {} on {}", peak.rank, peak.device);
}

std::string was(Bytes now, Bytes before) {
  return now == before ? fmt::format("{} as before", format_bytes(now))
                       : fmt::format("{}, was {}", format_bytes(now), format_bytes(before));
}

const MemoryResult* worst_of(const std::vector<MemoryResult>& results) {
  const MemoryResult* worst = nullptr;
  for (const MemoryResult& r : results) {
    if (r.allowed && (worst == nullptr ||
                      r.candidate.peak - *r.allowed > worst->candidate.peak - *worst->allowed)) {
      worst = &r;
    }
  }
  return worst;
}

}  // namespace

Verdict MemoryResult::verdict() const {
  return allowed && candidate.peak > *allowed ? Verdict::kRegression : Verdict::kPass;
}

std::vector<MemoryResult> compare_memory(const std::vector<RunSummary>& baseline,
                                         const std::vector<RunSummary>& candidate,
                                         const MemoryGate& gate) {
  const std::map<Place, MemoryPeak> before = highest_of(baseline);
  std::vector<MemoryResult> out;
  for (const auto& [place, peak] : highest_of(candidate)) {
    MemoryResult& result = out.emplace_back();
    result.candidate = peak;
    if (const auto found = before.find(place); found != before.end()) {
      result.baseline = found->second;
    }
    if (gate.gates && result.baseline) {
      result.allowed = result.baseline->peak + allowed_rise(gate, result.baseline->peak);
    }
    if (gate.most) {
      result.allowed = std::min(result.allowed.value_or(*gate.most), *gate.most);
    }
  }
  return out;
}

std::string memory_reason(const std::vector<MemoryResult>& results) {
  const MemoryResult* worst = worst_of(results);
  if (worst == nullptr) {
    return "";
  }
  const auto above = std::count_if(results.begin(), results.end(), [](const MemoryResult& r) {
    return r.verdict() == Verdict::kRegression;
  });
  const std::string peak = fmt::format("the peak memory of {} is {}", place_of(worst->candidate),
                                       format_bytes(worst->candidate.peak));
  if (above == 0) {
    return fmt::format("{}, not above {}", peak, format_bytes(*worst->allowed));
  }
  return fmt::format("{}, above {}{}", peak, format_bytes(*worst->allowed),
                     above > 1 ? fmt::format(", and {} more are above theirs", above - 1) : "");
}

std::string memory_cause(const std::vector<MemoryResult>& results) {
  const MemoryResult* worst = worst_of(results);
  if (worst == nullptr || worst->verdict() != Verdict::kRegression || !worst->baseline ||
      !worst->baseline->kept || !worst->candidate.kept) {
    return "";
  }
  const Bytes kept = *worst->candidate.kept, kept_before = *worst->baseline->kept;
  return fmt::format("memory of {}: kept between steps {}; in addition within the step {}",
                     place_of(worst->candidate), was(kept, kept_before),
                     was(worst->candidate.peak - kept, worst->baseline->peak - kept_before));
}

}  // namespace shardlens::check
