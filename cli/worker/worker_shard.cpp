#include "cli/worker/worker_shard.h"

#include <chrono>
#include <cstdio>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <sys/resource.h>

#include "core/base/error.h"
#include "core/base/format_bytes.h"
#include "core/base/standard_output.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/models/model.h"
#include "core/train/parallel_model.h"

#include "cli/flags/prepared_run.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {
namespace {

// Bytes that the plan assigns to the rank, without padding.
Bytes planned_bytes(const plan::ResolvedPlan& plan, int64_t rank) {
  int64_t numel = 0;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const plan::ShardLayout layout = plan.layout(id);
    numel += layout.owned_numel(rank % layout.ranks());
  }
  for (const uint32_t parameter : plan.ignored_parameters) {
    numel += plan.tree.parameters[parameter].numel;
  }
  return numel * size_of(DType::kF32);
}

Bytes held_bytes(const fsdp::ShardedModel& sharded) {
  Bytes bytes = 0;
  for (const fsdp::ParameterSlice& slice : sharded.slices()) {
    if (slice.values.storage().nbytes() != 0) {
      throw RuntimeFault("internal error: memory was allocated for a deferred shard");
    }
    bytes += static_cast<Bytes>(slice.values.nbytes());
  }
  return bytes;
}

void shard(const RunOptions& options, int64_t world_size) {
  const auto begin = std::chrono::steady_clock::now();
  const PreparedRun run = resolve_run(options, world_size);
  dist::WorldOptions world_options;
  world_options.backend = dist::BackendKind::kEmulated;
  world_options.world_size = static_cast<int>(world_size);
  world_options.rank = static_cast<int>(options.rank);
  const auto world = dist::World::join(world_options);
  const auto model = models::make_model(run.config, models::Init::kNone);
  fsdp::Options sharding;
  sharding.world = world.get();
  sharding.deferred = true;
  const auto sharded = train::apply_plan(model, run.plan, sharding);
  const Bytes expected = planned_bytes(run.plan, options.rank), found = held_bytes(*sharded);
  if (found != expected) {
    throw RuntimeFault(fmt::format(
        "internal error: the engine's shards have {} bytes, the plan's {}", found, expected));
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  write_stderr(
      "engine: rank {} of {} holds {} in {} units, as planned, none of them allocated; "
      "{:.2f} s, at most {} MiB resident\n",
      options.rank, world_size, format_bytes(found), run.plan.units.size(), elapsed.count(),
      usage.ru_maxrss / 1024);
}

}  // namespace

int shard_without_memory(int argc, char** argv) {
  CLI::App app("Shards a model as one rank, without allocating it, and compares it with the plan",
               "shardlens-worker shard");
  RunOptions options;
  int64_t world_size = 1;
  add_plan_options(app, options);
  app.add_option("--world-size", world_size, "number of ranks")->capture_default_str();
  app.add_option("--rank", options.rank, "this process's rank")->capture_default_str();
  if (const auto ended = parse_worker_flags(app, argc, argv)) {
    return static_cast<int>(*ended);
  }
  if (world_size < 1 || options.rank < 0 || options.rank >= world_size) {
    throw UsageError(fmt::format("--rank {}: expected 0 to {} (--world-size {})", options.rank,
                                 world_size - 1, world_size));
  }
  shard(options, world_size);
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace shardlens::cli
