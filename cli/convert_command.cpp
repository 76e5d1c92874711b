#include "cli/convert_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "profiler/trace/filter.h"
#include "profiler/trace/kineto_writer.h"
#include "profiler/trace/run.h"

#include "cli/step_range.h"

namespace shardlens::cli {
namespace {

struct ConvertOptions {
  std::filesystem::path in, out;
  std::string steps;
  std::vector<int64_t> ranks;
  std::vector<std::string> categories;
};

bool is_trace_file_name(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".json") || name.ends_with(".json.gz");
}

void choose_ranks(trace::Run& run, const std::vector<int64_t>& ranks) {
  for (const int64_t rank : ranks) {
    const bool there = std::any_of(run.traces.begin(), run.traces.end(),
                                   [&](const auto& t) { return t.metadata.rank == rank; });
    if (!there) {
      throw InputError(run.source, fmt::format("has no trace of rank {}", rank));
    }
  }
  if (!ranks.empty()) {
    std::erase_if(run.traces, [&](const trace::Trace& t) {
      return std::find(ranks.begin(), ranks.end(), *t.metadata.rank) == ranks.end();
    });
  }
}

std::filesystem::path output_of(const ConvertOptions& options, const trace::Trace& trace) {
  return is_trace_file_name(options.out)
             ? options.out
             : options.out / fmt::format("rank{}.pt.trace.json.gz", *trace.metadata.rank);
}

ExitCode run(const ConvertOptions& options) {
  trace::Filter filter;
  if (!options.steps.empty()) {
    const analysis::StepRange range = parse_step_range(options.steps);
    filter.steps = {range.first, range.last};
  }
  filter.categories = options.categories;
  trace::Run opened = trace::Run::open(options.in, {.keep_args = true});
  choose_ranks(opened, options.ranks);
  if (is_trace_file_name(options.out) && opened.traces.size() > 1) {
    throw UsageError(
        fmt::format("--out: '{}' is one file, but there are {} ranks; name a directory, or one "
                    "rank with --ranks",
                    options.out.string(), opened.traces.size()));
  }
  if (!is_trace_file_name(options.out)) {
    std::error_code error;
    std::filesystem::create_directories(options.out, error);
    if (error) {
      throw RuntimeFault(
          fmt::format("'{}' cannot be made: {}", options.out.string(), error.message()));
    }
  }
  for (trace::Trace& each : opened.traces) {
    trace::apply(filter, each);
    for (const trace::Diagnostic& d : each.diagnostics) {
      std::fputs(
          fmt::format("shardlens: {}: {}: {}{}\n", each.metadata.source, trace::name_of(d.severity),
                      d.message, d.count == 1 ? "" : fmt::format(" ({} times)", d.count))
              .c_str(),
          stderr);
    }
    const std::filesystem::path out = output_of(options, each);
    trace::write_kineto(each, out);
    std::fputs(fmt::format("shardlens: {}: {} events\n", out.string(), each.events.size()).c_str(),
               stderr);
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_convert_command(CLI::App& app) {
  auto options = std::make_shared<ConvertOptions>();
  app.add_option("in", options->in,
                 "a trace (.json, .json.gz, .json.zst), a spool, or a directory of them")
      ->required();
  app.add_option(
         "--out", options->out,
         "a name ending in .json or .json.gz, or a directory: rank<r>.pt.trace.json.gz each")
      ->required();
  app.add_option("--steps", options->steps, "A:B: only steps A to B - 1");
  app.add_option("--ranks", options->ranks, "only these ranks: 0,2")->delimiter(',');
  app.add_option("--categories", options->categories, "only these categories: cpu_op,kernel")
      ->delimiter(',');
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
