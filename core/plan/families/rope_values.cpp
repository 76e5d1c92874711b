#include "core/plan/families/rope_values.h"

#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/plan/families/config_values.h"

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

}  // namespace

// [Note: Rope settings] Up to transformers 4 they are flat: "rope_theta" next to "rope_scaling"
// {"rope_type" (older: "type"), …}. Version 5 writes all of them inside "rope_parameters". As in
// transformers, rope_scaling takes precedence if both are given and not empty, and a rope_theta
// inside the object takes precedence over the flat one.
void read_llama_rope(const JsonNode& root, ModelConfig& config) {
  static const std::vector<std::string> kTypes{"default", "linear", "llama3"};
  config.rope_theta = number_or(root, "rope_theta", config.rope_theta, 1.0, 1e15);
  if (const auto node = root.find("partial_rotary_factor");
      node && !node->is_null() && node->number() != 1.0) {
    node->fail(fmt::format("expected 1 (rotation of the whole head), found {}", node->shown()));
  }
  std::optional<JsonNode> rope;
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    auto node = root.find(key);
    if (node && !node->is_null()) {
      node->expect_object("an object with rope settings");
      if (!node->json().empty()) {
        rope = node;
        break;
      }
    }
  }
  if (!rope) {
    return;
  }
  if (const auto node = rope->find("partial_rotary_factor");
      node && !node->is_null() && node->number() != 1.0) {
    node->fail(fmt::format("expected 1 (rotation of the whole head), found {}", node->shown()));
  }
  config.rope_theta = number_or(*rope, "rope_theta", config.rope_theta, 1.0, 1e15);
  if (const auto type = find_any(*rope, {"rope_type", "type"})) {
    config.rope_type = kTypes[type->one_of(kTypes)];
  }
  if (config.rope_type == "linear") {
    const JsonNode factor = rope->require("factor");
    config.rope_factor = factor.number();
    if (config.rope_factor <= 0) {
      factor.fail(fmt::format("expected a number above 0, found {}", factor.shown()));
    }
  } else if (config.rope_type == "llama3") {
    read_llama3(root, *rope, config);
  }
}

}  // namespace shardlens::plan
