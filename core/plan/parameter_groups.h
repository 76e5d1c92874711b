#pragma once

#include <string>
#include <string_view>

// Names of the groups of a unit's parameters, in resolved plans, traces and tables. Of two groups
// the dense one has the unit's own name, "layers.0", and that of the experts a label after it.
namespace shardlens::plan {

inline constexpr std::string_view kExpertLabel = " [expert]";

// "layers.0 [expert]" of "layers.0".
[[nodiscard]] inline std::string expert_group_of(std::string_view unit) {
  return std::string(unit) + std::string(kExpertLabel);
}
[[nodiscard]] constexpr bool is_expert_group(std::string_view name) {
  return name.ends_with(kExpertLabel);
}
// "layers.0" of "layers.0 [expert]" and of "layers.0".
[[nodiscard]] constexpr std::string_view unit_of_group(std::string_view name) {
  return is_expert_group(name) ? name.substr(0, name.size() - kExpertLabel.size()) : name;
}

// Whether a parameter of this name is one of experts where a plan does not say which are: one
// component is "experts", as in transformers and torchtitan.
[[nodiscard]] inline bool is_named_expert(std::string_view parameter) {
  const std::string framed = "." + std::string(parameter) + ".";
  return framed.find(".experts.") != std::string::npos;
}

}  // namespace shardlens::plan
