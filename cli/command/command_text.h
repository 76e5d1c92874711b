#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command/subcommand.h"

namespace shardlens::cli {

// A flag or a positional argument, as completions of shells and manual pages describe it.
struct ArgumentInfo {
  std::vector<std::string> names;  // "-h", "--help"; empty for a positional argument
  std::string value;               // as the help shows it: "FILE", "cpu|cuda [cpu]"; "": none
  std::string help;
  std::vector<std::string> choices;        // words that the value can be; empty: any
  bool is_file = false;                    // the value may be the name of a file or directory
  bool required = false, several = false;  // of a positional argument
};

struct ExampleInfo {
  std::string command, says;  // a whole command line, and what it is for
};

struct CommandInfo {
  std::string name, help;
  std::vector<ArgumentInfo> arguments;
  std::vector<ExampleInfo> examples;
};

// The table as its subcommands declare themselves to CLI11.
[[nodiscard]] std::vector<CommandInfo> describe(std::span<const Subcommand> table);
[[nodiscard]] CommandInfo describe(const Subcommand& subcommand);
[[nodiscard]] std::vector<ExampleInfo> examples_of(std::string_view subcommand);

inline constexpr const char* kHelpOfHelp = "print this help";  // of the flag --help

// The text of --help, in lines of at most `terminal_width` columns, where words are no longer.
[[nodiscard]] std::string help_text(const CommandInfo& command, size_t terminal_width);
// The same of the program: its subcommands.
[[nodiscard]] std::string help_text(std::span<const Subcommand> table, size_t terminal_width);

// The words that complete a command line, for each shell the text of its completion file. Names of
// files are completed where a value may be one.
[[nodiscard]] std::string bash_completion(const std::vector<CommandInfo>& commands);
[[nodiscard]] std::string zsh_completion(const std::vector<CommandInfo>& commands);
[[nodiscard]] std::string fish_completion(const std::vector<CommandInfo>& commands);

// Manual pages in man(7) of section 1: of the program, and of one subcommand. They contain no date.
[[nodiscard]] std::string program_page(const std::vector<CommandInfo>& commands);
[[nodiscard]] std::string command_page(const CommandInfo& command);

}  // namespace shardlens::cli
