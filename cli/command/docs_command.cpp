#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "profiler/report/table.h"

#include "cli/command/documents.h"
#include "cli/command/subcommand.h"
#include "cli/flags/parse_flags.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

void print_pages() {
  report::Table table({{"page", report::Align::kLeft}, {"about", report::Align::kLeft}});
  for (const Document& document : documents()) {
    table.row({std::string(document.name), std::string(document.title())});
  }
  write_stdout(table.render(style_of_stdout()) +
               "\nshardlens docs PAGE prints a page, shardlens docs PAGE WORDS its sections with "
               "these words in their headings.\n");
}

ExitCode run(std::string name, const std::vector<std::string>& words) {
  if (name.empty()) {
    print_pages();
    return ExitCode::kOk;
  }
  std::replace(name.begin(), name.end(), '-', '_');
  std::vector<std::string> names;
  for (const Document& document : documents()) {
    names.emplace_back(document.name);
    std::string shown(document.name);
    std::replace(shown.begin(), shown.end(), '-', '_');
    if (shown != name) {
      continue;
    }
    const std::string section = fmt::format("{}", fmt::join(words, " "));
    const std::string text =
        words.empty() ? std::string(document.text) : sections_about(document.text, section);
    if (text.empty()) {
      throw UsageError(
          show("docs: no heading of {} contains '{}'; shardlens docs {} | grep '^#' "
               "lists them",
               document.name, section, document.name));
    }
    write_data(without_links(text));
    return ExitCode::kOk;
  }
  throw UsageError(
      show("docs: there is no page '{}'{}\nrun 'shardlens docs' for a list of the pages", name,
           did_you_mean(name, names)));
}

}  // namespace

Action add_docs_command(CLI::App& app) {
  struct Options {
    std::string page;
    std::vector<std::string> words;
  };
  auto options = std::make_shared<Options>();
  app.add_option("page", options->page, "the page to print [a list of the pages]")
      ->option_text("PAGE");
  app.add_option("words", options->words,
                 "only the sections whose headings contain these words, in any case")
      ->option_text("WORDS");
  return [options] { return run(options->page, options->words); };
}

}  // namespace shardlens::cli
