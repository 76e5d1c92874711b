#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/step_figures.h"
#include "sim/search/search.h"

namespace shardlens::sim {

// What bounds the time of a step: the work of its operators, communication that they wait for,
// copies, the host, or that a faster plan needs more memory.
enum class StepLimit : uint8_t { kCompute, kLinks, kCopies, kHost, kMemory };
// "compute", "links", "copies", "host", "memory".
[[nodiscard]] std::string_view name_of(StepLimit limit);

// Parts of at least a tenth of the step, the largest first. Never kMemory.
[[nodiscard]] std::vector<StepLimit> limits_of(const StepFigures& figures);

struct PurposeTime {  // communication of a step for one purpose
  Purpose purpose = Purpose::kOther;
  Nanoseconds busy = 0, exposed = 0;
};

struct MeshReport {  // the fastest plan of a mesh, explained
  size_t mesh = 0;   // index into SearchResult::meshes
  StepFigures figures;
  std::vector<PurposeTime> purposes;  // in the order of the enum
  // Parts of at least a tenth of the step, the largest first; kMemory last, if without the limit
  // the same plan would be faster without checkpoints, kept after forward, or in one microbatch.
  std::vector<StepLimit> limits;
  std::string difference;  // from the fastest: "12.1 ms longer: activations +20.0 ms, …"; "": it is
};

// Reports of the fastest meshes of a result, at most kBestMeshes, the fastest first.
// `memory_limit`: that of the search.
[[nodiscard]] std::vector<MeshReport> mesh_reports(const Scenario& scenario,
                                                   const SearchResult& result,
                                                   Bytes memory_limit);

}  // namespace shardlens::sim
