#pragma once

#include <string>
#include <string_view>

namespace shardlens::plan {

// Glob over dotted FQNs. A component `*` stands for exactly one component, `**` for any number of
// them, none included; a `*` within a component stands for any characters of it ("layers.1*"). ""
// matches the root alone, "**" everything.
[[nodiscard]] bool glob_matches(std::string_view glob, std::string_view fqn);

// Why `glob` cannot be one ("" if it can): an empty component, or `**` within a component.
[[nodiscard]] std::string glob_problem(std::string_view glob);

[[nodiscard]] bool has_wildcard(std::string_view glob);

}  // namespace shardlens::plan
