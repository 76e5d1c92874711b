#include "cli/flags/table_flags.h"

#include <algorithm>
#include <span>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace shardlens::cli {

report::By TableFlags::table() const {
  const auto found = std::ranges::find(report::kTables, by);
  if (found == report::kTables.end()) {
    const std::span all(report::kTables);
    throw UsageError(fmt::format("--by: expected {} or {}, found '{}'",
                                 fmt::join(all.first(all.size() - 1), ", "), all.back(), by));
  }
  return static_cast<report::By>(found - report::kTables.begin());
}

std::optional<size_t> TableFlags::rows() const {
  if (top && *top < 1) {
    throw UsageError(fmt::format("--top: expected a number of rows from 1, found {}", *top));
  }
  return top ? std::optional(static_cast<size_t>(*top)) : std::nullopt;
}

void add_table_flags(CLI::App& app, TableFlags& flags) {
  CLI::Option* json =
      app.add_flag("--json", flags.json, "machine-readable output, see shardlens docs metrics");
  app.add_flag("--csv", flags.csv, "print the table of --by as CSV")->excludes(json);
  app.add_option("--by", flags.by,
                 "the table to print; span: each collective, copy and period of compute; order: "
                 "each step's actions, by unit; group: how long process groups and compute ran at "
                 "the same time")
      ->option_text(fmt::format("{} [unit]", fmt::join(report::kTables, "|")));
  app.add_option("--top", flags.top,
                 "show at most N rows, the most exposed ones; the others are summed up");
  app.add_flag("--each", flags.each, "a row for each unit, also for those of blocks alike");
}

}  // namespace shardlens::cli
