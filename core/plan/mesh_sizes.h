#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardlens::plan {

inline constexpr int64_t kMostRanks = 65536;  // largest world size of a plan

// The sizes of a plan's mesh, outermost axis first; `expert` divides the same ranks another way.
struct MeshSizes {
  std::optional<int64_t> replicate, shard;  // nullopt: what the world size leaves
  int64_t context = 1, tensor = 1, expert = 1;
  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;
};

// "replicate", "shard", …: the keys of "mesh", in the order of the axes.
[[nodiscard]] const std::vector<std::string>& mesh_axes();
// nullopt: not set. `axis` must be one of mesh_axes(), also for set_axis().
[[nodiscard]] std::optional<int64_t> size_of_axis(const MeshSizes& mesh, std::string_view axis);
void set_axis(MeshSizes& mesh, std::string_view axis, int64_t size);

// The first axis along which the work of a step is divided, not only parameters and data, and its
// size; "" if all of them have size 1.
[[nodiscard]] std::pair<std::string_view, int64_t> divided_axis(const MeshSizes& mesh);

// `mesh` with the sizes that the text of --mesh gives: "RxS", or by name, "shard=4,tensor=2"; "":
// none. Errors: UsageError.
[[nodiscard]] MeshSizes with_mesh(MeshSizes mesh, std::string_view text);

}  // namespace shardlens::plan
