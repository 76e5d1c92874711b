#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/files/output_folder.h"
#include "profiler/trace/filter.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "profiler/trace/kineto/plugin_ranges.h"
#include "profiler/trace/run.h"

#include "cli/capture/capture_lock.h"
#include "cli/command/subcommand.h"
#include "cli/flags/outputs.h"
#include "cli/flags/step_range.h"

namespace shardlens::cli {
namespace {

// Base times are multiples of a quarter of a year, as in Kineto, so that the files of all ranks of
// a run have the same base time.
constexpr Nanoseconds kBaseGrain = Nanoseconds{7889238} * 1'000'000'000;

struct ConvertOptions {
  std::filesystem::path in;
  Outputs outputs;
  std::string steps;
  std::vector<int64_t> ranks;
  std::vector<std::string> categories;
  std::string compat;
};

// Whether --out is one file; otherwise it is a directory.
bool is_one_file(const ConvertOptions& options) {
  const std::string name = options.outputs.shown("--out");
  return name.ends_with(".json") || name.ends_with(".json.gz");
}

// First pass over a trace: passes all events to the filter and, if there is one, to what writes
// ranges for TensorBoard's plugin, and reads everything but the events.
class Survey final : public trace::EventSink {
 public:
  Survey(trace::EventFilter& filter, std::optional<trace::PluginRanges>& ranges)
      : filter_(filter), ranges_(ranges) {}
  void event(const trace::Trace& trace, const trace::Event& event, std::string_view) override {
    filter_.see(trace, event);
    if (ranges_) {
      ranges_->see(trace, event);
    }
    first_ = std::min(first_.value_or(event.start), event.start);
  }
  [[nodiscard]] Nanoseconds first() const { return first_.value_or(0); }

 private:
  trace::EventFilter& filter_;
  std::optional<trace::PluginRanges>& ranges_;
  std::optional<Nanoseconds> first_;
};

// Second pass: writes the events that the filter keeps, with their arguments unchanged but for what
// TensorBoard's plugin needs.
class Copier final : public trace::EventSink {
 public:
  // `base`: added to the times of the file.
  Copier(const trace::EventFilter& filter,
         Nanoseconds base,
         std::optional<trace::PluginRanges>& ranges,
         trace::KinetoWriter& writer)
      : filter_(filter), base_(base), ranges_(ranges), writer_(writer) {}
  void event(const trace::Trace& trace, const trace::Event& event, std::string_view args) override {
    trace::Event placed = event;
    Nanoseconds end = 0;
    if (!filter_.keeps(trace, event) || __builtin_add_overflow(event.start, base_, &placed.start) ||
        __builtin_add_overflow(placed.start, placed.duration, &end)) {
      return;  // the first pass has reported times that are too large
    }
    if (ranges_) {
      ranges_->write(writer_, trace, placed, args);
    } else {
      writer_.event(trace, placed, args);
    }
    ++events_;
  }
  [[nodiscard]] int64_t events() const { return events_; }

 private:
  const trace::EventFilter& filter_;
  Nanoseconds base_;
  std::optional<trace::PluginRanges>& ranges_;
  trace::KinetoWriter& writer_;
  int64_t events_ = 0;
};

// One input. A spool is small enough to be in memory; of a trace, everything but the events is.
struct Input {
  std::filesystem::path path;
  trace::EventFilter filter;
  trace::Trace trace;
  Nanoseconds added = 0;  // added to each time of the file
  bool is_spool = false;
  std::optional<trace::PluginRanges> ranges;  // only for TensorBoard's plugin
};

Input survey(const std::filesystem::path& path, const trace::Filter& filter, bool for_plugin) {
  Input input{path, trace::EventFilter(filter), {}, 0, path.extension() == ".spool", std::nullopt};
  if (for_plugin) {
    input.ranges.emplace();
  }
  if (std::filesystem::is_fifo(path)) {
    throw InputError(path.string(), "is a pipe, and convert reads its input twice; save it first");
  }
  if (input.is_spool) {
    input.trace = trace::read_trace(path);
    input.filter = trace::apply(filter, input.trace);
    return input;
  }
  Survey survey(input.filter, input.ranges);
  input.trace = trace::read_kineto(path, {.sink = &survey});
  input.filter.decide(path.string());
  Nanoseconds& base = input.trace.metadata.base_time;
  if (!trace::is_of_epoch(survey.first())) {
    input.added = base;
  } else if (base == 0) {
    // Relative to a near base time, "ts" loses no precision in readers that use a double for it.
    base = survey.first() / kBaseGrain * kBaseGrain;
  }
  return input;
}

// Writes a trace that is in memory.
int64_t write_events(const trace::Trace& trace,
                     std::optional<trace::PluginRanges>& ranges,
                     trace::KinetoWriter& writer) {
  for (const trace::Event& event : trace.events) {
    if (ranges) {
      ranges->see(trace, event);
    }
  }
  for (const trace::Event& event : trace.events) {
    if (ranges) {
      ranges->write(writer, trace, event, trace.args_json(event));
    } else {
      writer.event(trace, event);
    }
  }
  return static_cast<int64_t>(trace.events.size());
}

int64_t write(Input& input, const std::filesystem::path& out) {
  trace::TraceFile file(out);
  trace::KinetoWriter writer(input.trace, file.output());
  int64_t events = 0;
  if (input.is_spool) {
    events = write_events(input.trace, input.ranges, writer);
  } else {
    Copier copier(input.filter, input.added, input.ranges, writer);
    (void)trace::read_kineto(input.path, {.sink = &copier});
    events = copier.events();
  }
  writer.finish();
  file.commit();
  return events;
}

// Assigns a rank to every input and sorts them by rank, as all commands do.
void order_by_rank(std::vector<Input>& inputs) {
  std::vector<trace::Trace> heads;
  for (Input& input : inputs) {
    heads.push_back(std::move(input.trace));
  }
  trace::Run run = trace::Run::of(std::move(heads));
  std::vector<Input> ordered;
  for (trace::Trace& head : run.traces) {
    const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const Input& input) {
      return input.path.string() == head.metadata.source;
    });
    ordered.push_back(std::move(*found));
    ordered.back().trace = std::move(head);
  }
  inputs = std::move(ordered);
}

void choose_ranks(std::vector<Input>& inputs, const ConvertOptions& options) {
  const auto has = [](const std::vector<int64_t>& ranks, const Input& input) {
    return std::find(ranks.begin(), ranks.end(), *input.trace.metadata.rank) != ranks.end();
  };
  for (const int64_t rank : options.ranks) {
    if (std::none_of(inputs.begin(), inputs.end(),
                     [&](const Input& input) { return has({rank}, input); })) {
      throw InputError(options.in.string(), fmt::format("has no trace of rank {}", rank));
    }
  }
  if (!options.ranks.empty()) {
    std::erase_if(inputs, [&](const Input& input) { return !has(options.ranks, input); });
  }
}

// Where the file of each input is written.
struct Places {
  std::optional<DirectoryLock> lock;
  std::vector<std::filesystem::path> files;
};

Places places_of(const ConvertOptions& options, const std::vector<Input>& inputs) {
  if (is_one_file(options)) {
    return {std::nullopt, {options.outputs.file("--out")}};
  }
  const std::filesystem::path directory = options.outputs.directory("--out");
  std::vector<std::string> names;
  for (const Input& input : inputs) {
    names.push_back(fmt::format("rank{}.pt.trace.json.gz", *input.trace.metadata.rank));
  }
  (void)OutputFolder::make(directory);
  Places out{DirectoryLock(capture_place(directory)), {}};
  out.files = options.outputs.new_files_in("--out", directory, names);
  return out;
}

void check_categories(const std::vector<Input>& inputs, const ConvertOptions& options) {
  std::set<std::string> seen;
  for (const Input& input : inputs) {
    for (const auto& category : input.filter.categories()) {
      seen.insert(category.empty() ? "events without a category" : category);
    }
  }
  for (const std::string& category : options.categories) {
    if (!seen.contains(category)) {
      throw InputError(options.in.string(), fmt::format("has no event of category '{}'; it has {}",
                                                        category, fmt::join(seen, ", ")));
    }
  }
}

void tell(const trace::Trace& trace) {
  for (const trace::Diagnostic& d : trace.diagnostics) {
    write_stderr("shardlens: {}: {}: {}{}\n", trace.metadata.source, trace::name_of(d.severity),
                 d.message, d.count == 1 ? "" : fmt::format(" ({} times)", d.count));
  }
}

// Counts what was added for TensorBoard's plugin.
std::string of_plugin(const Input& input) {
  if (!input.ranges) {
    return "";
  }
  return input.ranges->ranges() > 0
             ? fmt::format(", and {} ranges that TensorBoard's plugin takes for communication",
                           input.ranges->ranges())
             : "; no collective, so TensorBoard's plugin has no page of communication";
}

ExitCode run(const ConvertOptions& options) {
  if (!options.compat.empty() && options.compat != "tensorboard") {
    throw UsageError(fmt::format("--compat: expected tensorboard, found '{}'", options.compat));
  }
  trace::Filter filter;
  if (!options.steps.empty()) {
    const analysis::StepRange range = parse_step_range(options.steps);
    filter.steps = {range.first, range.last};
  }
  filter.categories = options.categories;
  std::vector<Input> inputs;
  const std::vector<trace::ListedFile> files = trace::listed_files(std::span(&options.in, 1));
  std::vector<std::optional<Input>> surveyed(files.size());
  for (const std::string& refused : trace::for_each_trace(files, [&](size_t i) {
         surveyed[i] = survey(files[i].path, filter, options.compat == "tensorboard");
       })) {
    write_stderr("shardlens: left out: {}\n", refused);
  }
  for (std::optional<Input>& each : surveyed) {
    if (each) {
      inputs.push_back(std::move(*each));
    }
  }
  order_by_rank(inputs);
  choose_ranks(inputs, options);
  check_categories(inputs, options);
  if (is_one_file(options) && inputs.size() > 1) {
    throw UsageError(
        fmt::format("--out: '{}' is one file, but there are {} ranks; give a directory, or choose "
                    "one rank with --ranks",
                    options.outputs.shown("--out"), inputs.size()));
  }
  const Places places = places_of(options, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    tell(inputs[i].trace);
    const int64_t events = write(inputs[i], places.files[i]);
    write_stderr("shardlens: {}: {} events{}\n", places.files[i], events, of_plugin(inputs[i]));
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_convert_command(CLI::App& app) {
  auto options = std::make_shared<ConvertOptions>();
  app.add_option("in", options->in,
                 "a trace (.json, .json.gz, .json.zst), a spool, or a directory of them")
      ->required();
  options->outputs
      .add(app, "--out",
           "a file ending in .json or .json.gz, or a directory for a rank<r>.pt.trace.json.gz of "
           "each rank")
      ->required();
  app.add_option("--steps", options->steps, "A:B: only steps A to B - 1");
  app.add_option("--ranks", options->ranks, "only these ranks: 0,2")->delimiter(',');
  app.add_option("--categories", options->categories, "only these categories: cpu_op,kernel")
      ->delimiter(',');
  app.add_option("--compat", options->compat,
                 "tensorboard: add the ranges by which TensorBoard's PyTorch plugin recognizes "
                 "communication");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
