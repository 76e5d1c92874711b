#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/format_bytes.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "profiler/report/table.h"
#include "sim/calibrate/calibration.h"
#include "sim/scenario/recorded_run.h"

#include "cli/capture/host_info.h"
#include "cli/capture/probe.h"
#include "cli/command/subcommand.h"
#include "cli/flags/outputs.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

struct CalibrateOptions {
  std::vector<std::filesystem::path> captures;
  bool probes = false;
  RunOptions probe;
  Outputs outputs;  // --keep: the probe's captures; without it they are removed
  bool json = false;
};

std::string factor(const std::optional<double>& value) {
  return value ? fmt::format("{:.2f}x", *value) : "not measured";
}

void print_classes(const sim::Calibration& c) {
  report::Table table({{"kernel class", report::Align::kLeft},
                       {"dtype", report::Align::kLeft},
                       {"share"},
                       {"shapes"},
                       {"samples"},
                       {"spread"},
                       {"error of other shapes"},
                       {"during communication"}});
  for (const sim::KernelClass& each : c.classes) {
    table.row({each.name, std::string(plan_name(each.dtype)), report::format_percent(each.share),
               std::to_string(each.shapes), std::to_string(each.samples),
               report::format_percent(each.spread),
               each.left_out ? report::format_percent(*each.left_out) : "too few shapes",
               factor(each.slowdown)});
  }
  write_stdout(table.render(style_of_stdout()));
}

void print_collectives(const sim::Calibration& c) {
  if (!c.emulated.empty()) {
    write_stdout("collectives were emulated on {} and took {:.1f} us more than that\n", c.emulated,
                 c.collective_overhead_us);
    return;
  }
  report::Table table({{"collective", report::Align::kLeft},
                       {"ranks"},
                       {"sizes"},
                       {"from"},
                       {"to"},
                       {"us at the largest"}});
  for (const sim::CollectiveCurve& curve : c.curves) {
    table.row({std::string(name_of(curve.kind)), std::to_string(curve.ranks),
               std::to_string(curve.points.size()), format_bytes(curve.points.front().bytes),
               format_bytes(curve.points.back().bytes),
               fmt::format("{:.1f}", curve.points.back().us)});
  }
  write_stdout(table.render(style_of_stdout()));
  write_stdout("collectives during compute: {}\n", factor(c.collective_slowdown));
  for (size_t kind = 0; kind < c.peer_wait_us.size(); ++kind) {
    if (c.peer_wait_us[kind] > 0) {
      write_stdout("{}: and {:.1f} us of waiting for peers\n",
                   name_of(static_cast<CollectiveKind>(kind)), c.peer_wait_us[kind]);
    }
  }
}

void print_host(const sim::Calibration& c) {
  report::Table table({{"host", report::Align::kLeft}, {"us"}});
  for (size_t op = 0; op < c.action_us.size(); ++op) {
    if (c.action_us[op] > 0) {
      table.row({std::string(schedule::name_of(static_cast<schedule::Op>(op))),
                 fmt::format("{:.1f}", c.action_us[op])});
    }
  }
  if (c.waking_us > 0) {
    table.row({"waking up after a wait", fmt::format("{:.1f}", c.waking_us)});
  }
  table.row({"a step outside its plan", fmt::format("{:.1f}", c.outside_us)});
  table.row({"exposed communication of the norm", fmt::format("{:.1f}", c.norm_communication_us)});
  table.row(
      {"other exposed communication there", fmt::format("{:.1f}", c.outside_communication_us)});
  write_stdout(table.render(style_of_stdout()));
}

std::vector<sim::Observation> observations_of(const CalibrateOptions& options) {
  std::vector<sim::Observation> out;
  if (options.probes) {
    out = probe(options.probe, options.outputs.directory("--keep"));
  }
  for (const std::filesystem::path& capture : options.captures) {
    out.push_back(sim::open_observation(capture));
  }
  for (const sim::Observation& each : out) {
    for (const trace::Diagnostic& found : each.diagnostics) {
      write_stderr("{}: {}: {}{}\n", each.source, trace::name_of(found.severity), found.message,
                   found.count > 1 ? fmt::format(" ({} times)", found.count) : "");
    }
  }
  return out;
}

ExitCode run(const CalibrateOptions& options) {
  const std::filesystem::path out = options.outputs.file("--out");
  const std::vector<sim::Observation> observations = observations_of(options);
  const sim::Calibration calibration = sim::calibrate(observations);
  const std::string json = sim::to_json(calibration);
  write_file_atomically(out, json);
  if (options.json) {
    write_data(json);
  } else {
    write_stdout("{}  {} run{}, {} ranks, {}\n\n", bold("calibration"), calibration.sources.size(),
                 calibration.sources.size() == 1 ? "" : "s", calibration.ranks,
                 calibration.host == sim::HostMode::kCompute ? "the host computes"
                                                             : "the host issues ahead of a device");
    print_classes(calibration);
    write_stdout("\n");
    print_collectives(calibration);
    write_stdout("\n");
    print_host(calibration);
    if (!calibration.unknown.empty()) {
      write_stdout("\n{}\n", bold("not measured"));
      for (const std::string& each : calibration.unknown) {
        write_stdout("- {}\n", each);
      }
    }
  }
  write_stderr("written: {}; next: shardlens simulate --calibration {}\n", out.string(),
               out.string());
  return ExitCode::kOk;
}

}  // namespace

Action add_calibrate_command(CLI::App& app) {
  const auto options = std::make_shared<CalibrateOptions>();
  auto* captures = app.add_option(
      "--capture", options->captures,
      "capture directory, or traces of PyTorch's FSDP or DDP; several are fitted together");
  auto* probes = app.add_flag("--probe", options->probes,
                              "capture a few steps of small models on this machine now");
  captures->excludes(probes);
  add_process_options(app, options->probe);
  add_precision_option(app, options->probe);
  options->outputs.add(app, "--keep", "keep the probe's captures in this directory");
  for (const char* flag : {"--nproc", "--device", "--threads", "--precision", "--keep"}) {
    app.get_option(flag)->needs(probes)->group("With --probe");
  }
  options->outputs.add(app, "--out", "calibration file to write")->required();
  app.add_flag("--json", options->json, "print the file instead of tables");
  return [options, nproc = app.get_option("--nproc")] {
    if (options->captures.empty() && !options->probes) {
      throw UsageError("calibrate: expected --capture PATH… or --probe");
    }
    if (options->probe.device == Device::kCuda && nproc->count() == 0) {
      options->probe.nproc = std::max(1, gpu_count());
    }
    return run(*options);
  };
}

}  // namespace shardlens::cli
