#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/plan/plan.h"
#include "profiler/analysis/summary/summary_file.h"
#include "profiler/analysis/summary/summary_merge.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/json_pieces.h"

#include "cli/command/subcommand.h"
#include "cli/flags/table_flags.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

struct MergeOptions {
  std::vector<std::filesystem::path> paths;
  TableFlags table;
};

// Drops what the table of `by` does not need from a rank, as a run of many ranks would keep it for
// each.
void drop_what_is_not_shown(analysis::RankAnalysis& rank, report::By by) {
  if (by != report::By::kSpan) {
    rank.detail.reset();
  }
  if (by != report::By::kOrder) {
    rank.observed = {};
    rank.unit_names = {};
  }
  for (analysis::MemoryFigures& memory : rank.memory) {
    memory.timeline = {};
  }
}

ExitCode run(const MergeOptions& options) {
  const report::By by = options.table.table();
  const auto top = options.table.rows();
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& path : options.paths) {
    const auto found = analysis::summary_paths(path);
    files.insert(files.end(), found.begin(), found.end());
  }
  if (files.size() > static_cast<size_t>(plan::kMostRanks)) {
    throw UsageError(fmt::format("merge: {} summaries, expected those of at most {} ranks",
                                 files.size(), plan::kMostRanks));
  }
  if (options.table.json) {
    report::JsonPieces pieces;
    const analysis::Analysis rest =
        analysis::merge_summaries(files, [&](analysis::RankAnalysis&& rank) {
          if (by != report::By::kSpan) {
            rank.detail.reset();
          }
          write_data(pieces.rank(rank));
        });
    write_data(pieces.end(rest));
    return ExitCode::kOk;
  }
  std::vector<analysis::RankAnalysis> ranks;
  std::string heading;  // of the table of CSV
  analysis::Analysis result = analysis::merge_summaries(files, [&](analysis::RankAnalysis&& rank) {
    if (options.table.csv) {
      analysis::Analysis one;
      one.ranks.push_back(std::move(rank));
      const std::string table = report::analysis_csv(one, by);
      write_data(std::string_view(table).substr(heading.size()));
      heading = table.substr(0, table.find('\n') + 1);
      return;
    }
    drop_what_is_not_shown(rank, by);
    ranks.push_back(std::move(rank));
  });
  if (!options.table.csv) {
    result.ranks = std::move(ranks);
    write_stdout(report::analysis_text(
        result, {by, top, options.table.each, std::nullopt, style_of_stdout()}));
  }
  return ExitCode::kOk;
}

// Flags of analyze that summaries cannot answer: hidden here, and refused with the reason.
void refuse(CLI::App& app, const std::string& flag, bool has_value, const std::string& instead) {
  const auto fail = [flag, instead] { throw UsageError(fmt::format("{}: {}", flag, instead)); };
  CLI::Option* option =
      has_value ? app.add_option_function<std::string>(flag, [fail](const std::string&) { fail(); })
                : app.add_flag_function(flag, [fail](int64_t) { fail(); });
  option->group("");
}

}  // namespace

Action add_merge_command(CLI::App& app) {
  auto options = std::make_shared<MergeOptions>();
  app.add_option("paths", options->paths,
                 "summaries of all ranks of one run, or directories of these; `shardlens analyze "
                 "--summarize` writes them")
      ->required();
  add_table_flags(app, options->table);
  const std::string absent = "not in summaries; `shardlens analyze` finds it in the traces";
  refuse(app, "--critical-path", false, absent);
  refuse(app, "--explain", true, absent);
  refuse(app, "--compat", true, absent);
  for (const char* flag : {"--steps", "--comm-regex", "--device"}) {
    refuse(app, flag, true, "chosen with `shardlens analyze --summarize`, for all ranks alike");
  }
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
