#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardlens::cli {

// The possible values of an option, as its help shows them. An argument without a flag has the help
// of its option too.

// As the help shows it: "FILE", "cpu|cuda [cpu]"; "": the option has no value.
[[nodiscard]] std::string value_of(const CLI::Option& option);
// The words that the value can be; empty: any.
[[nodiscard]] std::vector<std::string> choices_of(const CLI::Option& option);
// Whether the value may be the path of a file or directory: of each that the help shows nothing
// else for.
[[nodiscard]] bool may_be_path(const CLI::Option& option);
// Makes "-" mean standard input wherever an argument of `app` may be the path of an input, as
// `arguments` will be parsed. Errors: UsageError if it is there twice.
void read_dash_as_stdin(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace shardlens::cli
