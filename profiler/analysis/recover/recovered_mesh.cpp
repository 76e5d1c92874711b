#include "profiler/analysis/recover/recovered_mesh.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

namespace shardlens::analysis {
namespace {

using trace::ParallelAxis;

// The distance between the ranks; nullopt: there are fewer than two, or it varies.
std::optional<int64_t> stride_of(const std::vector<int64_t>& ranks) {
  if (ranks.size() < 2) {
    return std::nullopt;
  }
  const int64_t step = ranks[1] - ranks[0];
  for (size_t i = 2; i < ranks.size(); ++i) {
    if (ranks[i] - ranks[i - 1] != step) {
      return std::nullopt;
    }
  }
  return step > 0 ? std::optional(step) : std::nullopt;
}

class MeshFinder {
 public:
  MeshFinder(const trace::Metadata& metadata, const std::vector<UnitRanks>& units, int64_t shard)
      : units_(units) {
    out_.axes = trace::model_axes(metadata.groups);
    for (const trace::ProcessGroup& group : metadata.groups) {
      if (group.description.find("replicate") != std::string::npos) {
        if (const auto stride = stride_of(group.ranks)) {
          replica_stride_ = std::min(replica_stride_.value_or(*stride), *stride);
        }
      }
    }
    out_.world_size =
        trace::ranks_of_plan(metadata.world_size.value_or(std::max<int64_t>(1, shard)), out_.axes);
    out_.expert.assign(units.size(), false);
    const UnitRanks* dense = dense_unit();
    for (const trace::ProcessGroup& group : metadata.groups) {
      // Ranks of a context shard parameters too. If those of the trace do not, the plan has no
      // name for what they do.
      const bool known = dense != nullptr && !dense->members.empty() && !group.ranks.empty();
      if (known && trace::axis_of(group.description) == ParallelAxis::kContext) {
        shards_contexts_ = std::ranges::includes(dense->members, group.ranks);
      }
    }
    out_.shard = dense != nullptr && dense->count > 0 ? dense->count : shard > 0 ? shard : 0;
    if (dense != nullptr) {
      members_ = dense->members;
    }
  }

  RecoveredMesh run() {
    out_.sizes.tensor = tensor();
    int64_t data = out_.world_size / out_.sizes.tensor;
    if (out_.shard <= 0 || data % out_.shard != 0) {
      out_.shard = data;
    }
    if (const int64_t context = ranks_along(ParallelAxis::kContext);
        context > 1 && out_.shard % context == 0 && shards_contexts_) {
      out_.sizes.context = context;
    }
    if (out_.shard != out_.world_size) {
      out_.sizes.replicate = data / out_.shard;
      out_.sizes.shard = out_.shard / out_.sizes.context;
    }
    find_experts(out_.shard * out_.sizes.tensor);
    return std::move(out_);
  }

 private:
  [[nodiscard]] int64_t ranks_along(ParallelAxis axis) const {
    const auto found = std::ranges::find(out_.axes, axis, &trace::ModelAxis::axis);
    return found == out_.axes.end() ? 1 : found->ranks;
  }

  // The root, or the first of the units with as many ranks as most have: experts are in fewer.
  [[nodiscard]] const UnitRanks* dense_unit() const {
    if (!units_.empty() && units_.front().count > 0) {
      return &units_.front();
    }
    std::map<int64_t, int64_t> units;  // by number of ranks
    for (const UnitRanks& each : units_) {
      units[each.count] += each.count > 0 ? 1 : 0;
    }
    const auto most =
        std::ranges::max_element(units, {}, [](const auto& each) { return each.second; });
    if (most == units.end() || most->first == 0) {
      return nullptr;
    }
    return &*std::ranges::find(units_, most->first, &UnitRanks::count);
  }

  [[nodiscard]] int64_t tensor() const {
    const int64_t described = ranks_along(ParallelAxis::kTensor);
    const int64_t stride = stride_of(members_).value_or(1);
    // Some programs have replicas next to each other and shards between them.
    const bool of_replicas = replica_stride_ && *replica_stride_ < stride;
    const int64_t found = described > 1 ? described : of_replicas ? 1 : stride;
    return out_.world_size % (found * std::max<int64_t>(1, out_.shard)) == 0 ? found : 1;
  }

  // `replica`: ranks of one replica.
  void find_experts(int64_t replica) {
    for (size_t i = 0; i < units_.size(); ++i) {
      const UnitRanks& unit = units_[i];
      const bool other = unit.count > 0 && unit.count != out_.shard;
      const bool elsewhere = !unit.members.empty() && !members_.empty() && unit.members != members_;
      if (unit.count <= 0 || (!other && !elsewhere)) {
        continue;
      }
      const int64_t described = ranks_along(ParallelAxis::kExpert);
      const int64_t expert = described > 1               ? described
                             : replica % unit.count == 0 ? replica / unit.count
                                                         : 0;
      if (unit.count * expert != replica ||
          (out_.sizes.expert > 1 && out_.sizes.expert != expert)) {
        trace::add_diagnostic(
            out_.diagnostics, trace::Severity::kWarning,
            fmt::format("'{}' is sharded over {} ranks, and others over {}; the plan has no mesh "
                        "for it",
                        unit.fqn, unit.count, out_.shard));
        continue;
      }
      out_.sizes.expert = expert;
      out_.expert[i] = true;
    }
    if (out_.sizes.expert > 1 && !out_.sizes.shard) {
      out_.sizes.shard = out_.shard / out_.sizes.context;
    }
  }

  const std::vector<UnitRanks>& units_;
  RecoveredMesh out_;
  std::vector<int64_t> members_;  // of the group that shards dense parameters
  std::optional<int64_t> replica_stride_;
  bool shards_contexts_ = true;
};

}  // namespace

RecoveredMesh recover_mesh(const trace::Metadata& metadata,
                           const std::vector<UnitRanks>& units,
                           int64_t shard) {
  return MeshFinder(metadata, units, shard).run();
}

}  // namespace shardlens::analysis
