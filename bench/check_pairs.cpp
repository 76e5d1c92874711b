// How often `check` fails, passes or gives no verdict on generated pairs of runs with a known
// difference: check_pairs [--pairs N] [--runs R] [--steps S] [--seed K]. Prints one row of Markdown
// per kind of pair.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "profiler/check/check.h"
#include "profiler/check/run_summary.h"
#include "tests/support/generated_run.h"

namespace shardlens {
namespace {

using check::CheckResult;
using check::Metric;
using check::Verdict;
using test::GeneratedRun;

struct Settings {
  int pairs = 400, runs = 3, steps = 20;
  uint64_t seed = 1;
};

struct Count {
  int pass = 0, regression = 0, inconclusive = 0;
  double step_threshold = 0, exposed_threshold = 0;  // means
  [[nodiscard]] int all() const { return pass + regression + inconclusive; }
};

std::vector<check::RunSummary> side(GeneratedRun what, const Settings& settings, uint64_t& seed) {
  std::vector<check::RunSummary> runs;
  what.steps = settings.steps;
  for (int run = 0; run < settings.runs; ++run) {
    what.seed = seed++;
    runs.push_back(check::summarize(what.run()));
  }
  return runs;
}

Count count(const GeneratedRun& candidate, int pairs, const Settings& settings, uint64_t& seed) {
  Count out;
  for (int pair = 0; pair < pairs; ++pair) {
    const auto baseline = side({}, settings, seed);
    const CheckResult result = check::check_runs(baseline, side(candidate, settings, seed));
    out.pass += result.verdict == Verdict::kPass ? 1 : 0;
    out.regression += result.verdict == Verdict::kRegression ? 1 : 0;
    out.inconclusive += result.verdict == Verdict::kInconclusive ? 1 : 0;
    for (const check::MetricResult& m : result.metrics) {
      if (m.gates) {
        (m.metric == Metric::kStepTime ? out.step_threshold : out.exposed_threshold) +=
            m.threshold / pairs;
      }
    }
  }
  return out;
}

// Prints a row. Returns `holds`: whether the result is as wanted.
bool row(std::string_view name, const Count& c, std::string_view wanted, bool holds) {
  fmt::print("| {} | {} | {} | {} | {} | {} | {} |\n", name, c.all(), c.pass, c.regression,
             c.inconclusive, wanted, holds ? "yes" : "NO");
  std::fflush(stdout);
  return holds;
}

int run(const Settings& settings) {
  uint64_t seed = settings.seed;
  fmt::print("{} runs of {} steps a side, 2 ranks; seeds from {}\n\n", settings.runs,
             settings.steps, settings.seed);
  fmt::print(
      "| pairs | n | pass | regression | inconclusive | wanted | holds |\n"
      "|---|---:|---:|---:|---:|---|---|\n");
  const int some = settings.pairs / 2;
  std::vector<Count> all;
  bool good = true;
  const auto add = [&](std::string_view name, const GeneratedRun& candidate, int pairs,
                       std::string_view wanted, const std::function<bool(const Count&)>& holds) {
    all.push_back(count(candidate, pairs, settings, seed));
    good = row(name, all.back(), wanted, holds(all.back())) && good;
    return all.back();
  };
  const auto found = [](const Count& c) { return c.regression >= 0.95 * c.all(); };
  const auto quiet = [](const Count& c) { return c.regression <= 0.05 * c.all(); };
  const Count same = add("same program (A/A)", {}, settings.pairs, "≤ 5 % regression", quiet);
  GeneratedRun slow, exposed, prefetch, outlier, longer;
  slow.more_compute = 1.5 * same.step_threshold;
  add(fmt::format("step time + {:.3f} ms (1.5 × threshold)", slow.more_compute / 1e6), slow, some,
      "≥ 95 % regression", found);
  exposed.more_exposed = 1.5 * same.exposed_threshold;
  add(fmt::format("exposed + {:.3f} ms (1.5 × threshold)", exposed.more_exposed / 1e6), exposed,
      some, "≥ 95 % regression", found);
  prefetch.not_prefetched = {2};
  add("one prefetch removed", prefetch, some, "≥ 95 % regression", found);
  outlier.slow_step = 11;
  add("one step ten times slower", outlier, some, "≤ 5 % regression", quiet);
  longer.hidden_all_gather = 1.8;
  add("longer communication, as much exposed", longer, some, "≤ 5 % regression", quiet);
  Count sum;
  for (const Count& c : all) {
    sum.pass += c.pass;
    sum.regression += c.regression;
    sum.inconclusive += c.inconclusive;
  }
  good =
      row("all of them", sum, "≤ 5 % inconclusive", sum.inconclusive <= 0.05 * sum.all()) && good;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace shardlens

int main(int argc, char** argv) {
  shardlens::Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    const long value = i + 1 < argc ? std::strtol(argv[i + 1], nullptr, 10) : 0;
    if (value <= 0) {
      fmt::print(stderr, "check_pairs: {} needs a positive number\n", flag);
      return 2;
    }
    if (flag == "--pairs") {
      settings.pairs = static_cast<int>(value);
    } else if (flag == "--runs") {
      settings.runs = static_cast<int>(value);
    } else if (flag == "--steps") {
      settings.steps = static_cast<int>(value);
    } else if (flag == "--seed") {
      settings.seed = static_cast<uint64_t>(value);
    } else {
      fmt::print(stderr, "check_pairs: unknown flag {}\n", flag);
      return 2;
    }
  }
  return shardlens::run(settings);
}
