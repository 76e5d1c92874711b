#include "cli/flags/option_values.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "core/base/error.h"
#include "core/plan/plan.h"
#include "sim/hardware/hardware_spec.h"

#include "cli/flags/outputs.h"

namespace shardlens::cli {
namespace {

// "cpu|cuda [cpu]" has the words cpu and cuda.
std::vector<std::string> words_of(std::string_view value) {
  std::vector<std::string> words;
  value = value.substr(0, value.find(' '));
  if (value.find('|') == std::string_view::npos) {
    return words;
  }
  while (!value.empty()) {
    const size_t end = std::min(value.find('|'), value.size());
    words.emplace_back(value.substr(0, end));
    value.remove_prefix(std::min(end + 1, value.size()));
  }
  return words;
}

// The help's names for values that are not files.
bool shows_a_path(std::string_view value) {
  constexpr std::array<std::string_view, 23> kOther{"INT",
                                                    "UINT",
                                                    "FLOAT",
                                                    "N",
                                                    "W",
                                                    "RxS",
                                                    "SKEW",
                                                    "SIZE",
                                                    "UNIT",
                                                    "R:FACTOR",
                                                    "FROM..TO",
                                                    "NAME",
                                                    "WxH",
                                                    "FLAGS",
                                                    "IMPL",
                                                    "S",
                                                    "A:B",
                                                    "NAME[:LIMIT]",
                                                    "SHELL",
                                                    "PAGE",
                                                    "WORDS",
                                                    "NEED",
                                                    "FLOAT:NONNEGATIVE"};
  const std::string_view word = value.substr(0, value.find(' '));
  return !word.empty() && std::find(kOther.begin(), kOther.end(), word) == kOther.end() &&
         word.find('|') == std::string_view::npos;
}

bool has_name(const CLI::Option& option, std::string_view flag) {
  const auto& names = option.get_lnames();
  return std::find(names.begin(), names.end(), flag.substr(2)) != names.end();
}

}  // namespace

std::string value_of(const CLI::Option& option) {
  if (!option.get_option_text().empty()) {
    return option.get_option_text();
  }
  if (option.get_items_expected_max() == 0) {
    return "";
  }
  const std::string standard = option.get_default_str();
  return option.get_type_name() + (standard.empty() ? "" : " [" + standard + "]");
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  if (has_name(option, "--strategy")) {
    return plan::strategy_names();
  }
  if (has_name(option, "--hardware")) {
    return sim::hardware_names();
  }
  if (has_name(option, "--metric")) {
    return {"structure", "step_time", "exposed_comm"};
  }
  return words_of(value_of(option));
}

bool may_be_path(const CLI::Option& option) {
  if (has_name(option, "--hardware")) {
    return true;  // a spec may also be a file
  }
  constexpr std::array<std::string_view, 5> kNoPaths{"--steps", "--comm-regex", "--mesh",
                                                     "--categories", "--compat"};
  return shows_a_path(option.get_positional() && option.get_option_text().empty()
                          ? option.get_name()
                          : value_of(option)) &&
         std::none_of(kNoPaths.begin(), kNoPaths.end(),
                      [&](std::string_view flag) { return has_name(option, flag); }) &&
         choices_of(option).size() < 2;
}

void read_dash_as_stdin(CLI::App& app, const std::vector<std::string>& arguments) {
  for (CLI::Option* option : app.get_options()) {
    if (may_be_path(*option) && option->get_group() != Outputs::kGroup) {
      option->transform(
          [](const std::string& value) { return value == "-" ? "/dev/stdin" : value; });
    }
  }
  const auto is_dash = [](const std::string& argument) {
    return argument == "-" || (argument.starts_with("--") && argument.ends_with("=-"));
  };
  if (std::count_if(arguments.begin(), arguments.end(), is_dash) > 1) {
    throw UsageError("'-' is there twice; standard input can be read once");
  }
}

}  // namespace shardlens::cli
