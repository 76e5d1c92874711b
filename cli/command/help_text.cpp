#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command/command_text.h"

namespace shardlens::cli {
namespace {

constexpr size_t kColumn = 34;     // where the help of a flag begins
constexpr size_t kNarrowest = 60;  // less would leave no room for words
constexpr size_t kNames = 14;      // where the help of a subcommand begins

// Columns of UTF-8 text without wide characters.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// The words of `text` in lines of at most `width` columns, the later ones indented.
std::string wrapped(std::string_view text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  bool first = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!first && column + 1 + columns_of(word) > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
      first = true;
    }
    out += first ? "" : " ";
    out += word;
    column += columns_of(word) + (first ? 0 : 1);
    first = false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

// "  --plan FILE      also simulate …"; a long name has its help on the next line.
std::string entry(const std::string& name, const std::string& help, size_t width) {
  const std::string head = "  " + name;
  const size_t columns = columns_of(head);
  const bool fits = columns + 2 <= kColumn;
  return head + (fits ? std::string(kColumn - columns, ' ') : "\n" + std::string(kColumn, ' ')) +
         wrapped(help, kColumn, width) + "\n";
}

}  // namespace

std::string help_text(const CommandInfo& command, size_t terminal_width) {
  const size_t width = std::max(kNarrowest, terminal_width);
  std::string usage = "Usage: shardlens " + command.name + " [FLAGS]", arguments, flags, examples;
  for (const ArgumentInfo& argument : command.arguments) {
    if (argument.names.empty()) {
      const std::string value = argument.value + (argument.several ? "..." : "");
      usage += argument.required ? " " + value : " [" + value + "]";
      arguments += entry(argument.value, argument.help, width);
      continue;
    }
    const std::string value = argument.value.empty() ? "" : " " + argument.value;
    flags +=
        entry(fmt::format("{}{}", fmt::join(argument.names, ","), value), argument.help, width);
  }
  for (const ExampleInfo& example : command.examples) {
    examples += fmt::format("  {}\n      {}\n", example.command, wrapped(example.says, 6, width));
  }
  return fmt::format("{}\n\n{}\n\n{}Flags:\n{}\nExamples:\n{}", wrapped(command.help, 0, width),
                     wrapped(usage, 0, width),
                     arguments.empty() ? "" : "Arguments:\n" + arguments + "\n", flags, examples);
}

std::string help_text(std::span<const Subcommand> table, size_t terminal_width) {
  const size_t width = std::max(kNarrowest, terminal_width);
  std::string out = wrapped(
      "Shardlens shows which rank owns which bytes, when each collective runs, how much of it "
      "overlaps with compute, and predicts what another sharding plan would change.",
      0, width);
  out += "\n\nUsage: shardlens SUBCOMMAND [FLAGS]\n\nSubcommands:\n";
  for (const Subcommand& each : table) {
    const std::string head = fmt::format("  {}", each.name);
    out += head + std::string(kNames - head.size(), ' ') + wrapped(each.help, kNames, width) + "\n";
  }
  out += "\nExamples:\n";
  for (const std::string_view line :
       {"shardlens capture --model llama --tokens text.txt --out run", "shardlens analyze run",
        "shardlens simulate --model llama --hardware 8xH100", "shardlens docs"}) {
    out += fmt::format("  {}\n", line);
  }
  return out + "\n" +
         wrapped(
             "shardlens SUBCOMMAND --help describes its flags and has examples; shardlens docs "
             "lists the pages of the documentation; --version [--json] prints the version.",
             0, width) +
         "\n";
}

}  // namespace shardlens::cli
