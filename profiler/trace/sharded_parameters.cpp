#include "profiler/trace/sharded_parameters.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/json/json_values.h"

namespace shardlens::trace {
namespace {

constexpr int64_t kMostNumber = int64_t{1} << 50;

// From 1 to kMostNumber.
std::optional<int64_t> number_at(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  const auto value = found == row.end() ? std::nullopt : plan::integer_of(*found);
  return value && *value >= 1 && *value <= kMostNumber ? value : std::nullopt;
}

bool is_number(std::string_view part) {
  return !part.empty() && std::ranges::all_of(part, [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
}

}  // namespace

std::string block_of_parameter(std::string_view name) {
  size_t begin = 0;
  for (size_t end = name.find('.'); end != std::string_view::npos; end = name.find('.', begin)) {
    if (is_number(name.substr(begin, end - begin))) {
      return std::string(name.substr(0, end));
    }
    begin = end + 1;
  }
  return "";
}

std::vector<ShardedParameter> sharded_parameters_of_run(std::string_view run_json) {
  const nlohmann::json run = nlohmann::json::parse(run_json, nullptr, false);
  const auto rows = run.is_object() ? run.find("program_sharded") : run.end();
  if (!run.is_object() || rows == run.end() || !rows->is_array()) {
    return {};
  }
  std::vector<ShardedParameter> out;
  for (const nlohmann::json& row : *rows) {
    const auto name = row.is_object() ? row.find("name") : row.end();
    const auto elements = row.is_object() ? number_at(row, "elements") : std::nullopt;
    if (!elements || name == row.end() || !name->is_string()) {
      return {};
    }
    ShardedParameter& each = out.emplace_back();
    each.name = name->get<std::string>();
    each.unit = block_of_parameter(each.name);
    each.elements = *elements;
    each.ranks = number_at(row, "ranks").value_or(1);
    each.replicas = number_at(row, "replicas").value_or(1);
    each.trained = row.value("trained", nlohmann::json(true)) != nlohmann::json(false);
  }
  return out;
}

std::vector<ShardedParameter> sharded_parameters_of_plan(const plan::ResolvedPlan& plan) {
  std::vector<std::pair<uint32_t, ShardedParameter>> found;  // with the place in the model
  for (const plan::Unit& unit : plan.units) {
    for (const uint32_t index : unit.parameters) {
      const plan::Parameter& parameter = plan.tree.parameters[index];
      const plan::Placement& placed = plan.placements[index];
      if (unit.api != plan::Api::kFullyShard || unit.expert || placed.group != mesh::kNoGroup ||
          parameter.numel == 0) {
        return {};
      }
      const auto dim = static_cast<size_t>(placed.shard_dim);
      const int64_t size = dim < parameter.shape.size() ? parameter.shape[dim] : 1;
      ShardedParameter each{parameter.fqn, unit.fqn,        0,
                            plan.shards(), plan.replicas(), parameter.requires_grad};
      each.elements = parameter.numel / size * ((size + each.ranks - 1) / each.ranks);
      found.emplace_back(index, std::move(each));
    }
  }
  std::ranges::sort(found, {}, &std::pair<uint32_t, ShardedParameter>::first);
  std::vector<ShardedParameter> out;
  for (auto& [index, each] : found) {
    out.push_back(std::move(each));
  }
  return out;
}

}  // namespace shardlens::trace
