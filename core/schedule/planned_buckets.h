#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/workload.h"
#include "core/schedule/buckets.h"

namespace shardlens::schedule {

// The buckets of all replicated units of a plan, through the steps of a planned run. Gradients come
// one by one here, not unit by unit.
class PlannedBuckets {
 public:
  explicit PlannedBuckets(const plan::ResolvedPlan& plan);

  [[nodiscard]] bool empty() const { return groups_.empty(); }
  // The replicated parameters that an operator's backward completes, the first one first. A matrix
  // product's bias gets its gradient before its weight, a norm's weight before its bias.
  [[nodiscard]] std::vector<uint32_t> parameters_of(const plan::Operator& op) const;

  // The forward of a microbatch begins whose gradients will be reduced, or not.
  void begin(bool sync);
  // A parameter's gradient is complete: launches.
  [[nodiscard]] ActionList ready(uint32_t parameter);
  // Backward ends: late launches, and waits for all.
  [[nodiscard]] ActionList end();

  // Of the plan's units and, beyond, of all buckets there have been; by Action::unit.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] std::vector<PlannedBucket> now() const;

 private:
  struct Group {
    ReplicateGroup spec;
    BucketModel model;
    UnitId first = 0;  // unit of its bucket 0 as it is now
    std::vector<uint32_t> launches;
  };
  [[nodiscard]] static std::vector<uint32_t> parameters_of(const Group& group, size_t bucket);
  void name_buckets(size_t group);
  void launch(Group& group, const std::vector<uint32_t>& buckets, ActionList& out);

  const plan::ResolvedPlan& plan_;
  std::vector<Group> groups_;
  std::vector<std::pair<uint32_t, uint32_t>> place_;  // of each parameter: group, gradient
  std::vector<std::string> names_;
  bool sync_ = false, named_ = false;
};

}  // namespace shardlens::schedule
