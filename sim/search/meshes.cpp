#include "sim/search/meshes.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/divisors.h"
#include "core/base/error.h"
#include "core/edits/plan_values.h"
#include "core/mesh/mesh.h"
#include "sim/search/candidates.h"

namespace shardlens::sim {
namespace {

// The divisors of `of` that a space allows.
std::vector<int64_t> allowed(const std::vector<int64_t>& sizes, int64_t of) {
  std::vector<int64_t> out = divisors(of);
  if (!sizes.empty()) {
    std::erase_if(out, [&sizes](int64_t size) { return std::ranges::count(sizes, size) == 0; });
  }
  return out;
}

}  // namespace

std::vector<plan::MeshSizes> data_parallel_meshes(int64_t ranks) {
  return meshes(ranks, MeshSpace{}, false);
}

std::vector<plan::MeshSizes> meshes(int64_t ranks, const MeshSpace& space, bool experts) {
  if (space.only) {
    return {*space.only};
  }
  std::vector<plan::MeshSizes> out;
  for (const int64_t context : allowed(space.context, ranks)) {
    for (const int64_t tensor : allowed(space.tensor, ranks / context)) {
      const int64_t data = ranks / (context * tensor);
      for (const int64_t shard : divisors(data)) {
        for (const int64_t expert :
             experts ? allowed(space.expert, shard * context * tensor) : std::vector<int64_t>{1}) {
          out.push_back({data / shard, shard, context, tensor, expert});
        }
      }
    }
  }
  std::stable_partition(out.begin(), out.end(), [](const plan::MeshSizes& mesh) {
    return plan::divided_axis(mesh).second == 1;
  });
  return out;
}

int64_t data_parallel_ranks(int64_t ranks, const plan::MeshSizes& mesh) {
  return ranks / (mesh.context * mesh.tensor);
}

int64_t samples_of_step(const Scenario& scenario) {
  return scenario.step.samples() * data_parallel_ranks(scenario.world_size, scenario.plan.mesh);
}

std::optional<std::string> refusal_of_mesh(const Scenario& scenario) {
  if (scenario.model->run() != nullptr && plan::divided_axis(scenario.plan.mesh).second > 1) {
    return "operators of a recorded run are simulated as the run divided them";
  }
  try {
    const plan::ResolvedPlan plan = scenario.model->resolve(scenario.plan, scenario.world_size);
    (void)scenario.model->workload(plan, scenario.step);
    return std::nullopt;
  } catch (const InputError& error) {
    // Where a key of the mesh is in the plan says nothing: the search chose it.
    const std::string why = error.what();
    const size_t end = why.find(": ");
    const bool of_mesh =
        why.starts_with(scenario.plan.source + "#/mesh/") && end != std::string::npos;
    return of_mesh ? why.substr(end + 2) : why;
  }
}

std::vector<std::string> not_tried(const Scenario& scenario, const MeshSpace& space) {
  std::vector<std::string> out;
  if (space.only) {
    return {"other meshes than " + name_of(*space.only)};
  }
  const std::pair<std::string_view, const std::vector<int64_t>&> axes[] = {
      {mesh::kContext, space.context},
      {mesh::kTensor, space.tensor},
      {mesh::kExpert, space.expert}};
  const plan::ModelConfig* config = scenario.model->config();
  const bool experts = config != nullptr && config->experts.count > 0;
  for (const auto& [axis, sizes] : axes) {
    if (!sizes.empty() && (axis != mesh::kExpert || experts)) {
      out.push_back(fmt::format("sizes of {} other than {}", axis, fmt::join(sizes, ", ")));
    }
  }
  const bool recorded = scenario.model->run() != nullptr;
  const auto divides = [recorded](const std::vector<int64_t>& sizes) {
    return !recorded &&
           (sizes.empty() || std::ranges::any_of(sizes, [](int64_t size) { return size > 1; }));
  };
  if (divides(space.tensor)) {
    out.push_back(fmt::format("tensor with sequence_parallel {} or loss_parallel {}",
                              !scenario.plan.sequence_parallel, !scenario.plan.loss_parallel));
  }
  if (divides(space.context)) {
    out.push_back(fmt::format(
        "context by the method {}",
        scenario.plan.context_method == plan::ContextMethod::kRing ? "all_gather" : "ring"));
  }
  return out;
}

std::string name_of(const plan::MeshSizes& mesh) {
  if (plan::divided_axis(mesh).second == 1) {
    return plan::mesh_label(mesh.replicate.value_or(1), mesh.shard.value_or(1));
  }
  std::string out;
  for (const std::string& axis : plan::mesh_axes()) {
    const int64_t size = plan::size_of_axis(mesh, axis).value_or(1);
    if (size > 1) {
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", axis, size);
    }
  }
  return out;
}

}  // namespace shardlens::sim
