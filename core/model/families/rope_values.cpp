#include "core/model/families/rope_values.h"

#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/model/families/config_values.h"

namespace shardlens::plan {
namespace {

void read_llama3(const JsonNode& root, const JsonNode& rope, ModelConfig& config) {
  const auto needed = [&rope](std::string_view key) {
    const JsonNode node = rope.require(key);
    const double value = node.number();
    if (value <= 0) {
      node.fail(fmt::format("expected a number above 0, found {}", node.shown()));
    }
    return value;
  };
  config.rope_factor = needed("factor");
  config.rope_low_freq_factor = needed("low_freq_factor");
  config.rope_high_freq_factor = needed("high_freq_factor");
  // As in transformers, the value next to the rope settings takes precedence over one inside them.
  auto original = root.find("original_max_position_embeddings");
  if (!original) {
    original = rope.find("original_max_position_embeddings");
  }
  config.rope_original_max_positions =
      integer_or(original, config.max_positions, 1, kLargestPositions);
  if (config.rope_high_freq_factor <= config.rope_low_freq_factor) {
    rope.fail(fmt::format("high_freq_factor {} must be above low_freq_factor {}",
                          config.rope_high_freq_factor, config.rope_low_freq_factor));
  }
}

// The member `key` if it is an object that is not empty.
std::optional<JsonNode> settings_of(const JsonNode& parent, std::string_view key) {
  const auto node = parent.find(key);
  if (!node || node->is_null()) {
    return std::nullopt;
  }
  node->expect_object("an object with rope settings");
  return node->json().empty() ? std::nullopt : std::optional(*node);
}

void refuse_partial_rotation(const JsonNode& settings) {
  const auto node = settings.find("partial_rotary_factor");
  if (node && !node->is_null() && node->number() != 1.0) {
    node->fail(fmt::format("expected 1 (rotation of the whole head), found {}", node->shown()));
  }
}

double theta_of(const JsonNode& settings, std::string_view key, double fallback) {
  return number_or(settings, key, fallback, 1.0, 1e15);
}

// The settings of config.rope_type.
void read_scaling(const JsonNode& root, const JsonNode& rope, ModelConfig& config) {
  if (config.rope_type == "linear") {
    const JsonNode factor = rope.require("factor");
    config.rope_factor = factor.number();
    if (config.rope_factor <= 0) {
      factor.fail(fmt::format("expected a number above 0, found {}", factor.shown()));
    }
  } else if (config.rope_type == "llama3") {
    read_llama3(root, rope, config);
  }
}

void read_settings(const JsonNode& root, const JsonNode& rope, ModelConfig& config) {
  refuse_partial_rotation(rope);
  config.rope_theta = theta_of(rope, "rope_theta", config.rope_theta);
  if (const auto type = find_any(rope, {"rope_type", "type"})) {
    config.rope_type = type->string();
  }
  read_scaling(root, rope, config);
}

}  // namespace

// [Note: Rope settings] Up to transformers 4 they are flat: "rope_theta" next to "rope_scaling"
// {"rope_type" (older: "type"), …}. Version 5 writes all of them inside "rope_parameters". As in
// transformers, rope_scaling takes precedence if both are given and not empty, and a rope_theta
// inside the object takes precedence over the flat one.
void read_llama_rope(const JsonNode& root, ModelConfig& config) {
  static const std::vector<std::string> kTypes{"default", "linear",   "dynamic",
                                               "yarn",    "longrope", "llama3"};
  config.rope_theta = theta_of(root, "rope_theta", config.rope_theta);
  refuse_partial_rotation(root);
  auto rope = settings_of(root, "rope_scaling");
  if (!rope) {
    rope = settings_of(root, "rope_parameters");
  }
  if (!rope) {
    return;
  }
  if (const auto type = find_any(*rope, {"rope_type", "type"})) {
    (void)type->one_of(kTypes);
  }
  read_settings(root, *rope, config);
}

// Where layers with a window have an embedding of their own, rope_parameters has one object for
// each kind of layer, and rope_scaling is that of the layers without a window.
void read_rope(const JsonNode& root, double theta, double local_theta, ModelConfig& config) {
  config.rope_theta = theta_of(root, "rope_theta", theta);
  const auto scaling = settings_of(root, "rope_scaling");
  const auto parameters = settings_of(root, "rope_parameters");
  if (local_theta == 0) {
    if (scaling || parameters) {
      read_settings(root, scaling ? *scaling : *parameters, config);
    }
    return;
  }
  config.rope_local_theta = theta_of(root, "rope_local_base_freq", local_theta);
  if (parameters) {
    if (const auto full = settings_of(*parameters, "full_attention")) {
      read_settings(root, *full, config);
    }
    if (const auto local = settings_of(*parameters, "sliding_attention")) {
      static const std::vector<std::string> kLocalTypes{"default"};
      if (const auto type = find_any(*local, {"rope_type", "type"})) {
        (void)type->one_of(kLocalTypes);
      }
      config.rope_local_theta = theta_of(*local, "rope_theta", config.rope_local_theta);
    }
  }
  if (scaling) {
    read_settings(root, *scaling, config);
  }
}

}  // namespace shardlens::plan
