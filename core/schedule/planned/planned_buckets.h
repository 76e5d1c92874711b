#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/schedule/buckets.h"
#include "core/workload/workload.h"

namespace shardlens::schedule {

// The buckets of all replicated units of a plan over the steps of a planned run. Gradients become
// ready one by one here, not unit by unit.
class PlannedBuckets {
 public:
  explicit PlannedBuckets(const plan::ResolvedPlan& plan);

  [[nodiscard]] bool empty() const { return groups_.empty(); }
  // The replicated parameters whose gradients an operator's backward computes, in this order. The
  // bias of a matrix product gets its gradient before the weight, the weight of a norm before the
  // bias.
  [[nodiscard]] std::vector<uint32_t> parameters_of(const plan::Operator& op) const;

  // The forward of a microbatch begins. `sync`: its gradients will be reduced.
  void begin(bool sync);
  // A parameter's gradient is complete. Returns the launches of buckets.
  [[nodiscard]] ActionList ready(uint32_t parameter);
  // Backward ends. Returns the late launches, and the waits for all buckets.
  [[nodiscard]] ActionList end();

  // By Action::unit: names of the plan's units, then of all buckets so far, including replaced
  // ones.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] std::vector<PlannedBucket> now() const;

 private:
  struct Group {
    ReplicateGroup spec;
    BucketModel model;
    UnitId first = 0;  // UnitId of its current bucket 0
    std::vector<uint32_t> launches;
  };
  [[nodiscard]] static std::vector<uint32_t> parameters_of(const Group& group, size_t bucket);
  void name_buckets(size_t group);
  void launch(Group& group, const std::vector<uint32_t>& buckets, ActionList& out);

  const plan::ResolvedPlan& plan_;
  std::vector<Group> groups_;
  std::vector<std::pair<uint32_t, uint32_t>> place_;  // by parameter: group, gradient
  std::vector<std::string> names_;
  bool sync_ = false, named_ = false;
};

}  // namespace shardlens::schedule
