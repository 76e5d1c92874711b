// Searches over meshes of every axis, compared with all plans of all meshes.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/search/evaluator.h"
#include "sim/search/mesh_bound.h"
#include "sim/search/search.h"
#include "tests/support/sanitized.h"

namespace shardlens::sim {
namespace {

constexpr int64_t kMeshRanks = 8;

// 4 heads of keys and values, so `tensor` may be 1, 2 or 4.
plan::ModelConfig divisible_config(int64_t layers) {
  plan::ModelConfig out = plan::parse_model_config(R"({"model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 2048, "max_position_embeddings": 4096})",
                                                   "small");
  out.layers = layers;
  return out;
}

// Of 4 experts, so `expert` may be 1, 2 or 4.
plan::ModelConfig expert_config(int64_t layers) {
  // The config has for each layer whether it has experts.
  return plan::parse_model_config(
      fmt::format(R"({{"model_type": "mixtral", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": {}, "num_attention_heads": 8, "num_key_value_heads": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 2048,
    "max_position_embeddings": 4096}})",
                  layers),
      "sparse");
}

struct MeshKind {
  const char* name;
  int64_t layers = 3, seq = 256, samples = 1;
  bool half = true, sync = true, sequence = true, loss = false;
  plan::ContextMethod method = plan::ContextMethod::kAllGather;
  int64_t nodes = 1;
  bool offload = false, experts = false;
  plan::Compile compile = plan::Compile::kNone;
  size_t meshes =
      19;  // on which it runs: tensor 1, 2, 4; of experts also expert 1, 2, 4, not 1 with tensor
};

void PrintTo(const MeshKind& kind, std::ostream* out) {
  *out << kind.name;
}

Scenario meshes_scenario(const MeshKind& kind) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(kind.experts ? expert_config(kind.layers)
                                                                 : divisible_config(kind.layers));
  out.plan.sequence_parallel = kind.sequence;
  out.plan.loss_parallel = kind.loss;
  out.plan.context_method = kind.method;
  out.plan.cpu_offload = kind.offload;
  if (kind.half) {
    out.plan.mixed_precision.param_dtype = DType::kBF16;
    out.plan.mixed_precision.reduce_dtype = DType::kF32;
  }
  out.world_size = kMeshRanks;
  out.step = {.batch = kind.samples, .seq = kind.seq, .sync_every_microbatch = kind.sync};
  out.step.software.compile = kind.compile;
  HardwareSpec hardware = load_hardware("8xH100");
  hardware.gpus = kMeshRanks / kind.nodes;
  hardware.nodes = kind.nodes;
  hardware.fabric.network_gbps = 20;
  out.machine = std::make_shared<const TargetMachine>(hardware);
  return out;
}

SearchOptions every_mesh(Bytes limit) {
  SearchOptions out;
  out.meshes = MeshSpace::all();
  out.memory_limit = limit;
  return out;
}

std::map<std::string, MeshResult> by_name(const SearchResult& result) {
  std::map<std::string, MeshResult> out;
  for (const MeshResult& each : result.meshes) {
    out[name_of(each.mesh)] = each;
  }
  return out;
}

constexpr Bytes kAmple = Bytes{1} << 40;

class MeshesTest : public ::testing::TestWithParam<MeshKind> {};

// One evaluator goes through all meshes: what it keeps of one is never used for another. Bounds
// are below all plans that they are for.
TEST_P(MeshesTest, OutcomesAreThoseOfSimulateAndAboveTheirBounds) {
  const Scenario scenario = meshes_scenario(GetParam());
  const plan::ModuleTree& tree = scenario.model->tree();
  Evaluator evaluator(scenario, scenario.machine->target());
  size_t meshes_run = 0, plans = 0;
  for (const plan::MeshSizes& mesh : meshes(kMeshRanks, MeshSpace::all(), GetParam().experts)) {
    const int64_t samples = samples_of_step(scenario) / data_parallel_ranks(kMeshRanks, mesh);
    const std::vector<Candidate> all = candidates(tree, std::span(&mesh, 1), samples);
    if (refusal_of_mesh(scenario_of(all.front(), scenario))) {
      EXPECT_TRUE(mesh.tensor == 8 || GetParam().experts) << name_of(mesh);
      continue;
    }
    ++meshes_run;
    for (size_t i = 0; i < all.size(); i += 1 + i % 4) {
      SCOPED_TRACE(name_of(all[i], kMeshRanks));
      const Prediction full = evaluate(scenario_of(all[i], scenario));
      const Outcome found = evaluator.evaluate(all[i]);
      ASSERT_EQ(found.figures, full.figures);
      ASSERT_EQ(found.peak_reserved, full.memory.peak_reserved);
      ASSERT_EQ(found.peak_allocated, full.memory.peak_allocated);
      Candidate whole = all[i];  // its bounds are those of all units
      whole.blocks_per_unit = 0;
      for (const Candidate& bounded : {all[i], whole}) {
        const LeastStep least = least_step(evaluator, bounded);
        ASSERT_LE(least.duration, found.figures.duration());
        ASSERT_LE(least.reserved, found.peak_allocated);
      }
      const double tokens = full.tokens_per_s * 1e-9 * static_cast<double>(full.step.duration);
      ASSERT_NEAR(tokens, static_cast<double>(kMeshRanks * GetParam().samples * GetParam().seq),
                  1e-6 * tokens);
      ++plans;
    }
  }
  EXPECT_EQ(meshes_run, GetParam().meshes);
  EXPECT_GT(plans, 300U);
}

// The fastest plan of each mesh that fits, of all candidates one after the other.
std::vector<std::pair<Nanoseconds, std::string>> enumerated(const Scenario& scenario,
                                                            Bytes limit,
                                                            Bytes& least) {
  const Target target = limited(scenario.machine->target(), limit);
  std::vector<std::pair<Nanoseconds, std::string>> out;
  const bool experts = scenario.model->config()->experts.count > 0;
  for (const plan::MeshSizes& mesh : meshes(kMeshRanks, MeshSpace::all(), experts)) {
    const int64_t samples = samples_of_step(scenario) / data_parallel_ranks(kMeshRanks, mesh);
    const std::vector<Candidate> all =
        candidates(scenario.model->tree(), std::span(&mesh, 1), samples);
    if (refusal_of_mesh(scenario_of(all.front(), scenario))) {
      continue;
    }
    Evaluator evaluator(scenario, target);
    std::optional<Nanoseconds> best;
    for (const Candidate& each : all) {
      const Outcome now = evaluator.evaluate(each);
      least = std::min(least, now.peak_reserved);
      best =
          now.fits ? std::min(best.value_or(now.figures.duration()), now.figures.duration()) : best;
    }
    if (best) {
      out.emplace_back(*best, name_of(mesh));
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

// A mesh that is searched in full skips microbatches that cannot fit, whatever the limit is.
TEST(MeshSearch, OneMeshHasItsFastestPlanThatFits) {
  for (const MeshKind& kind :
       {MeshKind{.name = "NoSync", .samples = 2, .sync = false}, MeshKind{.name = "TwoNodes",
                                                                 .seq = 512,
                                                                 .samples = 2,
                                                                 .half = false,
                                                                 .sync = false,
                                                                 .loss = true,
                                                                 .nodes = 2}}) {
    const Scenario scenario = meshes_scenario(kind);
    for (const plan::MeshSizes& mesh :
         {plan::MeshSizes{.replicate = 2, .shard = 1, .context = 1, .tensor = 4},
          plan::MeshSizes{.replicate = 1, .shard = 4, .context = 1, .tensor = 2},
          plan::MeshSizes{.replicate = 1, .shard = 8, .context = 1, .tensor = 1}}) {
      const int64_t samples = samples_of_step(scenario) / data_parallel_ranks(kMeshRanks, mesh);
      const std::vector<Candidate> all =
          candidates(scenario.model->tree(), std::span(&mesh, 1), samples);
      std::set<Bytes> limits;
      Evaluator unlimited(scenario, scenario.machine->target());
      for (const Candidate& each : all) {
        limits.insert(unlimited.evaluate(each).peak_allocated);
      }
      for (const Bytes limit : limits) {
        SCOPED_TRACE(fmt::format("{} {} {}", kind.name, name_of(mesh), limit));
        const Target target = limited(scenario.machine->target(), limit);
        Evaluator evaluator(scenario, target);
        std::optional<Nanoseconds> best;
        for (const Candidate& each : all) {
          const Outcome now = evaluator.evaluate(each);
          const Nanoseconds duration = now.figures.duration();
          best = now.fits ? std::min(best.value_or(duration), duration) : best;
        }
        if (!best) {
          continue;
        }
        SearchOptions options = every_mesh(limit);
        options.meshes.only = {mesh};
        const SearchResult found = search(scenario, options);
        ASSERT_NE(found.best(), nullptr);
        EXPECT_EQ(found.best()->outcome.figures.duration(), *best);
      }
    }
  }
}

// Searches by bounds find what trying all plans finds, the fastest of all and those of the five
// best meshes, in random searches, every second pair with experts. SHARDLENS_MESH_SEARCHES=50: this
// many of them.
TEST(MeshSearch, FindsWhatTryingEverythingFinds) {
  const char* given = std::getenv("SHARDLENS_MESH_SEARCHES");
  const int most = test::kSanitized ? 2 : 4;
  const int searches = given == nullptr ? most : std::atoi(given);
  uint32_t bits = 7;
  const auto pick = [&bits](const auto&... choices) {
    const std::array all{choices...};
    bits = 1664525 * bits + 1013904223;
    return all[(bits >> 16) % all.size()];
  };
  size_t evaluated = 0, slower = 0, pruned = 0, plans = 0;
  Bytes least = kAmple;
  Scenario scenario;
  for (int i = 0; i < searches; ++i) {
    SCOPED_TRACE(i);
    if (i % 2 == 0) {  // every second search is the same with little memory
      MeshKind kind{.name = ""};
      kind.layers = pick(2, 3, 4, 6);
      kind.seq = pick(128, 512, 2048, 4096);
      kind.samples = pick(1, 1, 2, 3);
      kind.half = pick(true, true, false);
      kind.sync = pick(true, false);
      kind.sequence = pick(true, true, false);
      kind.loss = pick(true, false);
      kind.method = pick(plan::ContextMethod::kAllGather, plan::ContextMethod::kRing);
      kind.nodes = pick(1, 1, 2);
      kind.offload = pick(false, false, false, true);
      kind.experts = i % 4 == 2;
      kind.layers =
          kind.experts && given == nullptr ? 2 : kind.layers;  // takes a third of the time
      scenario = meshes_scenario(kind);
      least = kAmple;
    }
    const SearchOptions options = every_mesh(i % 2 == 0 ? kAmple : least + least / pick(2, 4, 8));
    const SearchResult result = search(scenario, options);
    const auto best = enumerated(scenario, options.memory_limit, least);
    EXPECT_EQ(result.evaluated + result.pruned + result.slower, result.all);
    ASSERT_NE(result.best(), nullptr);
    ASSERT_FALSE(best.empty());
    EXPECT_EQ(result.best()->outcome.figures.duration(), best.front().first);
    const std::map<std::string, MeshResult> found = by_name(result);
    for (size_t k = 0; k < std::min(best.size(), kBestMeshes); ++k) {
      const MeshResult& mesh = found.at(best[k].second);
      ASSERT_TRUE(mesh.best) << best[k].second;
      EXPECT_EQ(mesh.best->outcome.figures.duration(), best[k].first) << best[k].second;
    }
    evaluated += result.evaluated;
    slower += result.slower;
    pruned += result.pruned;
    plans += result.all;
  }
  EXPECT_GT(slower, 0U);
  if (given != nullptr) {
    std::printf("%d searches, %zu plans: %zu evaluated in full, %zu slower and %zu too large\n",
                searches, plans, evaluated, slower, pruned);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    MeshesTest,
    ::testing::Values(
        MeshKind{.name = "OneSample"},
        MeshKind{.name = "ThreeSamples", .layers = 2, .samples = 3},
        MeshKind{.name = "NoSync", .samples = 2, .sync = false},
        MeshKind{.name = "Ring", .method = plan::ContextMethod::kRing},
        MeshKind{.name = "WholeRows", .half = false, .sequence = false},
        MeshKind{.name = "LossParallel", .loss = true},
        MeshKind{.name = "Offload", .samples = 2, .offload = true},
        MeshKind{.name = "TwoNodes", .seq = 1024, .nodes = 2},
        MeshKind{.name = "Compiled", .samples = 2, .compile = plan::Compile::kBlock},
        MeshKind{.name = "Experts", .layers = 2, .samples = 2, .experts = true, .meshes = 43},
        MeshKind{
            .name = "ExpertsOfTwoNodes", .layers = 2, .nodes = 2, .experts = true, .meshes = 43}),
    [](const auto& kind) { return std::string(kind.param.name); });

TEST(MeshSearch, ThreadsChangeNothing) {
  const Scenario scenario = meshes_scenario(MeshKind{.name = ""});
  SearchOptions one = every_mesh(kAmple), four = every_mesh(kAmple);
  one.threads = 1;
  four.threads = 4;
  const SearchResult a = search(scenario, one), b = search(scenario, four);
  EXPECT_EQ(a.evaluated, b.evaluated);
  EXPECT_EQ(a.why, b.why);
  ASSERT_EQ(a.pareto.size(), b.pareto.size());
  ASSERT_EQ(a.meshes.size(), b.meshes.size());
  for (size_t i = 0; i < a.meshes.size(); ++i) {
    EXPECT_EQ(a.meshes[i].end, b.meshes[i].end);
    EXPECT_EQ(a.meshes[i].evaluated, b.meshes[i].evaluated);
    EXPECT_EQ(a.meshes[i].least, b.meshes[i].least);
    ASSERT_EQ(a.meshes[i].best.has_value(), b.meshes[i].best.has_value());
    EXPECT_TRUE(!a.meshes[i].best || a.meshes[i].best->candidate == b.meshes[i].best->candidate);
  }
}

// 8 = 2 * 2 * 2 has 20 ordered factorizations into four sizes. Experts divide what `replicate`
// leaves: of the 4 + 3 * 2 + ... data-parallel meshes see the counts below.
TEST(Meshes, AreAllFactorizations) {
  EXPECT_EQ(meshes(8, MeshSpace::all(), false).size(), 20U);
  const std::vector<plan::MeshSizes> data = data_parallel_meshes(8);
  ASSERT_EQ(data.size(), 4U);
  EXPECT_EQ(name_of(data.front()), "not sharded");
  EXPECT_EQ(name_of(data.back()), "sharded over 8 ranks");
  // replicate 8, 4, 2, 1: 1, 3, 6, 10 meshes of what it leaves, with 1, 2, 3, 4 sizes of `expert`.
  EXPECT_EQ(meshes(8, MeshSpace::all(), true).size(), 1U + 2 * 3 + 3 * 6 + 4 * 10);
  MeshSpace some;
  some.tensor = {1, 4};
  std::set<std::string> names;
  for (const plan::MeshSizes& mesh : meshes(8, some, true)) {
    EXPECT_EQ(*mesh.replicate * *mesh.shard * mesh.context * mesh.tensor, 8);
    names.insert(name_of(mesh));
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"replicate 2, tensor 4", "shard 2, tensor 4"}));
  EXPECT_EQ(names.size(), 6U);
}

// A mesh with tensor 8 would divide 4 heads of keys and values.
TEST(MeshSearch, SaysWhyAMeshIsLeftOut) {
  const Scenario scenario = meshes_scenario(MeshKind{.name = ""});
  const std::map<std::string, MeshResult> found = by_name(search(scenario, every_mesh(kAmple)));
  EXPECT_EQ(found.at("tensor 8").end, MeshEnd::kRefused);
  EXPECT_THAT(found.at("tensor 8").refusal,
              testing::HasSubstr("tensor 8 does not divide 4 heads of keys and values"));
  EXPECT_EQ(found.at("tensor 8").all, 0U);
  for (const auto& [name, mesh] : by_name(search(scenario, every_mesh(1 << 20)))) {
    EXPECT_EQ(mesh.end, mesh.mesh.tensor == 8 ? MeshEnd::kRefused : MeshEnd::kTooLarge) << name;
  }
}

// Eight samples cannot be divided over 3 · 8 ranks, nor over 16 of a plan with tensor 2.
TEST(MeshSearch, SamplesAreThoseOfThePlansMesh) {
  Scenario scenario = meshes_scenario(MeshKind{.name = ""});
  scenario.plan.mesh.tensor = 4;  // two data-parallel ranks with a sample each
  const std::map<std::string, MeshResult> found = by_name(search(scenario, every_mesh(kAmple)));
  EXPECT_EQ(found.at("sharded over 8 ranks").end, MeshEnd::kRefused);
  EXPECT_THAT(found.at("sharded over 8 ranks").refusal,
              testing::HasSubstr("2 samples of a step cannot be divided over 8"));
  EXPECT_EQ(found.at("shard 2, tensor 4").samples, 1);
  EXPECT_EQ(found.at("shard 2, context 2, tensor 2").samples, 1);
  EXPECT_EQ(found.at("context 2, tensor 4").samples, 2);
}

TEST(MeshSearch, CanBeCancelled) {
  const Scenario scenario = meshes_scenario(MeshKind{.name = ""});
  std::atomic<bool> cancelled{false};
  SearchOptions stop = every_mesh(kAmple);
  stop.threads = 1;
  stop.cancelled = &cancelled;
  const size_t data_parallel = candidates(scenario.model->tree(), kMeshRanks, 1).size();
  stop.on_progress = [&](const Found&, size_t done, size_t) {
    cancelled = done >= data_parallel + 3;
  };
  const SearchResult result = search(scenario, stop);
  EXPECT_TRUE(result.cancelled);
  EXPECT_EQ(result.evaluated, data_parallel + 3);
  EXPECT_NE(result.best(), nullptr);
  EXPECT_EQ(by_name(result).at("sharded over 8 ranks").end, MeshEnd::kSearched);
}

}  // namespace
}  // namespace shardlens::sim
