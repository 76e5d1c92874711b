#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/json/json_dump.h"
#include "core/json/json_reader.h"
#include "profiler/report/table.h"
#include "sim/validate/collective_tables.h"
#include "sim/validate/validation.h"

#include "cli/command/subcommand.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

struct ValidateOptions {
  std::filesystem::path runs, stacks, collectives;
  bool json = false;
};

nlohmann::ordered_json errors_json(const std::vector<sim::MeanErrors>& errors) {
  auto out = nlohmann::ordered_json::array();
  for (const sim::MeanErrors& each : errors) {
    out.push_back({{"name", each.name}, {"rows", each.rows}});
    const bool any = each.rows > 0;
    out.back()["mape"] = any ? nlohmann::ordered_json(each.relative) : nlohmann::ordered_json();
    out.back()["log_error"] =
        any ? nlohmann::ordered_json(each.logarithmic) : nlohmann::ordered_json();
  }
  return out;
}

std::string json_text(const sim::Validation& result) {
  nlohmann::ordered_json out;
  out["schema"] = 1;
  out["rows"] = nlohmann::ordered_json::array();
  for (const sim::ValidatedRow& row : result.rows) {
    nlohmann::ordered_json each;
    const bool in_scope = row.run.out_of_scope.empty();
    each["row"] = row.run.row;
    each["model"] = row.run.model;
    each["gpu_type"] = row.run.gpu_type;
    each["in_scope"] = in_scope;
    each["used_to_fit"] = row.used_to_fit;
    each["measured"] = row.measured;
    each["predicted"] = row.predicted;
    each["error"] = row.error;
    if (!in_scope || !row.failed.empty()) {
      each["measured"] = each["predicted"] = each["error"] = nullptr;
      each["why_not"] = in_scope ? row.failed : row.run.out_of_scope;
    } else {
      each["stack"] = row.stack;
      each["predicted_parts_ns"] = {{"compute", row.figures.compute},
                                    {"exposed_comm", row.figures.exposed_comm},
                                    {"exposed_copy", row.figures.exposed_copy},
                                    {"idle", row.figures.idle}};
      const auto seconds = [](const sim::PredictedSeconds& of) {
        return nlohmann::ordered_json{{"predicted", of.step}, {"low", of.low}, {"high", of.high}};
      };
      each["interval"] = {row.interval.low, row.interval.high};
      each["code_base_left_out"] = seconds(row.left_out);
      each["stack_left_out"] = seconds(row.other_stack);
      each["measured_tokens_per_s_gpu"] = row.run.tokens_per_s_gpu;
      each["predicted_tokens_per_s_gpu"] = row.run.tokens_per_s_gpu / (1 + row.error);
    }
    if (row.predicted_peak) {
      each["measured_peak_gib"] = *row.run.peak_gib;
      each["predicted_peak_gib"] = *row.predicted_peak;
      each["peak_error"] = *row.peak_error;
    }
    out["rows"].push_back(std::move(each));
  }
  out["rows_counted"] = result.counted;
  out["rows_used_to_fit"] = result.used_to_fit;
  out["mape"] = result.mape;
  out["worst"] = result.worst;
  out["within_15_percent"] = result.within_15_percent;
  out["spearman"] = result.spearman;
  out["errors"] = errors_json(result.errors);
  out["coverage"] = nlohmann::ordered_json::array();
  for (const sim::Coverage& each : result.coverage) {
    out["coverage"].push_back({{"rows_of", each.name},
                               {"rows", each.rows},
                               {"inside", each.inside},
                               {"median_error", each.median_error},
                               {"median_half_width", each.median_half_width}});
  }
  out["left_out"] = nlohmann::ordered_json::array();
  for (const sim::LeftOut& each : result.left_out) {
    out["left_out"].push_back({{"code_base", each.code_base},
                               {"constants", each.constants},
                               {"errors", errors_json(each.errors)}});
  }
  return plan::json_text(out, 1) + "\n";
}

// The simulator and the simple models, on the rows not used to fit, then on each code base from the
// other ones.
void print_comparison(const sim::Validation& result) {
  report::Table table({{"predicted rows", report::Align::kLeft},
                       {"by", report::Align::kLeft},
                       {"rows"},
                       {"mean error"},
                       {"|log|"}});
  const auto add = [&table](const std::string& title, const std::vector<sim::MeanErrors>& errors,
                            const std::string& constants) {
    for (size_t i = 0; i < errors.size(); ++i) {
      const sim::MeanErrors& each = errors[i];
      table.row({i == 0 ? title : "", i == 0 ? each.name + constants : each.name,
                 std::to_string(each.rows),
                 each.rows > 0 ? report::format_percent(each.relative) : "too few rows",
                 each.rows > 0 ? fmt::format("{:.3f}", each.logarithmic) : ""});
    }
  };
  add("not used to fit", result.errors, "");
  for (const sim::LeftOut& each : result.left_out) {
    add(each.code_base + ", left out", each.errors,
        fmt::format(" ({})", fmt::join(each.constants, ", ")));
  }
  write_stdout("\n" + table.render(style_of_stdout()));
}

void print_coverage(const sim::Validation& result) {
  report::Table table({{"90 % intervals", report::Align::kLeft},
                       {"rows"},
                       {"inside"},
                       {"median error"},
                       {"median half-width"}});
  for (const sim::Coverage& each : result.coverage) {
    table.row({each.name, std::to_string(each.rows),
               report::format_percent(static_cast<double>(each.inside) /
                                      static_cast<double>(std::max<int64_t>(1, each.rows))),
               report::format_percent(each.median_error),
               report::format_percent(each.median_half_width)});
  }
  write_stdout("\n" + table.render(style_of_stdout()));
}

void print_text(const sim::Validation& result) {
  report::Table table({{"row"},
                       {"model", report::Align::kLeft},
                       {"GPUs", report::Align::kLeft},
                       {"seq"},
                       {"batch"},
                       {"measured s"},
                       {"predicted s"},
                       {"error"},
                       {"peak GiB"},
                       {"predicted"},
                       {"", report::Align::kLeft}});
  for (const sim::ValidatedRow& row : result.rows) {
    const sim::PublishedRun& run = row.run;
    const bool predicted = run.out_of_scope.empty() && row.failed.empty();
    const std::string remark = !run.out_of_scope.empty() ? "not modelled: " + run.out_of_scope
                               : !row.failed.empty()     ? row.failed
                               : row.used_to_fit         ? "used to fit"
                                                         : "";
    table.row({std::to_string(run.row), run.model, fmt::format("{} {}", run.gpus, run.gpu_type),
               std::to_string(run.seq), fmt::format("{} x {}", run.microbatch, run.accumulate),
               predicted ? fmt::format("{:.3f}", row.measured) : "",
               predicted ? fmt::format("{:.3f}", row.predicted) : "",
               predicted ? fmt::format("{:+.1f} %", row.error * 100) : "",
               row.run.peak_gib ? fmt::format("{:.1f}", *row.run.peak_gib) : "",
               row.predicted_peak
                   ? fmt::format("{:.1f} ({:+.1f} %)", *row.predicted_peak, *row.peak_error * 100)
                   : "",
               remark});
  }
  write_stdout(table.render(style_of_stdout()));
  write_stdout(
      "\n{} rows in scope that were not used to fit ({} were): mean error {}, "
      "worst {}, within 15 % {}\n",
      result.counted, result.used_to_fit, report::format_percent(result.mape),
      report::format_percent(result.worst), report::format_percent(result.within_15_percent));
  for (const auto& [type, value] : result.spearman) {
    write_stdout("rank correlation of tokens/s per GPU, {}: {:.3f}\n", type, value);
  }
  print_coverage(result);
  print_comparison(result);
}

constexpr double kGoal = 0.05;  // goal for a curve's mean error

// Mean over the curves that have an error.
struct CurveMean {
  double sum = 0;
  int curves = 0, within = 0;
  void add(const sim::MeanError& error) {
    sum += error.mean.value_or(0);
    curves += error.mean ? 1 : 0;
    within += error.mean && *error.mean <= kGoal ? 1 : 0;
  }
  [[nodiscard]] std::string text() const {
    return curves == 0 ? "no curve has such sizes"
                       : fmt::format("mean {} over {} curves, {} of them within {}",
                                     report::format_percent(sum / curves), curves, within,
                                     report::format_percent(kGoal));
  }
};

std::string collectives_json(const sim::CollectiveTable& table,
                             const std::vector<sim::CurveError>& errors) {
  const auto value = [](const std::optional<double>& error) {
    return error ? nlohmann::ordered_json(*error) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json out{{"schema", 1},
                             {"rows", table.rows},
                             {"rows_left_out", table.left_out},
                             {"curves", nlohmann::ordered_json::array()}};
  for (const sim::CurveError& each : errors) {
    out["curves"].push_back({{"source", each.measured.source},
                             {"gpu", each.measured.gpu},
                             {"algorithm", each.measured.algorithm},
                             {"collective", name_of(each.measured.curve.kind)},
                             {"ranks", each.measured.curve.ranks},
                             {"left_out_sizes", each.left_out.sizes},
                             {"left_out_error", value(each.left_out.mean)},
                             {"left_out_sizes_from_64_mib", each.left_out_large.sizes},
                             {"left_out_error_from_64_mib", value(each.left_out_large.mean)},
                             {"spec", each.spec},
                             {"unseen_sizes", each.unseen.sizes},
                             {"unseen_error", value(each.unseen.mean)}});
  }
  return plan::json_text(out, 1) + "\n";
}

void print_collectives(const std::vector<sim::CurveError>& errors) {
  report::Table table({{"GPU", report::Align::kLeft},
                       {"ranks"},
                       {"collective", report::Align::kLeft},
                       {"algorithm", report::Align::kLeft},
                       {"sizes left out"},
                       {"error"},
                       {"from 64 MiB"},
                       {"spec", report::Align::kLeft},
                       {"sizes not in spec"},
                       {"error"}});
  const auto shown = [](const sim::MeanError& error) {
    return error.mean ? report::format_percent(*error.mean) : std::string();
  };
  CurveMean left_out, large, unseen;
  for (const sim::CurveError& each : errors) {
    left_out.add(each.left_out);
    large.add(each.left_out_large);
    unseen.add(each.unseen);
    if (each.left_out.mean || each.unseen.mean) {
      table.row({each.measured.gpu, std::to_string(each.measured.curve.ranks),
                 std::string(name_of(each.measured.curve.kind)), each.measured.algorithm,
                 std::to_string(each.left_out.sizes), shown(each.left_out),
                 shown(each.left_out_large), each.spec, std::to_string(each.unseen.sizes),
                 shown(each.unseen)});
    }
  }
  write_stdout(table.render(style_of_stdout()));
  write_stdout(
      "\nsizes left out, from 1 MiB up: {}\nsizes left out, from 64 MiB up: {}\n"
      "sizes that are not in a spec, from 1 MiB up: {}\n",
      left_out.text(), large.text(), unseen.text());
}

ExitCode run_collectives(const ValidateOptions& options) {
  sim::CollectiveTable table = sim::load_collective_table(options.collectives);
  const auto errors = sim::collective_errors(std::move(table.curves));
  if (options.json) {
    write_data(collectives_json(table, errors));
  } else {
    print_collectives(errors);
    if (!table.left_out.empty()) {
      write_stdout("{} of {} rows are in no curve; the first: {}\n", table.left_out.size(),
                   table.rows, table.left_out.front());
    }
  }
  return ExitCode::kOk;
}

ExitCode run(const ValidateOptions& options) {
  if (!options.collectives.empty()) {
    return run_collectives(options);
  }
  if (options.runs.empty()) {
    throw UsageError("--runs or --collectives is required: a table to compare predictions with");
  }
  std::vector<sim::PublishedRun> runs = sim::load_published_runs(options.runs);
  const sim::Validation result =
      options.stacks.empty()
          ? sim::validate(std::move(runs), sim::builtin_stacks())
          : sim::validate(std::move(runs), sim::parse_stacks(plan::read_text_file(options.stacks),
                                                             options.stacks.string()));
  if (options.json) {
    write_data(json_text(result));
  } else {
    print_text(result);
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_validate_command(CLI::App& app) {
  const auto options = std::make_shared<ValidateOptions>();
  CLI::Option* runs = app.add_option("--runs", options->runs,
                                     "table of published runs (shardlens docs simulator_accuracy)")
                          ->option_text("FILE.csv");
  app.add_option("--collectives", options->collectives,
                 "table of measured collectives instead: errors of curves at sizes not used")
      ->option_text("FILE.csv")
      ->excludes(runs);
  app.add_option("--stacks", options->stacks,
                 "constants of GPU types and software stacks [the built-in ones]");
  app.add_flag("--json", options->json, "machine-readable output");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
