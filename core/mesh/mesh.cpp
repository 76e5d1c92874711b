#include "core/mesh/mesh.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace shardlens::mesh {

std::vector<int64_t> Group::members(int64_t rank) const {
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    out.push_back(first(rank) + i * stride);
  }
  return out;
}

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {
  for (auto axis = axes_.begin(); axis != axes_.end(); ++axis) {
    SHARDLENS_CHECK(axis->size >= 1, "an axis of a mesh has no ranks");
    SHARDLENS_CHECK(
        std::find_if(axes_.begin(), axis,
                     [&](const Axis& other) { return other.name == axis->name; }) == axis,
        "two axes of a mesh have the same name");
  }
}

int64_t Mesh::ranks() const {
  int64_t out = 1;
  for (const Axis& axis : axes_) {
    out *= axis.size;
  }
  return out;
}

int64_t Mesh::size(std::string_view axis) const {
  const auto found = std::ranges::find(axes_, axis, &Axis::name);
  return found == axes_.end() ? 1 : found->size;
}

Group Mesh::group(std::string_view axis) const {
  return std::ranges::find(axes_, axis, &Axis::name) == axes_.end()
             ? Group{.name = std::string(axis)}
             : group(axis, axis, std::string(axis));
}

Group Mesh::group(std::string_view first, std::string_view last, std::string name) const {
  const auto from = std::ranges::find(axes_, first, &Axis::name);
  const auto to =
      std::find_if(from, axes_.end(), [last](const Axis& axis) { return axis.name == last; });
  SHARDLENS_CHECK(to != axes_.end(), "the mesh has no such axes");
  Group out{.name = std::move(name)};
  for (auto axis = from; axis <= to; ++axis) {
    out.size *= axis->size;
  }
  for (auto axis = to + 1; axis != axes_.end(); ++axis) {
    out.stride *= axis->size;
  }
  return out;
}

std::vector<std::string> names_of(std::span<const Group> groups) {
  std::vector<std::string> out;
  for (const Group& group : groups) {
    out.push_back(group.name);
  }
  return out;
}

Group part_of(const Group& whole, int64_t size, std::string name) {
  SHARDLENS_CHECK(size >= 1 && whole.size % size == 0, "a group cannot be divided so");
  return {.name = std::move(name), .size = size, .stride = whole.stride};
}

}  // namespace shardlens::mesh
