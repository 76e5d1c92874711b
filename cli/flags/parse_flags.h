#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace shardlens::cli {

// "; did you mean 'x'?" for the name of `valid` that is nearest to `seen`, "" where none is near.
[[nodiscard]] std::string did_you_mean(std::string_view seen,
                                       const std::vector<std::string>& valid);

// Parses `arguments` into the variables of `app`'s flags; false if they contain --help. Messages
// begin with `name` and point to the help of the program that `app` is named after.
// Errors: UsageError.
[[nodiscard]] bool parse_flags(CLI::App& app,
                               std::string_view name,
                               const std::vector<std::string>& arguments);

}  // namespace shardlens::cli
