#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/scenario/scenario.h"
#include "sim/search/candidates.h"
#include "sim/search/meshes.h"
#include "sim/search/outcome.h"
#include "sim/search/precision.h"

namespace shardlens::sim {

struct Found {  // a candidate and its figures
  Candidate candidate;
  Outcome outcome;
};

struct SearchOptions {     // limits of a search
  Bytes memory_limit = 0;  // in addition to the machine's own; 0: none
  unsigned threads = 0;    // 0: one per core
  MeshSpace meshes;        // by default those of data parallelism
  // Precisions from which the search may choose, without duplicates; empty: only the plan's.
  std::vector<Precision> precisions;
  // Outcomes of an earlier, identical search, by name_of(); they are not predicted again.
  std::unordered_map<std::string, Outcome> known;
  // Called from one thread at a time, for each candidate that this search predicts.
  std::function<void(const Found&, size_t done, size_t all)> on_progress;
  const std::atomic<bool>* cancelled = nullptr;  // checked between candidates
};

struct PrecisionResult {  // the fastest candidate of a precision
  Precision precision;
  std::optional<Found> best;  // nullopt: none fits
};

// How the search of a mesh ended.
enum class MeshEnd : uint8_t {
  kNotReached,  // it was cancelled before
  kSearched,    // it has a plan that fits
  kRefused,     // the model does not run on it
  kTooLarge,    // no plan fits
  kSlower,      // by lower bounds no plan that fits is among the fastest
};
// "not_reached", "searched", "refused", "does_not_fit", "slower".
[[nodiscard]] std::string_view name_of(MeshEnd end);

struct MeshResult {  // what a search found on one mesh
  plan::MeshSizes mesh;
  MeshEnd end = MeshEnd::kNotReached;
  std::optional<Found> best;  // if kSearched
  std::string refusal;        // why the model does not run, or of the first candidate refused
  int64_t samples = 0;        // of a data-parallel rank in a step
  Nanoseconds least = 0;      // no step that fits is shorter; 0: not known
  size_t all = 0, evaluated = 0, pruned = 0, slower = 0, refused = 0;  // as in SearchResult
};

struct SearchResult {    // what a search found
  size_t all = 0;        // candidates of the space, on meshes on which the model runs
  size_t evaluated = 0;  // predicted by this search or an earlier one
  size_t pruned = 0;     // skipped, since by a bound or a smaller microbatch they do not fit
  size_t slower = 0;     // skipped, since by a bound others are faster
  size_t refused = 0;    // not predicted, since the machine's calibration lacks measurements
  std::string refusal;   // error message of the first refused candidate
  bool cancelled = false;
  std::vector<Found> pareto;  // of step time, peak memory and exposed communication, fastest first
  std::vector<PrecisionResult> by_precision;  // of SearchOptions::precisions
  std::string why;                     // why the fastest candidate is faster; "": no candidate fits
  std::vector<MeshResult> meshes;      // of the space, in its order
  std::vector<std::string> not_tried;  // not_tried() of the space

  [[nodiscard]] const Found* best() const { return pareto.empty() ? nullptr : &pareto.front(); }
};

// The result of a search has the best plans of this many meshes, if as many have one that fits.
inline constexpr size_t kBestMeshes = 5;

// Predicts candidates of a scenario, in parallel. Model, machine, number of ranks and the plan's
// dialect are the scenario's, and so is its precision unless options.precisions has others. All
// meshes have as many samples in a step of all ranks (samples_of_step()), so a data-parallel rank
// has more of them where other axes divide the work; they are divided into microbatches in every
// way.
//
// [Note: Meshes] Meshes of data parallelism only, or the only mesh, are searched in full. Of others
// a plan is predicted if its bounds (mesh_bound.h) let it fit and be faster than the fastest plans
// of five meshes in its precision; they are searched in rounds, so that rounds can only profit from
// earlier ones. A plan of the front is thus beaten by no plan that was predicted; the fastest one,
// and those of the five best meshes, by none at all.
//
// [Note: Pruning] Of candidates that differ only in their microbatch, a larger one keeps more
// activations. So if one does not fit, larger ones are skipped, except the one without
// accumulation, which has no gradients of earlier microbatches. A candidate whose parameters,
// gradients and optimizer states do not fit is not simulated.
//
// [Note: Offload] If nothing fits, all candidates are predicted again with cpu_offload. It takes
// less memory for more time, in copies and in the optimizer on the host, so it is no dimension of
// the space.
//
// The result does not depend on the number of threads. If nothing fits, `pareto` is empty. Errors:
// InputError if the model cannot be planned or is unknown (traces without a config.json), or if
// every candidate is refused.
[[nodiscard]] SearchResult search(const Scenario& scenario, const SearchOptions& options);

// The target with a limit on what its allocator reserves; 0: only the target's own.
[[nodiscard]] Target limited(Target target, Bytes limit);

// The candidates that fit and that no other one beats or equals in all three figures.
[[nodiscard]] std::vector<Found> pareto_front(std::vector<Found> found);

}  // namespace shardlens::sim
