#include <algorithm>
#include <array>
#include <string>

#include "profiler/analysis/exposed/collective_causes.h"

namespace shardlens::analysis {
namespace {

struct CauseRow {
  std::string_view words, explanation;
};

// By ExposedCause.
constexpr CauseRow kCauseRows[kExposedCauseCount] = {
    {"first of the step", "first all-gather of the step: nothing runs before it"},
    {"last of the step", "last reduction of the step: no compute is left to overlap with"},
    {"not prefetched", "issued only when it was needed"},
    {"host late", "no compute ran at the same time, because the host issued it too late"},
    {"behind another collective", "waited behind another collective of its communicator"},
    {"held by the limiter", "held back by limit_all_gathers"},
    {"limited by bandwidth",
     "issued in time and as fast as its size ever was, but longer than the concurrent compute"},
    {"frozen views",
     "frozen views: issued only at the end of backward, but its gradients were ready before"},
    {"host waited", "on the CPU the host computes, and it waited for this"},
    {"waited for another rank", "another rank started late"},
    {"needed at once", "it needed the result of a kernel, and the compute after it needed its own"},
    {"unknown", "no cause that the trace shows explains half of it"},
    {"one hardware queue",
     "the device ran all streams as one queue: no compute ran at the same time as a collective"},
};

}  // namespace

std::string_view name_of(ExposedCause cause) {
  static const auto kNames = [] {
    std::array<std::string, kExposedCauseCount> names;
    for (size_t i = 0; i < names.size(); ++i) {
      names[i] = kCauseRows[i].words;
      std::replace(names[i].begin(), names[i].end(), ' ', '_');
    }
    return names;
  }();
  return kNames[static_cast<size_t>(cause)];
}

std::string_view words_of(ExposedCause cause) {
  return kCauseRows[static_cast<size_t>(cause)].words;
}

std::string_view explanation_of(ExposedCause cause) {
  return kCauseRows[static_cast<size_t>(cause)].explanation;
}

std::string_view remedy_of(ExposedCause cause, UnitPart part) {
  const bool gathers = part == UnitPart::kAllGatherForward || part == UnitPart::kAllGatherBackward;
  const bool reduces = part == UnitPart::kReduceScatter || part == UnitPart::kAllReduce;
  switch (cause) {
    case ExposedCause::kFirst:
      return "a smaller root unit";
    case ExposedCause::kLast:
      return "smaller units or buckets at the end of backward";
    case ExposedCause::kNoPrefetch:
      return "prefetch it";
    case ExposedCause::kLateHost:
      return gathers ? "an earlier prefetch, larger or fewer operators, fewer waits of the host"
                     : "larger or fewer operators, fewer waits of the host";
    case ExposedCause::kQueued:
      return gathers ? "another communicator for reductions, or an earlier prefetch"
                     : "a communicator of its own";
    case ExposedCause::kLimiter:
      return "limit_all_gathers off, if the memory suffices";
    case ExposedCause::kBandwidth:
      return gathers   ? "lower precision, parameters kept after forward, or more compute per unit"
             : reduces ? "reduce in lower precision, or less often (accumulation)"
                       : "smaller messages or a faster link";
    case ExposedCause::kFrozenViews:
      return "create the parameter views in each forward";
    case ExposedCause::kHostIsCompute:
      return gathers   ? "a prefetch, if the backend returns before the collective ends"
             : reduces ? "a backend that returns before the collective ends"
                       : "an asynchronous call, with work before the wait";
    case ExposedCause::kPeer:
      return "find out what delays that rank (--by rank)";
    case ExposedCause::kDependency:
      return "split the work, so that one part computes while the other communicates";
    case ExposedCause::kOneQueue:
      return "CUDA_DEVICE_MAX_CONNECTIONS of 8 or more (1 makes one queue)";
    case ExposedCause::kUnknown:
      return "";
  }
  return "";
}

}  // namespace shardlens::analysis
