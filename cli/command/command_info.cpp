#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "core/plan/plan.h"
#include "sim/hardware/hardware_spec.h"

#include "cli/command/command_text.h"

namespace shardlens::cli {
namespace {

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

std::vector<std::string> choices_of(const ArgumentInfo& argument) {
  const auto is = [&](std::string_view name) {
    return std::find(argument.names.begin(), argument.names.end(), name) != argument.names.end();
  };
  if (is("--strategy")) {
    return plan::strategy_names();
  }
  if (is("--hardware")) {
    return sim::hardware_names();
  }
  if (is("--metric")) {
    return {"structure", "step_time", "exposed_comm"};
  }
  return words_of(argument.value);
}

// What the help writes for values that are no files.
bool may_be_file(const ArgumentInfo& argument) {
  constexpr std::array<std::string_view, 21> kOther{"INT",      "UINT",     "FLOAT",
                                                    "N",        "W",        "RxS",
                                                    "SKEW",     "BYTES",    "UNIT",
                                                    "R:FACTOR", "FROM..TO", "NAME",
                                                    "WxH",      "FLAGS",    "IMPL",
                                                    "S",        "A:B",      "NAME[:LIMIT]",
                                                    "SHELL",    "NEED",     "FLOAT:NONNEGATIVE"};
  const std::string_view value = argument.value;
  const std::string_view word = value.substr(0, value.find(' '));
  const bool has_other_name =
      std::any_of(argument.names.begin(), argument.names.end(), [](const std::string& name) {
        return name == "--steps" || name == "--comm-regex" || name == "--mesh" || name == "--by" ||
               name == "--categories" || name == "--compat";
      });
  return !word.empty() && !has_other_name &&
         std::find(kOther.begin(), kOther.end(), word) == kOther.end() &&
         word.find('|') == std::string_view::npos;
}

ArgumentInfo info_of(const CLI::Option& option) {
  ArgumentInfo out;
  if (!option.get_positional()) {
    for (const std::string& name : option.get_snames()) {
      out.names.push_back("-" + name);
    }
    for (const std::string& name : option.get_lnames()) {
      out.names.push_back("--" + name);
    }
  }
  out.value = option.get_positional() ? option.get_name() : value_of(option);
  out.help = option.get_description();
  out.choices = option.get_positional() ? words_of(value_of(option)) : choices_of(out);
  out.is_file = may_be_file(out) && out.choices.size() < 2;
  if (!out.choices.empty() && option.get_positional()) {
    out.value = value_of(option);
  }
  // A spec may also be a file.
  out.is_file =
      out.is_file || std::find(out.names.begin(), out.names.end(), "--hardware") != out.names.end();
  return out;
}

}  // namespace

std::vector<CommandInfo> describe(std::span<const Subcommand> table) {
  std::vector<CommandInfo> out;
  for (const Subcommand& each : table) {
    CommandInfo command{std::string(each.name), std::string(each.help), {}};
    CLI::App app(command.help, "shardlens " + command.name);
    (void)each.add(app);
    for (const CLI::Option* option : app.get_options()) {
      command.arguments.push_back(info_of(*option));
    }
    out.push_back(std::move(command));
  }
  return out;
}

}  // namespace shardlens::cli
