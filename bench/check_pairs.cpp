// How often `check` fails, passes or gives no verdict on generated pairs of runs with a known
// difference: check_pairs [--pairs N] [--runs R] [--steps S] [--sessions N] [--seed K]. Prints one
// row of Markdown per kind of pair. With --write DIR [--kind NAME], writes the pairs of one kind
// (same, prefetch, reduce, gathers) as traces instead: DIR/<pair>/<side>/run<r>/rank<r>.json.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "profiler/check/baseline_file.h"
#include "profiler/check/check.h"
#include "profiler/check/run_summary.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/support/generated_run.h"

namespace shardlens {
namespace {

using check::CheckResult;
using check::Metric;
using check::Verdict;
using test::GeneratedRun;

struct Settings {
  int pairs = 400, runs = 3, steps = 20;
  int sessions = 6;  // of a saved baseline
  uint64_t seed = 1;
  std::string directory, kind = "same";  // what --write writes, and where
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

// A saved baseline of several sessions, each with other conditions.
std::vector<check::RunSummary> saved(GeneratedRun what, const Settings& settings, uint64_t& seed) {
  std::vector<check::RunSummary> runs;
  for (int session = 0; session < settings.sessions; ++session) {
    what.session = seed;
    for (check::RunSummary& run : side(what, settings, seed)) {
      runs.push_back(std::move(run));
    }
    check::add_session(runs);
  }
  return runs;
}

struct Pair {
  GeneratedRun baseline, candidate;
  bool sessions = false;  // the baseline has several sessions, the candidate another one
};

Count count(Pair what, int pairs, const Settings& settings, uint64_t& seed) {
  Count out;
  for (int pair = 0; pair < pairs; ++pair) {
    const auto baseline =
        what.sessions ? saved(what.baseline, settings, seed) : side(what.baseline, settings, seed);
    what.candidate.session = what.sessions ? seed : 0;
    const CheckResult result = check::check_runs(baseline, side(what.candidate, settings, seed));
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

// Saved baselines of several sessions.
bool sessions(const Settings& settings, uint64_t& seed) {
  fmt::print(
      "\nbaselines of {} sessions of {} runs; the candidate is another session of {} runs\n\n",
      settings.sessions, settings.runs, settings.runs);
  fmt::print(
      "| pairs | n | pass | regression | inconclusive | wanted | holds |\n"
      "|---|---:|---:|---:|---:|---|---|\n");
  bool good = true;
  Pair what;
  what.sessions = true;
  const Count same = count(what, settings.pairs, settings, seed);
  good = row("same program, sessions alike", same, "≤ 2 % regression, ≤ 5 % inconclusive",
             same.regression <= 0.02 * same.all() && same.inconclusive <= 0.05 * same.all()) &&
         good;
  what.candidate.more_compute = 1.5 * same.step_threshold;
  const Count slow = count(what, settings.pairs / 2, settings, seed);
  good = row(fmt::format("step time + {:.3f} ms (1.5 × threshold), sessions alike",
                         what.candidate.more_compute / 1e6),
             slow, "≥ 95 % regression", slow.regression >= 0.95 * slow.all()) &&
         good;
  what.candidate.more_compute = 0;
  for (const double noise : {0.01, 0.015}) {
    what.baseline.session_noise = what.candidate.session_noise = noise;
    const Count other = count(what, settings.pairs, settings, seed);
    good = row(fmt::format("same program, sessions differ by {:g} %", 100 * noise), other,
               "≤ 2 % regression", other.regression <= 0.02 * other.all()) &&
           good;
  }
  return good;
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
  const auto add = [&](std::string_view name, const Pair& what, int pairs, std::string_view wanted,
                       const std::function<bool(const Count&)>& holds) {
    all.push_back(count(what, pairs, settings, seed));
    good = row(name, all.back(), wanted, holds(all.back())) && good;
    return all.back();
  };
  const auto found = [](const Count& c) { return c.regression >= 0.95 * c.all(); };
  const auto quiet = [](const Count& c) { return c.regression <= 0.05 * c.all(); };
  const Count same = add("same program (A/A)", {}, settings.pairs, "≤ 5 % regression", quiet);
  Pair slow, exposed, prefetch, outlier, longer;
  slow.candidate.more_compute = 1.5 * same.step_threshold;
  add(fmt::format("step time + {:.3f} ms (1.5 × threshold)", slow.candidate.more_compute / 1e6),
      slow, some, "≥ 95 % regression", found);
  exposed.candidate.more_exposed = 1.5 * same.exposed_threshold;
  add(fmt::format("exposed + {:.3f} ms (1.5 × threshold)", exposed.candidate.more_exposed / 1e6),
      exposed, some, "≥ 95 % regression", found);
  prefetch.candidate.not_prefetched = {2};
  add("one prefetch removed", prefetch, some, "≥ 95 % regression", found);
  outlier.candidate.slow_step = 11;
  add("one step ten times slower", outlier, some, "≤ 5 % regression", quiet);
  longer.candidate.hidden_all_gather = 1.8;
  add("longer communication, as much exposed", longer, some, "≤ 5 % regression", quiet);
  Pair uneven, traced;
  uneven.baseline.varying_bytes = uneven.candidate.varying_bytes = 0.5;
  add("messages that vary from step to step", uneven, some, "≤ 5 % regression", quiet);
  uneven.candidate.layer_bytes = 3 * uneven.candidate.layer_bytes / 2;
  add("the same, one and a half times as large", uneven, some, "≥ 95 % regression", found);
  traced.baseline.overhead = traced.candidate.overhead = 3'000;
  add("3 µs of the profiler in each step", traced, some, "≤ 5 % regression", quiet);
  Count sum;
  for (const Count& c : all) {
    sum.pass += c.pass;
    sum.regression += c.regression;
    sum.inconclusive += c.inconclusive;
  }
  good =
      row("all of them", sum, "≤ 5 % inconclusive", sum.inconclusive <= 0.05 * sum.all()) && good;
  return sessions(settings, seed) && good ? EXIT_SUCCESS : EXIT_FAILURE;
}

// Pairs as traces, for tests of what reads files. Returns the exit code.
int write(const Settings& settings) {
  uint64_t seed = settings.seed;
  for (int pair = 0; pair < settings.pairs; ++pair) {
    Pair what;
    if (settings.kind == "prefetch") {
      what.candidate.not_prefetched = {2};
    } else if (settings.kind == "reduce") {
      what.candidate.more_exposed = 1.5e6;
    } else if (settings.kind == "gathers") {
      what.candidate.all_gather *= 2;
    } else if (settings.kind != "same") {
      fmt::print(stderr, "check_pairs: unknown kind {}\n", settings.kind);
      return 2;
    }
    for (auto [name, runs] :
         {std::pair{"baseline", what.baseline}, std::pair{"candidate", what.candidate}}) {
      runs.steps = settings.steps;
      for (int run = 0; run < settings.runs; ++run) {
        runs.seed = seed++;
        const auto directory = std::filesystem::path(settings.directory) / std::to_string(pair) /
                               name / fmt::format("run{}", run);
        std::filesystem::create_directories(directory);
        const trace::Run generated = runs.run();
        for (const trace::Trace& rank : generated.traces) {
          trace::write_kineto(rank,
                              directory / fmt::format("rank{}.json", rank.metadata.rank.value()));
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace shardlens

int main(int argc, char** argv) {
  shardlens::Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 < argc && (flag == "--write" || flag == "--kind")) {
      (flag == "--write" ? settings.directory : settings.kind) = argv[i + 1];
      continue;
    }
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
    } else if (flag == "--sessions") {
      settings.sessions = static_cast<int>(value);
    } else if (flag == "--seed") {
      settings.seed = static_cast<uint64_t>(value);
    } else {
      fmt::print(stderr, "check_pairs: unknown flag {}\n", flag);
      return 2;
    }
  }
  return settings.directory.empty() ? shardlens::run(settings) : shardlens::write(settings);
}
