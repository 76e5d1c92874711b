#include "core/plan/mesh_sizes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "core/mesh/mesh.h"

namespace shardlens::plan {
namespace {

// Axes that have a size in any plan: each divides the work of a step.
struct DividedAxis {
  std::string_view name;
  int64_t MeshSizes::*size;
};
constexpr std::array<DividedAxis, 3> kDividedAxes{{{mesh::kContext, &MeshSizes::context},
                                                   {mesh::kTensor, &MeshSizes::tensor},
                                                   {mesh::kExpert, &MeshSizes::expert}}};

std::optional<int64_t> positive(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end && value >= 1 && value <= kMostRanks
             ? std::optional(value)
             : std::nullopt;
}

}  // namespace

const std::vector<std::string>& mesh_axes() {
  static const std::vector<std::string> kAxes = [] {
    std::vector<std::string> axes{std::string(mesh::kReplicate), std::string(mesh::kShard)};
    for (const DividedAxis& axis : kDividedAxes) {
      axes.emplace_back(axis.name);
    }
    return axes;
  }();
  return kAxes;
}

std::optional<int64_t> size_of_axis(const MeshSizes& mesh, std::string_view axis) {
  const auto* found = std::ranges::find(kDividedAxes, axis, &DividedAxis::name);
  return found != kDividedAxes.end() ? std::optional(mesh.*found->size)
         : axis == mesh::kReplicate  ? mesh.replicate
                                     : mesh.shard;
}

void set_axis(MeshSizes& mesh, std::string_view axis, int64_t size) {
  const auto* found = std::ranges::find(kDividedAxes, axis, &DividedAxis::name);
  if (found != kDividedAxes.end()) {
    mesh.*found->size = size;
  } else {
    (axis == mesh::kReplicate ? mesh.replicate : mesh.shard) = size;
  }
}

std::pair<std::string_view, int64_t> divided_axis(const MeshSizes& mesh) {
  for (const DividedAxis& axis : kDividedAxes) {
    if (mesh.*axis.size > 1) {
      return {axis.name, mesh.*axis.size};
    }
  }
  return {"", 1};
}

MeshSizes with_mesh(MeshSizes mesh, std::string_view text) {
  const auto fail = [&](const std::string& expected) {
    throw UsageError(fmt::format("--mesh '{}': expected {}", text, expected));
  };
  if (text.empty()) {
    return mesh;
  }
  if (text.find('=') == std::string_view::npos) {
    const size_t cross = std::min(text.find('x'), text.size());
    mesh.replicate = positive(text.substr(0, cross));
    mesh.shard = positive(text.substr(std::min(cross + 1, text.size())));
    if (!mesh.replicate || !mesh.shard) {
      fail("RxS, replicas times shards, such as 2x4, or sizes by name, such as shard=4,tensor=2");
    }
    return mesh;
  }
  std::set<std::string> given;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string_view part = text.substr(start, comma - start);
    const size_t equals = std::min(part.find('='), part.size());
    const std::string axis(part.substr(0, equals));
    const auto size = positive(part.substr(std::min(equals + 1, part.size())));
    const std::vector<std::string>& axes = mesh_axes();
    if (std::ranges::find(axes, axis) == axes.end()) {
      fail(fmt::format("one of {}; found '{}'{}", quoted_list(axes), axis, suggestion(axis, axes)));
    }
    if (!size) {
      fail(fmt::format("a size of 1 to {} for '{}'", kMostRanks, axis));
    }
    if (!given.insert(axis).second) {
      fail(fmt::format("one size for '{}'", axis));
    }
    set_axis(mesh, axis, *size);
    start = comma + 1;
  }
  return mesh;
}

}  // namespace shardlens::plan
