#include "cli/flags/parse_flags.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include <CLI/App.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/base/show.h"

namespace shardlens::cli {
namespace {

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      out.push_back("--" + name);
    }
  }
  return out;
}

void reject_unknown_flags(const CLI::App& command,
                          std::string_view name,
                          const std::vector<std::string>& arguments) {
  const std::vector<std::string> valid = flags_of(command);
  for (const std::string& argument : arguments) {
    if (argument == "--") {
      return;
    }
    const std::string flag = argument.substr(0, argument.find('='));
    if (argument.starts_with("--") && std::find(valid.begin(), valid.end(), flag) == valid.end()) {
      throw UsageError(show("{}: unknown flag '{}'{}\nrun '{} --help' for its flags", name, flag,
                            did_you_mean(flag, valid), command.get_name()));
    }
  }
}

// CLI11 turns a number that does not fit into the nearest one that does, and -1 into the largest
// unsigned one.
void reject_numbers_that_do_not_fit(const CLI::App& command, std::string_view name) {
  for (const CLI::Option* option : command.get_options()) {
    const bool is_unsigned = option->get_type_name() == "UINT";
    if (!is_unsigned && option->get_type_name() != "INT") {
      continue;
    }
    for (const std::string& text : option->results()) {
      errno = 0;
      if (is_unsigned) {
        (void)std::strtoull(text.c_str(), nullptr, 0);
      } else {
        (void)std::strtoll(text.c_str(), nullptr, 0);
      }
      if (errno == ERANGE || (is_unsigned && text.find('-') != std::string::npos)) {
        throw UsageError(fmt::format("{}: {} {}: expected a whole number from {}", name,
                                     option->get_name(), text,
                                     is_unsigned ? "0 to 2^64 - 1" : "-2^63 to 2^63 - 1"));
      }
    }
  }
}

// What the flag takes, from its type or from the choices in its help ("fp32|bf16|fp16 [fp32]").
std::string expected_by(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "INT" || type == "UINT") {
    return "a whole number";
  }
  if (type == "FLOAT") {
    return "a number";
  }
  std::string choices = option.get_option_text().substr(0, option.get_option_text().find(' '));
  for (size_t at = choices.rfind('|'); at != std::string::npos; at = choices.rfind('|', at)) {
    choices.replace(at, 1, choices.find(" or ") == std::string::npos ? " or " : ", ");
  }
  return choices;
}

// CLI11's texts name a flag's value in one of two ways, with its own notation for types.
std::string explained(const CLI::App& command, const CLI::ParseError& error) {
  const std::string text = error.what();
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& value : option->results()) {
      const std::string name = option->get_name();
      if ((text.starts_with("Could not convert: " + name + " = ") ||
           text.starts_with(name + ": Check " + value + " ") ||
           text.starts_with(name + ": " + value + " not in {")) &&
          !expected_by(*option).empty()) {
        return option->get_positional()
                   ? fmt::format("expected {}, found '{}'", expected_by(*option), value)
                   : fmt::format("{} {}: expected {}", name, value, expected_by(*option));
      }
    }
    if (text == option->get_name() + " is required" && option->get_positional()) {
      return fmt::format("expected {}: {}", option->get_name(), option->get_description());
    }
    if (text.starts_with(option->get_name() + ": 1 required ") && text.ends_with(" missing")) {
      const std::string expected = expected_by(*option);
      const bool words =
          !expected.empty() && std::islower(static_cast<unsigned char>(expected[0])) != 0;
      return fmt::format("{} needs a value{}", option->get_name(), words ? ": " + expected : "");
    }
  }
  for (const std::string_view start : {"The following argument was not expected: ",
                                       "The following arguments were not expected: "}) {
    if (text.starts_with(start)) {
      return fmt::format("unexpected '{}'", text.substr(start.size()));
    }
  }
  if (const size_t at = text.find(" excludes "); at != std::string::npos) {
    return fmt::format("{} and {} cannot be given together", text.substr(0, at),
                       text.substr(at + std::string_view(" excludes ").size()));
  }
  return text;
}

}  // namespace

std::string did_you_mean(std::string_view seen, const std::vector<std::string>& valid) {
  const std::string nearest = nearest_name(seen, valid);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

bool parse_flags(CLI::App& app, std::string_view name, const std::vector<std::string>& arguments) {
  // CLI11 would first report missing flags, and would not suggest a name for a mistyped flag.
  reject_unknown_flags(app, name, arguments);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11's order
  } catch (const CLI::CallForHelp&) {
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(
        show("{}: {}\nrun '{} --help' for its flags", name, explained(app, error), app.get_name()));
  }
  reject_numbers_that_do_not_fit(app, name);
  return true;
}

}  // namespace shardlens::cli
