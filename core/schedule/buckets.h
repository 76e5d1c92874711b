#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"
#include "core/plan/resolved_plan.h"
#include "core/schedule/action.h"

namespace shardlens::schedule {

// Predicts into which buckets replicate() puts its gradients and when it reduces them: a model of
// c10d's Reducer, which the engine uses. Tests compare it with the Reducer and with recorded DDP
// runs (tests/data/ddp_buckets.json).
//
// Source  torch 2.11 reducer.cpp (compute_bucket_assignment_by_size, Reducer), DDP's
//         _ddp_init_helper.

struct Gradient {  // of one parameter
  Bytes bytes = 0;
  DType dtype = DType::kF32;
};

// Gradients that are reduced together, in their order in the buffer.
struct Bucket {
  std::vector<uint32_t> gradients;  // indices into the list of gradients
  Bytes bytes = 0;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

inline constexpr Bytes kFirstBucketBytes = Bytes{1} << 20;
inline constexpr Bytes kBucketBytes = Bytes{25} << 20;

struct BucketOptions {          // how gradients are divided into buckets
  std::optional<Bytes> cap;     // nullopt: kBucketBytes, and kFirstBucketBytes for the first one
  std::vector<Bytes> cap_list;  // cap of the n-th bucket, the last one repeats; replaces `cap`
  bool find_unused_parameters = false;
  bool static_graph = false;
};

// Assigns gradients to buckets. One bucket per dtype is open at a time. It closes when its size
// reaches its limit (and so may exceed it). The n-th bucket of a dtype has the n-th of `limits`;
// the last limit repeats. With an `order` (rebuilding), buckets are in the order in which they
// close, otherwise in the order of their smallest index.
//
// [Note: Buckets left open] The Reducer takes the buckets that are still open at the end from an
// unordered_map. With few keys, libstdc++ iterates over the newest first; recorded DDP runs agree.
// With three or more dtypes a hash collision could change this order.
[[nodiscard]] std::vector<Bucket> assign_buckets(std::span<const Gradient> gradients,
                                                 std::span<const Bytes> limits,
                                                 std::span<const uint32_t> order = {});

// The buckets of one Reducer over its iterations. For each iteration that reduces, call begin(),
// ready() for each gradient, and end().
class BucketModel {
 public:
  BucketModel(std::vector<Gradient> gradients, BucketOptions options);

  // The forward of an iteration whose gradients are reduced. Once, when the order in which
  // gradients become ready is known from an earlier iteration, rebuilds the buckets in this order
  // and returns true. `unused`: gradients that a search of the graph found unused
  // (find_unused_parameters).
  bool begin(std::span<const uint32_t> unused = {});
  // A gradient is complete. Returns the indices of the buckets that are reduced now, in order.
  [[nodiscard]] std::vector<uint32_t> ready(uint32_t gradient);
  // Backward ends. Returns the buckets that are reduced now: in a static graph's first iteration,
  // all.
  [[nodiscard]] std::vector<uint32_t> end();

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  // Whether this iteration also reduces the map of used parameters.
  [[nodiscard]] bool reduces_used_map() const {
    return options_.static_graph ? iteration_ == 1 : options_.find_unused_parameters;
  }

 private:
  void reset_pending();
  void mark(uint32_t gradient, std::vector<uint32_t>& launched);

  std::vector<Gradient> gradients_;
  BucketOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<uint32_t> bucket_of_;  // by gradient
  std::vector<size_t> pending_;      // by bucket: number of its gradients that are not ready
  size_t next_ = 0;                  // bucket to be reduced next
  std::vector<uint32_t> unused_;     // marked ready together with the first gradient
  bool marked_unused_ = false;
  std::vector<uint32_t> order_;  // order in which gradients became ready, for rebuilding
  std::vector<bool> used_;       // gradients used in a static graph's first iteration
  bool rebuilt_ = false;
  int64_t iteration_ = 0;  // number of iterations with a reduction so far
};

// The units of a plan that share one Reducer: those with the same settings.
struct ReplicateGroup {
  std::vector<UnitId> units;
  std::vector<uint32_t> parameters;  // indices into the tree's, in the Reducer's order
  BucketOptions options;
  bool gradient_as_bucket_view = false;
};
[[nodiscard]] std::vector<ReplicateGroup> replicate_groups(const plan::ResolvedPlan& plan);
[[nodiscard]] std::vector<Gradient> gradients_of(const plan::ResolvedPlan& plan,
                                                 const ReplicateGroup& group);

// The group that reduces buckets: of all ranks that the plan shards or replicates over.
[[nodiscard]] mesh::GroupId bucket_group(const plan::ResolvedPlan& plan);

// The actions of a bucket's all-reduce over `group`: the launch, and record or host wait (`op`) of
// the event after it. `unit`: id of the bucket, after the ids of the plan's units.
[[nodiscard]] Action bucket_launch(UnitId unit, uint32_t generation, mesh::GroupId group);
[[nodiscard]] Action bucket_event(Op op, UnitId unit);

// A bucket of a planned step.
struct PlannedBucket {
  std::string name;
  std::vector<uint32_t> parameters;  // indices into the tree's
  Bytes bytes = 0;
  DType dtype = DType::kF32;  // of its gradients, which is that of their parameters
};

// "bucket 0 (model.layers.3, model.layers.2)": the units of its parameters, in order of their first
// gradient; "root" for the root. `group`: number of the Reducer if there are several.
[[nodiscard]] std::string bucket_name(const plan::ResolvedPlan& plan,
                                      std::span<const uint32_t> parameters,
                                      size_t index,
                                      std::optional<size_t> group = std::nullopt);

}  // namespace shardlens::schedule
