#include "cli/flags/prepared_run.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "core/mesh/mesh.h"
#include "core/plan/resolve.h"
#include "core/plan/strategy_change.h"
#include "core/workload/step_support.h"

namespace shardlens::cli {
namespace {

constexpr uint64_t kLargestTokens = uint64_t{1} << 42;  // 4 TiB

void apply_mesh(const RunOptions& options, plan::Plan& plan) {
  const plan::MeshSizes given = plan::with_mesh(plan.mesh, options.mesh);
  for (const std::string& axis : plan::mesh_axes()) {
    const std::optional<int64_t> own = plan::size_of_axis(plan.mesh, axis);
    // A strategy's replicas are only its default.
    const bool fixed = own && (axis == mesh::kReplicate ? !options.plan.empty()
                               : axis == mesh::kShard   ? true
                                                        : *own > 1);
    if (!fixed || own == plan::size_of_axis(given, axis)) {
      continue;
    }
    throw UsageError(fmt::format("--mesh {} contradicts the mesh of {}: leave one of them out",
                                 options.mesh, plan.source));
  }
  plan.mesh = given;
}

void apply_precision(const RunOptions& options, plan::Plan& plan) {
  if (options.precision == Precision::kFp32) {
    return;  // the plan's own precision
  }
  const DType dtype = options.precision == Precision::kBf16 ? DType::kBF16 : DType::kF16;
  plan::MixedPrecision& mixed = plan.mixed_precision;
  if (mixed.param_dtype.value_or(dtype) != dtype ||
      mixed.reduce_dtype.value_or(DType::kF32) != DType::kF32) {
    throw UsageError(
        fmt::format("--precision {0} ({0} parameters, fp32 reduction) contradicts mixed_precision "
                    "of {1}: leave one of them out",
                    name_of(options.precision), plan.source));
  }
  mixed.param_dtype = dtype;
  mixed.reduce_dtype = DType::kF32;
}

void check_samples(const RunOptions& options, const PreparedRun& run) {
  if (*options.step.seq > run.config.max_positions && run.config.max_positions > 0) {
    throw InputError("--seq",
                     fmt::format("{} tokens a sample, but {} has {} positions", *options.step.seq,
                                 run.config.source, run.config.max_positions));
  }
  if (run.samples < 1) {
    throw InputError(options.tokens.string(),
                     fmt::format("{} tokens are too few for one sample of --seq {} (it takes {})",
                                 run.tokens, *options.step.seq, *options.step.seq + 1));
  }
  if (run.samples < run.plan.world_size) {
    throw InputError(options.tokens.string(),
                     fmt::format("{} ranks, but only {} samples of {} tokens: use fewer ranks, a "
                                 "shorter --seq or more tokens",
                                 run.plan.world_size, run.samples, *options.step.seq));
  }
}

}  // namespace

plan::Plan plan_of(const RunOptions& options, const plan::ModuleTree& tree) {
  plan::Plan plan = options.plan.empty() ? plan::strategy_plan(options.strategy, tree)
                                         : plan::load_plan(options.plan);
  apply_mesh(options, plan);
  apply_precision(options, plan);
  return plan;
}

plan::Plan changed_plan(const RunOptions& options,
                        bool strategy_given,
                        plan::Plan own,
                        const plan::ModuleTree& tree) {
  if (!options.plan.empty()) {
    return plan_of(options, tree);
  }
  if (strategy_given) {
    own = plan::with_strategy(std::move(own), options.strategy, tree);
  }
  own.mesh = plan::with_mesh(own.mesh, options.mesh);
  return own;
}

PreparedRun resolve_run(const RunOptions& options, int64_t world_size) {
  PreparedRun run;
  run.config = plan::load_model_config(options.model);
  const plan::ModuleTree tree = plan::module_tree(run.config);
  run.plan = plan::resolve(plan_of(options, tree), tree, world_size);
  return run;
}

PreparedRun prepare_run(const RunOptions& options, int64_t world_size) {
  PreparedRun run = resolve_run(options, world_size);
  plan::require_engine_support(run.plan);
  plan::require_step_support(run.plan, options.step);
  run.tokens = count_tokens(options.tokens);
  run.samples = (run.tokens - 1) / *options.step.seq;
  check_samples(options, run);
  return run;
}

int64_t count_tokens(const std::filesystem::path& path) {
  const uint64_t bytes =
      InputFile(path, {.most_bytes = kLargestTokens, .expected = "a token file"}).size();
  const std::string name = path.filename().string();
  const unsigned width = name.ends_with(".u32.bin") ? 4U : (name.ends_with(".bin") ? 2U : 1U);
  if (bytes % width != 0) {
    throw InputError(
        path.string(),
        fmt::format("{} bytes are not a multiple of {}, the bytes of a token", bytes, width));
  }
  return static_cast<int64_t>(bytes / width);
}

}  // namespace shardlens::cli
