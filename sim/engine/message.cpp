#include "sim/engine/message.h"

#include "core/plan/unit_sizes.h"
#include "core/schedule/collective_of.h"

namespace shardlens::sim {
namespace {

Message bucket_message(const schedule::PlannedStep& step, UnitId unit) {
  for (const schedule::PlannedBucket& bucket : step.buckets) {
    if (bucket.name == step.unit_names[unit]) {
      const int64_t all = bucket.bytes / size_of(bucket.dtype);
      return {bucket.dtype, all, all};
    }
  }
  return {};
}

plan::ShardLayout reduced_layout(const plan::ResolvedPlan& plan, const schedule::Action& action) {
  return action.grads == Grads::kLast     ? plan.reduced_layout_of_last(action.unit)
         : action.grads == Grads::kOthers ? plan.reduced_layout_of_others(action.unit)
                                          : plan.reduced_layout(action.unit);
}

}  // namespace

Message message_of(const plan::ResolvedPlan& plan,
                   const schedule::PlannedStep& step,
                   const schedule::Action& action) {
  const CollectiveKind kind = *schedule::collective_of(action.op);
  if (action.unit >= plan.units.size()) {  // of the Reducer
    return bucket_message(step, action.unit);
  }
  if (kind == CollectiveKind::kAllReduce) {
    const plan::ShardLayout layout = reduced_layout(plan, action);
    const int64_t all = action.buffer.kind == schedule::BufferKind::kReduceOutput
                            ? layout.shard_numel()
                            : layout.padded_numel();
    return {plan.reduce_dtype(action.unit), all, all};
  }
  const int64_t ranks = plan.groups[action.group].size;
  if (kind == CollectiveKind::kAllGather) {
    const DType dtype = plan.gather_dtype(action.unit);
    const int64_t full =
        plan::unsharded_bytes(plan, action.unit, plan.layout(action.unit)) / size_of(dtype);
    return {dtype, full / ranks, full};
  }
  const int64_t full = reduced_layout(plan, action).padded_numel();
  return {plan.reduce_dtype(action.unit), full, full / ranks};
}

}  // namespace shardlens::sim
