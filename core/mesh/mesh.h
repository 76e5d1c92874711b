#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardlens::mesh {

// Names of the axes of a plan's mesh, outermost first.
inline constexpr std::string_view kReplicate = "replicate";
inline constexpr std::string_view kShard = "shard";
inline constexpr std::string_view kContext = "context";
inline constexpr std::string_view kTensor = "tensor";
// Names of the axes of the experts' mesh, which arranges the ranks of a replica another way.
inline constexpr std::string_view kExpertShard = "expert_shard";
inline constexpr std::string_view kExpert = "expert";

// Identifies a group among those of a plan (plan::ResolvedPlan::groups).
using GroupId = uint8_t;
inline constexpr GroupId kNoGroup = 0xff;

// Process groups of one kind: groups of `size` ranks whose numbers are `stride` apart, which divide
// a world between them, so that each rank is in exactly one. The only definition of who
// communicates with whom.
struct Group {
  std::string name;  // "shard", …
  int64_t size = 1, stride = 1;
  // Has a communicator of its own, even if another group has the same ranks.
  bool separate = false;

  // The lowest rank of the group that `rank` is in.
  [[nodiscard]] int64_t first(int64_t rank) const { return rank - position(rank) * stride; }
  // The position of `rank` in its group, from 0.
  [[nodiscard]] int64_t position(int64_t rank) const { return rank / stride % size; }
  // The ranks of the group that `rank` is in, ascending.
  [[nodiscard]] std::vector<int64_t> members(int64_t rank) const;
  friend bool operator==(const Group&, const Group&) = default;
};

struct Axis {  // one dimension of a mesh
  std::string name;
  int64_t size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

// Ranks arranged along named axes, outermost first; the rank's number varies fastest along the last
// axis, as in torch's DeviceMesh over consecutive ranks.
class Mesh {
 public:
  Mesh() = default;  // one rank
  // Every size is at least 1, and each name occurs once.
  explicit Mesh(std::vector<Axis> axes);

  [[nodiscard]] const std::vector<Axis>& axes() const { return axes_; }
  [[nodiscard]] int64_t ranks() const;
  [[nodiscard]] int64_t size(std::string_view axis) const;  // 1: the mesh has no such axis
  // The groups along an axis; of one rank if the mesh has no such axis.
  [[nodiscard]] Group group(std::string_view axis) const;
  // The groups along all axes from `first` to `last`, which is further inside or the same. The mesh
  // must have both.
  [[nodiscard]] Group group(std::string_view first, std::string_view last, std::string name) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<Axis> axes_;
};

[[nodiscard]] std::vector<std::string> names_of(std::span<const Group> groups);

// The groups of `size` ranks that each group of `whole` consists of: neighbours within it. `size`
// divides whole.size.
[[nodiscard]] Group part_of(const Group& whole, int64_t size, std::string name);

}  // namespace shardlens::mesh
