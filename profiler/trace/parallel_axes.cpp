#include "profiler/trace/parallel_axes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shardlens::trace {
namespace {

using Json = nlohmann::json;

struct AxisWord {
  std::string_view word;
  ParallelAxis axis;
};

// Words of descriptions, in the order in which they decide: "ep_shard" and "dp_shard_cp" are the
// ranks over which FSDP shards, so a word of data parallelism comes before the others.
//
// Source  dimension names of torchtitan's and DeviceMesh's examples; Megatron-LM's
// parallel_state.py
//         ("TENSOR_MODEL_PARALLEL_GROUP").
constexpr std::array<AxisWord, 27> kAxisWords{{
    {"dp", ParallelAxis::kData},           {"data", ParallelAxis::kData},
    {"fsdp", ParallelAxis::kData},         {"efsdp", ParallelAxis::kData},
    {"hsdp", ParallelAxis::kData},         {"ddp", ParallelAxis::kData},
    {"edp", ParallelAxis::kData},          {"shard", ParallelAxis::kData},
    {"replicate", ParallelAxis::kData},    {"batch", ParallelAxis::kData},
    {"loss", ParallelAxis::kData},         {"world", ParallelAxis::kData},
    {"tp", ParallelAxis::kTensor},         {"etp", ParallelAxis::kTensor},
    {"tensor", ParallelAxis::kTensor},     {"cp", ParallelAxis::kContext},
    {"context", ParallelAxis::kContext},   {"sp", ParallelAxis::kContext},
    {"sequence", ParallelAxis::kContext},  {"ulysses", ParallelAxis::kContext},
    {"ring", ParallelAxis::kContext},      {"ep", ParallelAxis::kExpert},
    {"expert", ParallelAxis::kExpert},     {"experts", ParallelAxis::kExpert},
    {"moe", ParallelAxis::kExpert},        {"pp", ParallelAxis::kPipeline},
    {"pipeline", ParallelAxis::kPipeline},
}};

std::vector<std::string> words_in(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) == 0) {
      words.emplace_back();
    } else {
      words.back() += static_cast<char>(std::tolower(byte));
    }
  }
  return words;
}

Json parsed_object(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? json : Json::object();
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string_view name_of(ParallelAxis axis) {
  constexpr std::array<std::string_view, 5> kNames{"data", "tensor", "context", "expert",
                                                   "pipeline"};
  return kNames[static_cast<size_t>(axis)];
}

std::optional<ParallelAxis> axis_of(std::string_view description) {
  const std::vector<std::string> words = words_in(description);
  for (const AxisWord& each : kAxisWords) {
    if (std::find(words.begin(), words.end(), each.word) != words.end()) {
      return each.axis;
    }
  }
  return std::nullopt;
}

std::vector<ModelAxis> model_axes(const std::vector<ProcessGroup>& groups) {
  std::vector<ModelAxis> out;
  for (const ProcessGroup& group : groups) {
    const auto axis = axis_of(group.description);
    const int64_t ranks = std::max(group.size, static_cast<int64_t>(group.ranks.size()));
    if (!axis || axis == ParallelAxis::kData || ranks < 2) {
      continue;
    }
    const auto known = std::find_if(out.begin(), out.end(),
                                    [&](const ModelAxis& each) { return each.axis == axis; });
    if (known == out.end()) {
      out.push_back({*axis, group.description, ranks});
    } else if (ranks > known->ranks) {
      *known = {*axis, group.description, ranks};
    }
  }
  return out;
}

std::string words_of(const std::vector<ModelAxis>& axes) {
  std::string out;
  for (const ModelAxis& each : axes) {
    out += fmt::format("{}{} parallelism over {} ranks (process group {})",
                       out.empty() ? "" : " and ", name_of(each.axis), each.ranks, each.group);
  }
  return out;
}

std::vector<ProcessGroup> groups_of_run(std::string_view run_json) {
  const Json json = parsed_object(run_json);
  std::vector<ProcessGroup> out;
  const auto groups = json.find("groups");
  if (groups == json.end() || !groups->is_array()) {
    return out;
  }
  for (const Json& each : *groups) {
    if (!each.is_object()) {
      continue;
    }
    ProcessGroup group;
    group.name = text_of(each, "id");
    group.description = text_of(each, "description");
    if (const auto ranks = each.find("ranks"); ranks != each.end() && ranks->is_array()) {
      for (const Json& rank : *ranks) {
        if (rank.is_number_integer()) {
          group.ranks.push_back(rank.get<int64_t>());
        }
      }
    }
    group.size = static_cast<int64_t>(group.ranks.size());
    out.push_back(std::move(group));
  }
  return out;
}

void add_tensor_axis(plan::Plan& plan,
                     const std::vector<ProcessGroup>& groups,
                     std::string_view run_json) {
  for (const ModelAxis& each : model_axes(groups)) {
    if (each.axis == ParallelAxis::kTensor && plan.mesh.tensor == 1) {
      plan.mesh.tensor = each.ranks;
      if (text_of(parsed_object(run_json), "shapes") == "local") {
        plan.tensor_parallel = {{"**", {plan::TensorStyle::Kind::kReplicate}}};
      }
    }
  }
}

int64_t ranks_of_plan(int64_t world_size, const std::vector<ModelAxis>& axes) {
  int64_t out = world_size;
  for (const ModelAxis& each : axes) {
    out = each.axis == ParallelAxis::kPipeline && out % each.ranks == 0 ? out / each.ranks : out;
  }
  return out;
}

std::vector<std::string> notes_of_run(std::string_view run_json) {
  const Json json = parsed_object(run_json);
  std::vector<std::string> out;
  const auto notes = json.find("notes");
  if (notes != json.end() && notes->is_array()) {
    for (const Json& note : *notes) {
      if (note.is_string()) {
        out.push_back(note.get<std::string>());
      }
    }
  }
  return out;
}

}  // namespace shardlens::trace
