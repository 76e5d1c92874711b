#include "core/schedule/planned/planned_buckets.h"

#include <algorithm>
#include <optional>

namespace shardlens::schedule {
namespace {
constexpr uint32_t kNotReplicated = 0xffffffffU;
}  // namespace

PlannedBuckets::PlannedBuckets(const plan::ResolvedPlan& plan) : plan_(plan) {
  place_.assign(plan.tree.parameters.size(), {kNotReplicated, 0});
  for (ReplicateGroup& spec : replicate_groups(plan)) {
    for (uint32_t i = 0; i < spec.parameters.size(); ++i) {
      place_[spec.parameters[i]] = {static_cast<uint32_t>(groups_.size()), i};
    }
    BucketModel model(gradients_of(plan, spec), spec.options);
    groups_.push_back({std::move(spec), std::move(model), 0, {}});
  }
  for (const plan::Unit& unit : plan.units) {
    names_.push_back(unit.fqn);
  }
}

std::vector<uint32_t> PlannedBuckets::parameters_of(const plan::Operator& op) const {
  std::vector<uint32_t> out;
  if (const plan::Module* module = plan_.tree.find(op.module)) {
    for (const uint32_t parameter : module->parameters) {
      if (place_[parameter].first != kNotReplicated) {
        out.push_back(parameter);
      }
    }
  }
  if (op.kind == plan::OperatorKind::kGemm) {
    std::reverse(out.begin(), out.end());
  }
  return out;
}

std::vector<uint32_t> PlannedBuckets::parameters_of(const Group& group, size_t bucket) {
  std::vector<uint32_t> parameters;
  for (const uint32_t gradient : group.model.buckets()[bucket].gradients) {
    parameters.push_back(group.spec.parameters[gradient]);
  }
  return parameters;
}

std::vector<PlannedBucket> PlannedBuckets::now() const {
  std::vector<PlannedBucket> out;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.model.buckets().size(); ++i) {
      PlannedBucket& bucket = out.emplace_back();
      bucket.name = names_.at(group.first + i);
      bucket.parameters = parameters_of(group, i);
      bucket.bytes = group.model.buckets()[i].bytes;
      bucket.dtype = plan_.tree.parameters[bucket.parameters.front()].dtype;
    }
  }
  return out;
}

void PlannedBuckets::name_buckets(size_t group) {
  Group& g = groups_[group];
  g.first = static_cast<UnitId>(names_.size());
  g.launches.assign(g.model.buckets().size(), 0);
  for (size_t index = 0; index < g.model.buckets().size(); ++index) {
    names_.push_back(bucket_name(plan_, parameters_of(g, index), index,
                                 groups_.size() > 1 ? std::optional(group) : std::nullopt));
  }
}

void PlannedBuckets::begin(bool sync) {
  sync_ = sync;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const bool rebuilt = sync && groups_[group].model.begin();
    if (rebuilt || !named_) {
      name_buckets(group);
    }
  }
  named_ = true;
}

void PlannedBuckets::launch(Group& group, const std::vector<uint32_t>& buckets, ActionList& out) {
  for (const uint32_t index : buckets) {
    const UnitId unit = group.first + index;
    out.push_back(bucket_launch(unit, group.launches[index]++, bucket_group(plan_)));
    out.push_back(bucket_event(Op::kRecord, unit));
  }
}

ActionList PlannedBuckets::ready(uint32_t parameter) {
  ActionList out;
  const auto [group, gradient] = place_.at(parameter);
  if (sync_ && group != kNotReplicated) {
    launch(groups_[group], groups_[group].model.ready(gradient), out);
  }
  return out;
}

ActionList PlannedBuckets::end() {
  ActionList out;
  for (Group& group : groups_) {
    if (!sync_) {
      break;
    }
    launch(group, group.model.end(), out);
    for (UnitId i = 0; i < group.launches.size(); ++i) {
      out.push_back(bucket_event(Op::kHostWait, group.first + i));
    }
  }
  return out;
}

}  // namespace shardlens::schedule
