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

// Where replicate() puts its gradients and when it reduces them: a model of c10d's Reducer, which
// decides that itself in the engine. Checked against it and against what DDP did
// (tests/data/ddp_buckets.json).
//
// Source  torch 2.11 reducer.cpp (compute_bucket_assignment_by_size, Reducer), DDP's
//         _ddp_init_helper.

struct Gradient {
  Bytes bytes = 0;
  DType dtype = DType::kF32;
};

// Gradients that are reduced together, in the order in which they lie in the buffer.
struct Bucket {
  std::vector<uint32_t> gradients;  // indices into the list that the buckets were made of
  Bytes bytes = 0;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

inline constexpr Bytes kFirstBucketBytes = Bytes{1} << 20;
inline constexpr Bytes kBucketBytes = Bytes{25} << 20;

struct BucketOptions {
  std::optional<Bytes> cap;     // none: kBucketBytes, and kFirstBucketBytes for the first one
  std::vector<Bytes> cap_list;  // of the n-th bucket, the last one repeats; replaces `cap`
  bool find_unused_parameters = false;
  bool static_graph = false;
};

// One bucket per dtype is open at a time; it closes when its size reaches its limit (and so
// overshoots it), `limits` being taken in turn by each dtype, the last one repeating. With an
// `order` (rebuilding) closed buckets come in that order, else by their smallest index.
//
// [Note: Buckets left open] The Reducer takes them from an unordered_map. libstdc++'s yields few
// keys newest first, which is what DDP was seen to do; with three or more dtypes a collision could
// change it.
[[nodiscard]] std::vector<Bucket> assign_buckets(std::span<const Gradient> gradients,
                                                 std::span<const Bytes> limits,
                                                 std::span<const uint32_t> order = {});

// The buckets of one Reducer through its iterations. Per iteration that reduces: begin(), ready()
// for each gradient, end().
class BucketModel {
 public:
  BucketModel(std::vector<Gradient> gradients, BucketOptions options);

  // Forward of an iteration whose gradients are reduced. Rebuilds the buckets in the order in which
  // the gradients of an earlier one became ready, once, if that is due: true. `unused`: what a
  // search of the graph found unused (find_unused_parameters).
  bool begin(std::span<const uint32_t> unused = {});
  // A gradient is complete: the buckets that are reduced now, by index, in order.
  [[nodiscard]] std::vector<uint32_t> ready(uint32_t gradient);
  // End of backward: what a static graph's first iteration reduces only here.
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
  std::vector<uint32_t> bucket_of_;  // of each gradient
  std::vector<size_t> pending_;      // of each bucket
  size_t next_ = 0;                  // bucket to be reduced next
  std::vector<uint32_t> unused_;     // to be marked with the first gradient
  bool marked_unused_ = false;
  std::vector<uint32_t> order_;  // in which gradients became ready, for rebuilding
  std::vector<bool> used_;       // in a static graph's first iteration
  bool rebuilt_ = false;
  int64_t iteration_ = 0;  // that reduces, from 1
};

// Units of a plan that one Reducer serves: those with the same settings.
struct ReplicateGroup {
  std::vector<UnitId> units;
  std::vector<uint32_t> parameters;  // of the tree, in the order in which the Reducer has them
  BucketOptions options;
  bool gradient_as_bucket_view = false;
};
[[nodiscard]] std::vector<ReplicateGroup> replicate_groups(const plan::ResolvedPlan& plan);
[[nodiscard]] std::vector<Gradient> gradients_of(const plan::ResolvedPlan& plan,
                                                 const ReplicateGroup& group);

// How a bucket's all-reduce stands in a list of actions, on the replicate axis: the launch, and
// record and host wait of the event behind it. `unit`: the bucket, numbered beyond the plan's
// units.
[[nodiscard]] Action bucket_launch(UnitId unit, uint32_t generation);
[[nodiscard]] Action bucket_event(Op op, UnitId unit);

// A bucket of a planned step, by the tree's parameters.
struct PlannedBucket {
  std::string name;
  std::vector<uint32_t> parameters;
  Bytes bytes = 0;
};

// "bucket 0 (model.layers.3, model.layers.2)": the units whose parameters it holds, in order of
// their first gradient, "root" for the root. `group`: of several, its number.
[[nodiscard]] std::string bucket_name(const plan::ResolvedPlan& plan,
                                      std::span<const uint32_t> parameters,
                                      size_t index,
                                      std::optional<size_t> group = std::nullopt);

}  // namespace shardlens::schedule
