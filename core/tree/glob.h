#pragma once

#include <string>
#include <string_view>

namespace shardlens::plan {

// Glob over dotted FQNs. The component `*` matches exactly one component, `**` any number of them,
// including none; a `*` inside a component matches any characters of it ("layers.1*"). "" matches
// only the root, "**" everything.
[[nodiscard]] bool glob_matches(std::string_view glob, std::string_view fqn);

// Why `glob` is not a valid glob ("" if it is): an empty component, or `**` inside a component.
[[nodiscard]] std::string glob_problem(std::string_view glob);

[[nodiscard]] bool has_wildcard(std::string_view glob);

}  // namespace shardlens::plan
