#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/StringTools.hpp>
#include <CLI/Validators.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "profiler/check/baseline_file.h"
#include "profiler/check/check.h"
#include "profiler/report/check_report.h"

#include "cli/capture/capture_flags.h"
#include "cli/capture/interleaved_check.h"
#include "cli/command/subcommand.h"
#include "cli/flags/analysis_flags.h"
#include "cli/flags/outputs.h"
#include "cli/flags/run_outputs.h"
#include "cli/flags/size_option.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

struct CheckCommand {
  std::vector<fs::path> baseline, candidate;
  std::vector<std::string> metrics;
  Outputs outputs;
  std::string inconclusive_is;
  bool json = false, paired = false;
  std::optional<Bytes> max_peak_memory;
  SelectionFlags selection;
  InterleavedCheck interleaved;
};

std::vector<check::RunSummary> read_side(const std::vector<fs::path>& paths,
                                         const check::SummaryOptions& options) {
  std::vector<check::RunSummary> runs;
  for (const fs::path& path : paths) {
    for (check::RunSummary& run : check::read_runs(path, options)) {
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

// "3%", "200us", "1.5ms".
check::Limit parse_limit(const std::string& text, const std::string& argument) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  check::Limit limit;
  if (error == std::errc() && value >= 0) {
    if (unit == "%") {
      limit.relative = value / 100;
      return limit;
    }
    for (const auto& [name, ns] : {std::pair{"ns", 1.0}, {"us", 1e3}, {"ms", 1e6}}) {
      if (unit == name) {
        limit.ns = value * ns;
        return limit;
      }
    }
  }
  throw UsageError(
      fmt::format("--metric {}: expected a limit such as 3% or 200us (%, ns, us, ms), found '{}'",
                  argument, text));
}

// "3%", "500MiB".
check::MemoryGate::Limit parse_memory_limit(std::string text, const std::string& argument) {
  check::MemoryGate::Limit limit;
  double percent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error == std::errc() && percent >= 0 && std::string_view(end) == "%") {
    limit.relative = percent / 100;
    return limit;
  }
  Bytes bytes = 0;
  if (const std::string given = text;
      !size_to_bytes(text).empty() ||
      std::from_chars(text.data(), text.data() + text.size(), bytes).ec != std::errc()) {
    throw UsageError(fmt::format("--metric {}: expected a limit such as 3% or 500MiB, found '{}'",
                                 argument, given));
  }
  limit.bytes = bytes;
  return limit;
}

// Without --metric, the structure and both times are gates; with it, only the given metrics.
void set_gates(const std::vector<std::string>& arguments, check::CheckOptions& options) {
  if (arguments.empty()) {
    return;
  }
  options.gates.clear();
  options.structure = false;
  for (const std::string& argument : arguments) {
    const size_t colon = argument.find(':');
    const std::string name = argument.substr(0, colon);
    if (name == "structure" && colon == std::string::npos) {
      options.structure = true;
      continue;
    }
    if (name == "peak_memory") {
      options.memory.gates = options.memory.required = true;
      if (colon != std::string::npos) {
        options.memory.limit = parse_memory_limit(argument.substr(colon + 1), argument);
      }
      continue;
    }
    const auto metric = check::parse_metric(name);
    if (!metric || !check::metric_table()[static_cast<size_t>(*metric)].gates) {
      throw UsageError(
          fmt::format("--metric {}: expected step_time, exposed_comm, peak_memory or structure, "
                      "found '{}'{}",
                      argument, name, metric ? "; this metric cannot be a gate" : ""));
    }
    options.gates[*metric] = colon == std::string::npos
                                 ? std::nullopt
                                 : std::optional(parse_limit(argument.substr(colon + 1), argument));
  }
}

ExitCode exit_code_of(check::Verdict verdict, const std::string& inconclusive_is) {
  switch (verdict) {
    case check::Verdict::kPass:
      return ExitCode::kOk;
    case check::Verdict::kRegression:
      return ExitCode::kCheckFailed;
    case check::Verdict::kInconclusive:
      break;
  }
  return inconclusive_is == "pass"   ? ExitCode::kOk
         : inconclusive_is == "fail" ? ExitCode::kCheckFailed
                                     : ExitCode::kInconclusive;
}

// Where the results go; "": nowhere.
struct CheckFiles {
  fs::path save_baseline, junit, markdown;
};

ExitCode report(const check::CheckResult& result,
                const CheckCommand& options,
                const CheckFiles& files) {
  if (!files.junit.empty()) {
    write_file_atomically(files.junit, report::check_junit(result));
  }
  if (!files.markdown.empty()) {
    write_file_atomically(files.markdown, report::check_markdown(result));
  }
  if (options.json) {
    write_data(report::check_json(result));
  } else {
    write_stdout(report::check_text(result, style_of_stdout()));
  }
  return exit_code_of(result.verdict, options.inconclusive_is);
}

void save(std::vector<check::RunSummary> runs, const fs::path& path) {
  for (const check::RunSummary& run : runs) {
    if (!run.doubts.empty()) {
      throw InputError(run.source, "cannot be a baseline: " + run.doubts.front());
    }
  }
  check::add_session(runs);
  std::set<int64_t> sessions;
  for (const check::RunSummary& run : runs) {
    sessions.insert(run.session);
  }
  write_file_atomically(path, check::to_json(runs));
  write_stderr("saved {} {} of {} {} in {}\n", runs.size(), runs.size() == 1 ? "run" : "runs",
               sessions.size(), sessions.size() == 1 ? "session" : "sessions", path.string());
}

// The captures of both sides, alternately.
ExitCode run_interleaved(const CheckCommand& options,
                         const check::CheckOptions& settings,
                         const check::SummaryOptions& selection) {
  Outputs outputs = options.outputs;
  InterleavedCheck interleaved = options.interleaved;
  require_enough_runs(interleaved);
  for (const auto& [flag, flags] :
       {std::pair{"--run", &interleaved.run}, {"--against", &interleaved.against}}) {
    outputs.also_reads(inputs_of(capture_flags(CLI::detail::split_up(*flags), flag)));
  }
  interleaved.out = outputs.directory("--out");
  const CheckFiles files{"", outputs.file("--junit"), outputs.file("--markdown")};
  return report(check_interleaved(interleaved, settings, selection), options, files);
}

// Shows what the candidate's runs change, and makes them the saved baseline.
ExitCode update_baseline(const CheckCommand& options,
                         const check::CheckOptions& settings,
                         const check::SummaryOptions& selection) {
  const fs::path file = options.outputs.file("--update-baseline");
  const CheckFiles files{"", options.outputs.file("--junit"), options.outputs.file("--markdown")};
  const std::vector<check::RunSummary> candidate = read_side(options.candidate, selection);
  if (fs::exists(file)) {
    if (!check::is_baseline_file(file)) {
      throw InputError(file.string(),
                       "is no baseline; --update-baseline replaces only a file that check wrote");
    }
    (void)report(check::check_runs(check::read_runs(file, selection), candidate, settings), options,
                 files);
  }
  save(candidate, file);
  return ExitCode::kOk;
}

ExitCode run(const CheckCommand& options) {
  check::CheckOptions settings;
  settings.paired = options.paired;
  set_gates(options.metrics, settings);
  settings.memory.most = options.max_peak_memory;
  const check::SummaryOptions selection = summary_options(options.selection);
  if (!options.inconclusive_is.empty() && options.inconclusive_is != "pass" &&
      options.inconclusive_is != "fail") {
    throw UsageError(fmt::format("--inconclusive-is: expected pass or fail, found '{}'",
                                 options.inconclusive_is));
  }
  if (!options.interleaved.run.empty() || !options.interleaved.against.empty()) {
    if (options.interleaved.run.empty() || options.interleaved.against.empty()) {
      throw UsageError(
          "--run and --against need each other: the flags of capture, as one argument each");
    }
    if (!options.baseline.empty() || !options.candidate.empty() || options.paired ||
        options.outputs.given("--save-baseline") || options.outputs.given("--update-baseline")) {
      throw UsageError(
          "--run captures both sides itself: leave out --baseline, --candidate, --paired, "
          "--save-baseline and --update-baseline");
    }
    return run_interleaved(options, settings, selection);
  }
  if (options.outputs.given("--update-baseline")) {
    if (!options.baseline.empty() || options.paired || options.outputs.given("--save-baseline")) {
      throw UsageError(
          "--update-baseline names the baseline itself: leave out --baseline, --save-baseline and "
          "--paired");
    }
    if (options.candidate.empty()) {
      throw UsageError("--update-baseline needs --candidate: the runs to save");
    }
    return update_baseline(options, settings, selection);
  }
  if (options.baseline.empty() && options.max_peak_memory && options.metrics.empty() &&
      !options.candidate.empty() && !options.outputs.given("--save-baseline")) {
    const CheckFiles files{"", options.outputs.file("--junit"), options.outputs.file("--markdown")};
    return report(check::check_memory_limit(read_side(options.candidate, selection),
                                            *options.max_peak_memory),
                  options, files);
  }
  if (options.baseline.empty()) {
    throw UsageError(
        "--baseline is required: expected runs, or a file written by --save-baseline (only "
        "--max-peak-memory, without --metric, needs none)");
  }
  if (options.candidate.empty() && !options.outputs.given("--save-baseline")) {
    throw UsageError("--candidate is required (or --save-baseline, to save only the baseline)");
  }
  const CheckFiles files{options.outputs.file("--save-baseline"), options.outputs.file("--junit"),
                         options.outputs.file("--markdown")};
  const std::vector<check::RunSummary> baseline = read_side(options.baseline, selection);
  if (!files.save_baseline.empty()) {
    save(baseline, files.save_baseline);
    if (options.candidate.empty()) {
      return ExitCode::kOk;
    }
  }
  const std::vector<check::RunSummary> candidate = read_side(options.candidate, selection);
  if (options.paired && baseline.size() != candidate.size()) {
    throw UsageError(
        fmt::format("--paired needs as many baseline as candidate runs, found {} and {}",
                    baseline.size(), candidate.size()));
  }
  return report(check::check_runs(baseline, candidate, settings), options, files);
}

}  // namespace

Action add_check_command(CLI::App& app) {
  auto options = std::make_shared<CheckCommand>();
  app.add_option(
      "--baseline", options->baseline,
      "runs before the change: capture directories, directories of several captures, traces, or a "
      "file written by --save-baseline");
  app.add_option("--candidate", options->candidate, "runs after the change");
  app.add_option("--run", options->interleaved.run,
                 "capture the candidate with these flags of capture, alternately with the baseline "
                 "of --against")
      ->option_text("FLAGS");
  app.add_option("--against", options->interleaved.against, "flags of capture for the baseline")
      ->option_text("FLAGS");
  app.add_option("--runs", options->interleaved.runs,
                 "with --run: at most so many captures of each side; fewer if the verdict is clear")
      ->capture_default_str();
  options->outputs.add(app, "--out", "with --run: keep the captures here");
  app.add_option("--metric", options->metrics,
                 "check only this (may be repeated): structure, step_time, exposed_comm, "
                 "peak_memory; with a limit: step_time:3%, exposed_comm:200us, peak_memory:500MiB")
      ->option_text("NAME[:LIMIT]")
      ->allow_extra_args(false);
  app.add_option("--max-peak-memory", options->max_peak_memory,
                 "a regression is also a peak of the candidate above this, on any rank; without "
                 "--metric it needs no baseline")
      ->option_text("SIZE")
      ->transform(CLI::Validator(size_to_bytes, ""));
  add_selection_flags(app, options->selection);
  app.add_flag("--paired", options->paired,
               "compare in pairs: the n-th baseline run and the n-th candidate run ran one after "
               "the other");
  options->outputs.add(app, "--save-baseline",
                       "save the baseline runs in this file; those that come from no such file "
                       "become a new session of it");
  options->outputs.add(app, "--update-baseline",
                       "show what the candidate changes in this saved baseline, and save the "
                       "candidate's runs in its place");
  app.add_option("--inconclusive-is", options->inconclusive_is,
                 "exit code 0 or 1 instead of 5 if there is no verdict")
      ->option_text("pass|fail");
  app.add_flag("--json", options->json, "machine-readable output, see shardlens docs gate-ci");
  options->outputs.add(app, "--junit", "also write a JUnit XML file");
  options->outputs.add(app, "--markdown", "also write a summary in GitHub's Markdown");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
