#pragma once

#include <cstdint>
#include <string_view>

namespace shardlens::plan {

// The key that an edit of a plan, or of the settings of its step, changes. plan_key() has what is
// the same for all values of a key; PlanEdits (plan_edits.h) makes the edits.
enum class PlanKey : uint8_t {
  kSharding,
  kUnits,
  kUnit,
  kMesh,
  kReshard,
  kUnshardInBackward,
  kForwardPrefetch,
  kBackwardPrefetch,
  kCommunicators,
  kPrecision,
  kDialect,
  kLayout,
  kApi,
  kCheckpoints,
  kOffload,
  kBuckets,
  kMicrobatches,
  kGradientSync,
  kReplicas,
  kContext,
  kTensor,
  kExpert,
  kSequenceParallel,
  kLossParallel,
  kContextMethod,
  kSaves,
  kOptimizerInBackward,
  kReshardInBackward,
  kFrozen,
  kGatherDtype,
  kAllReduces,
  kLimit,
  kViews,
  kDivideFactor,
  kUnusedParameters,
  kStaticGraph,
  kBucketViews,
  kExpertDispatch,
  kOutputDtype,
  kBufferDtype,
  kCastInputs,
  kTensorStyle,
  kGroups,
  kIgnored,
  kReductionInputs,
};
inline constexpr int kPlanKeyCount = static_cast<int>(PlanKey::kReductionInputs) + 1;

struct PlanKeyRow {  // one row of the catalogue
  PlanKey key = PlanKey::kSharding;
  std::string_view id;     // "prefetch_forward", the same in all versions
  std::string_view title;  // "Prefetch in forward"
  std::string_view help;   // a sentence without its full stop
  uint64_t decides = 0;    // further keys that an edit of this one decides, a bit for each
};

[[nodiscard]] const PlanKeyRow& plan_key(PlanKey key);

// Whether an edit of one key undoes an edit of the other: both decide the same key.
[[nodiscard]] bool exclude_each_other(PlanKey a, PlanKey b);

}  // namespace shardlens::plan
