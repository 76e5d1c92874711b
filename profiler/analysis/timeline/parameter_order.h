#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "profiler/trace/model/sharded_parameter.h"

namespace shardlens::analysis {

// The parameters that one collective of a program moves.
struct MovedParameters {
  std::string unit;        // of a bucket of several units: the first and the last, "a … b"
  std::string module;      // the innermost that has all of them; of several units as `unit`
  bool ambiguous = false;  // several units are possible; then `unit` is one of them
  // Indices of the parameters. Of those of a unit that have the same size, the next one in the
  // order of the modules. Empty: not known.
  std::vector<uint32_t> parameters;
  friend bool operator==(const MovedParameters&, const MovedParameters&) = default;
};

// Finds the parameters that the collectives of one kind move in a forward or a backward.
//
// [Note: Order of parameters] Compilers and parametrizations keep no names, but they move the
// parameters of one unit after those of another, in the order of the modules (`backward`: from the
// last one), and each at most once. A collective moves one parameter or a bucket of several, so its
// size is theirs. Within a unit every order is possible. Units with parameters of equal sizes are
// treated alike, unless no such division fits: then some of them move none. Where a parameter
// before the blocks may also be moved after them, as a norm that was registered early, what depends
// on it is ambiguous.
//
// elements   of a rank's part, of each collective in the order of their calls
// Result     one for each collective; empty if no order fits
// Complexity a search that gives up, with an empty result, after a million steps
[[nodiscard]] std::vector<MovedParameters> moved_parameters(
    std::span<const int64_t> elements,
    std::span<const trace::ShardedParameter> parameters,
    bool backward);

}  // namespace shardlens::analysis
