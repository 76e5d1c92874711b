#include "core/schedule/buckets.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <numeric>

#include "core/base/error.h"

namespace shardlens::schedule {
namespace {

constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

// Above the ids of the schedule's own events, which start at 0.
constexpr EventId kFirstBucketEvent = EventId{1} << 30;

// A bucket's name lists at most this many units, or one fewer and the number of the others.
constexpr size_t kUnitsNamed = 4;

std::vector<Bytes> first_limits(const BucketOptions& options) {
  if (!options.cap_list.empty()) {
    return options.cap_list;
  }
  // Parameters may be used in another order than they are registered. Unless unused ones are
  // searched for, there is one bucket until the order is known.
  if (options.static_graph || !options.find_unused_parameters) {
    return {kNoLimit};
  }
  return options.cap ? std::vector{*options.cap} : std::vector{kFirstBucketBytes, kBucketBytes};
}

std::vector<Bytes> rebuild_limits(const BucketOptions& options) {
  if (!options.cap_list.empty()) {
    return options.cap_list;
  }
  return {options.cap.value_or(kFirstBucketBytes), options.cap.value_or(kBucketBytes)};
}

}  // namespace

std::vector<Bucket> assign_buckets(std::span<const Gradient> gradients,
                                   std::span<const Bytes> limits,
                                   std::span<const uint32_t> order) {
  SHARDLENS_CHECK(!limits.empty(), "buckets need a limit");
  struct Open {
    DType dtype;
    Bucket bucket;
    size_t limit = 0;
  };
  std::vector<Open> open;  // one per dtype, in the order of their first gradients
  std::vector<Bucket> out;
  std::vector<uint32_t> all(gradients.size());
  std::iota(all.begin(), all.end(), 0U);
  for (const uint32_t index : order.empty() ? std::span<const uint32_t>(all) : order) {
    const Gradient& gradient = gradients[index];
    auto at = std::find_if(open.begin(), open.end(),
                           [&](const Open& each) { return each.dtype == gradient.dtype; });
    if (at == open.end()) {
      at = open.insert(at, {gradient.dtype, {}, 0});
    }
    at->bucket.gradients.push_back(index);
    at->bucket.bytes += gradient.bytes;
    if (at->bucket.bytes >= limits[at->limit]) {
      out.push_back(std::move(at->bucket));
      at->bucket = {};
      at->limit = std::min(at->limit + 1, limits.size() - 1);
    }
  }
  std::reverse(open.begin(), open.end());  // see [Note: Buckets left open]
  for (Open& each : open) {
    if (!each.bucket.gradients.empty()) {
      out.push_back(std::move(each.bucket));
    }
  }
  if (order.empty()) {
    std::sort(out.begin(), out.end(), [](const Bucket& a, const Bucket& b) {
      return a.gradients.front() < b.gradients.front();
    });
  }
  return out;
}

BucketModel::BucketModel(std::vector<Gradient> gradients, BucketOptions options)
    : gradients_(std::move(gradients)),
      options_(std::move(options)),
      used_(gradients_.size(), false) {
  buckets_ = assign_buckets(gradients_, first_limits(options_));
  // Gradients become ready roughly in reverse order of registration.
  std::reverse(buckets_.begin(), buckets_.end());
  reset_pending();
}

void BucketModel::reset_pending() {
  bucket_of_.assign(gradients_.size(), 0);
  pending_.clear();
  for (uint32_t i = 0; i < buckets_.size(); ++i) {
    pending_.push_back(buckets_[i].gradients.size());
    for (const uint32_t gradient : buckets_[i].gradients) {
      bucket_of_[gradient] = i;
    }
  }
  next_ = 0;
  marked_unused_ = false;
}

bool BucketModel::begin(std::span<const uint32_t> unused) {
  bool rebuilds = false;
  const bool may_rebuild = options_.static_graph || !options_.find_unused_parameters;
  if (may_rebuild && !rebuilt_ && !order_.empty()) {
    buckets_ = assign_buckets(gradients_, rebuild_limits(options_), order_);
    rebuilt_ = rebuilds = true;
  }
  ++iteration_;
  if (!options_.static_graph) {
    unused_.assign(unused.begin(), unused.end());
  }
  reset_pending();
  return rebuilds;
}

void BucketModel::mark(uint32_t gradient, std::vector<uint32_t>& launched) {
  const uint32_t bucket = bucket_of_.at(gradient);
  SHARDLENS_CHECK(pending_[bucket] > 0, "a gradient became ready twice");
  --pending_[bucket];
  for (; next_ < buckets_.size() && pending_[next_] == 0; ++next_) {
    launched.push_back(static_cast<uint32_t>(next_));
  }
}

std::vector<uint32_t> BucketModel::ready(uint32_t gradient) {
  std::vector<uint32_t> launched;
  if (options_.static_graph && iteration_ == 1) {
    used_.at(gradient) = true;
    return launched;
  }
  if (!marked_unused_) {
    marked_unused_ = true;
    for (const uint32_t unused : unused_) {
      mark(unused, launched);
    }
  }
  if (!rebuilt_) {
    order_.push_back(gradient);
  }
  mark(gradient, launched);
  return launched;
}

std::vector<uint32_t> BucketModel::end() {
  std::vector<uint32_t> launched;
  if (!options_.static_graph) {
    return launched;
  }
  if (iteration_ == 1) {
    for (uint32_t gradient = 0; gradient < gradients_.size(); ++gradient) {
      if (!used_[gradient]) {
        unused_.push_back(gradient);
      }
      mark(gradient, launched);
    }
  } else if (!rebuilt_ && next_ == buckets_.size()) {
    order_.insert(order_.end(), unused_.begin(), unused_.end());
  }
  return launched;
}

std::vector<ReplicateGroup> replicate_groups(const plan::ResolvedPlan& plan) {
  struct Settings {
    std::optional<double> cap;
    std::array<bool, 3> flags;
    bool operator==(const Settings&) const = default;
  };
  std::vector<Settings> seen;
  std::vector<ReplicateGroup> groups;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const plan::Unit& unit = plan.units[id];
    if (unit.api != plan::Api::kReplicate || unit.parameters.empty() || plan.is_frozen(id)) {
      continue;
    }
    const Settings settings{
        unit.bucket_cap_mb,
        {unit.find_unused_parameters, unit.static_graph, unit.gradient_as_bucket_view}};
    const auto at =
        static_cast<size_t>(std::find(seen.begin(), seen.end(), settings) - seen.begin());
    if (at == seen.size()) {
      seen.push_back(settings);
      ReplicateGroup& group = groups.emplace_back();
      if (unit.bucket_cap_mb) {
        group.options.cap = static_cast<Bytes>(*unit.bucket_cap_mb * 1024 * 1024);
      }
      group.options.find_unused_parameters = unit.find_unused_parameters;
      group.options.static_graph = unit.static_graph;
      group.gradient_as_bucket_view = unit.gradient_as_bucket_view;
    }
    groups[at].units.push_back(id);
    std::ranges::copy_if(
        unit.parameters, std::back_inserter(groups[at].parameters),
        [&](uint32_t parameter) { return plan.tree.parameters[parameter].requires_grad; });
  }
  for (ReplicateGroup& group : groups) {  // in named_parameters() order, for any order of units
    std::sort(group.parameters.begin(), group.parameters.end());
  }
  return groups;
}

std::vector<Gradient> gradients_of(const plan::ResolvedPlan& plan, const ReplicateGroup& group) {
  std::vector<Gradient> gradients;
  for (const uint32_t parameter : group.parameters) {
    const plan::Parameter& each = plan.tree.parameters[parameter];
    gradients.push_back({each.numel * size_of(each.dtype), each.dtype});
  }
  return gradients;
}

mesh::GroupId bucket_group(const plan::ResolvedPlan& plan) {
  return plan.replicas() > 1 ? plan::kReplicateGroup : plan::kShardGroup;
}

Action bucket_launch(UnitId unit, uint32_t generation, mesh::GroupId group) {
  return {Op::kAllReduce, Stream::kAllReduce,
          group,          Cause::kOwn,
          unit,           {BufferKind::kUnshardedGrad, unit, generation}};
}

Action bucket_event(Op op, UnitId unit) {
  Action action;
  action.op = op;
  action.stream = op == Op::kRecord ? Stream::kAllReduce : Stream::kCompute;
  action.unit = unit;
  action.event = kFirstBucketEvent + unit;
  return action;
}

std::string bucket_name(const plan::ResolvedPlan& plan,
                        std::span<const uint32_t> parameters,
                        size_t index,
                        std::optional<size_t> group) {
  std::vector<UnitId> unit_of(plan.tree.parameters.size(), kNoUnit);
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const uint32_t parameter : plan.units[id].parameters) {
      unit_of[parameter] = id;
    }
  }
  std::vector<UnitId> units;
  for (const uint32_t parameter : parameters) {
    const UnitId unit = unit_of.at(parameter);
    if (std::find(units.begin(), units.end(), unit) == units.end()) {
      units.push_back(unit);
    }
  }
  std::string name = "bucket ";
  if (group) {
    name += std::to_string(*group) + ".";
  }
  name += std::to_string(index) + " (";
  for (size_t i = 0; i < units.size(); ++i) {
    if (i + 1 == kUnitsNamed && units.size() > kUnitsNamed) {
      return name + ", " + std::to_string(units.size() - i) + " more)";
    }
    const bool known = units[i] != kNoUnit;
    const std::string& fqn = known ? plan.units[units[i]].fqn : "";
    name += (i == 0 ? "" : ", ") + (fqn.empty() ? std::string("root") : fqn);
  }
  return name + ")";
}

}  // namespace shardlens::schedule
