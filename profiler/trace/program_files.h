#pragma once

#include <cstdint>
#include <filesystem>

#include <nlohmann/json_fwd.hpp>

#include "profiler/trace/run.h"

namespace shardlens::trace {

// What shardlens.record wrote of the program in `directory`: its plan.json on the modules of its
// model.json, and the step's settings from run.json (`environment`). The workload is empty. The
// plan is that of the ranks that share data: with tensor parallelism, fewer than the world.
//
// Errors  InputError for a file that cannot be read, and for a plan that does not fit the model.
[[nodiscard]] PlannedInputs read_recorded_program(const std::filesystem::path& directory,
                                                  const nlohmann::json& environment,
                                                  const Metadata& metadata);

}  // namespace shardlens::trace
