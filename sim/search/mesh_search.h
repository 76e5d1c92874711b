#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/search/mesh_bound.h"
#include "sim/search/predictions.h"
#include "sim/search/search.h"

namespace shardlens::sim {

// The search of one mesh that divides the work of a step. It predicts what its bounds do not rule
// out, so its fastest plan is the fastest of the mesh, if there is one below the given limits.
//
// [Note: Search of a mesh] Candidates with the same checkpoints, precision and microbatches have
// one bound (mesh_bound.h). Those with the least bound come first; what cannot be faster than the
// fastest plan so far, of the mesh and the precision, is left out. Candidates come one after the
// other, so the result does not depend on threads.
//
// Threads  an object must be used by one thread at a time.
class MeshSearch {
 public:
  // `samples`: of a data-parallel rank in a step. All arguments must outlive it.
  MeshSearch(const Scenario& scenario,
             const Target& target,
             Predictions& predictions,
             const plan::MeshSizes& mesh,
             int64_t samples);

  // Finds bounds of the candidates, all of which are of this mesh. `precisions`: those of the
  // candidates, at least one.
  void bound(const std::vector<Candidate>& candidates,
             std::span<const std::optional<Precision>> precisions);
  // The least bound of what fits; nullopt: there is nothing left to search.
  [[nodiscard]] std::optional<Nanoseconds> least() const;
  // Predicts the candidates whose bound is below the limit of their precision.
  void search(std::span<const Nanoseconds> limits);

  [[nodiscard]] const MeshResult& result() const { return result_; }
  [[nodiscard]] const std::vector<Found>& found() const { return found_; }
  // The step of the fastest plan in a precision, by index; nullopt: none was found.
  [[nodiscard]] std::optional<Nanoseconds> best(size_t precision) const;
  [[nodiscard]] bool cancelled() const { return cancelled_; }

 private:
  struct Group {  // candidates with one bound
    size_t precision = 0;
    std::vector<Candidate> candidates;
    LeastStep least;
  };

  [[nodiscard]] std::vector<Group> groups_of(
      const std::vector<Candidate>& candidates,
      std::span<const std::optional<Precision>> precisions) const;
  [[nodiscard]] bool runs(const Candidate& candidate, Evaluator& evaluator);
  void predict(const Group& group, Evaluator& evaluator);
  void refuse(const std::string& why, size_t count);
  void settle();

  const Scenario& scenario_;
  const Target& target_;
  Predictions& predictions_;
  MeshResult result_;
  std::vector<Group> groups_;  // that may fit, those with the least bound first
  std::vector<Found> found_;
  std::vector<std::optional<Found>> best_;  // by precision
  bool cancelled_ = false;
};

}  // namespace shardlens::sim
