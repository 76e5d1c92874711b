// Cost of simulating many plans: every candidate of the 80-layer 70B model on 8 GPUs, for 1, 2, 3,
// … sequences per rank and step, until at least --plans are simulated. Goals: 0.5 ms per plan,
// 10 000 plans in 3 s on two cores. search_bench.py runs llm-analysis on the same plans.
#include <chrono>
#include <ctime>
#include <fstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/plan/module_tree.h"
#include "sim/search/search.h"

namespace {

namespace plan = shardlens::plan;
namespace sim = shardlens::sim;

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 8192,
  "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
  "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072})";
constexpr int64_t kRanks = 8, kSeq = 4096;

}  // namespace

int main(int argc, char** argv) {
  size_t plans = 10000;
  unsigned threads = 2;
  std::string csv;
  CLI::App app{"Measures the cost of simulating many plans"};
  app.add_option("--plans", plans, "minimum number of plans [10000]");
  app.add_option("--threads", threads, "number of threads [2]");
  app.add_option("--csv", csv, "write the plans and their predictions to this file");
  CLI11_PARSE(app, argc, argv);

  sim::Scenario scenario;
  scenario.model =
      std::make_shared<const sim::ScenarioModel>(plan::parse_model_config(kModel, "70b"));
  scenario.plan.mixed_precision.param_dtype = shardlens::DType::kBF16;
  scenario.plan.mixed_precision.reduce_dtype = shardlens::DType::kF32;
  scenario.world_size = kRanks;
  scenario.step.seq = kSeq;
  sim::HardwareSpec hardware = sim::load_hardware("8xH100");
  hardware.gpu.memory = shardlens::Bytes{1} << 50;  // large enough that every plan fits
  scenario.machine = std::make_shared<const sim::TargetMachine>(hardware);

  std::ofstream rows;
  if (!csv.empty()) {
    rows.open(csv);
    rows << "blocks,shard,replicate,reshard,backward_prefetch,forward_prefetch,checkpoint,batch,"
            "accumulate,step_ns,compute_ns,exposed_comm_ns,peak_bytes,allocated_bytes\n";
  }
  size_t done = 0;
  std::chrono::duration<double> taken{0};
  double cpu = 0;  // CPU time of all threads, which depends less on other programs
  for (int64_t samples = 1; done < plans; ++samples) {
    sim::SearchOptions options;
    options.memory_limit = hardware.gpu.memory;
    scenario.step.accumulate = samples;
    options.threads = threads;
    std::vector<sim::Found> found;
    options.on_progress = [&](const sim::Found& each, size_t, size_t) { found.push_back(each); };
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t before = std::clock();
    const sim::SearchResult result = sim::search(scenario, options);
    taken += std::chrono::steady_clock::now() - begin;
    cpu += static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    done += result.evaluated;
    for (const sim::Found& each : found) {
      const sim::Candidate& c = each.candidate;
      const sim::Outcome& o = each.outcome;
      rows << fmt::format("{},{},{},{:d},{:d},{},{:d},{},{},{},{},{},{},{}\n", c.blocks_per_unit,
                          c.shard, kRanks / c.shard, c.reshard, c.backward_prefetch,
                          c.forward_prefetch, c.checkpoint, c.batch, c.accumulate,
                          o.figures.duration(), o.figures.compute, o.figures.exposed_comm,
                          o.peak_reserved, o.peak_allocated);
    }
  }
  fmt::print("{} plans in {:.3f} s on {} threads: {:.1f} us of CPU a plan\n", done, taken.count(),
             threads, cpu * 1e6 / static_cast<double>(done));
  return rows ? 0 : 4;
}
