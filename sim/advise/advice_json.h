#pragma once

#include <nlohmann/json.hpp>

#include "sim/advise/advise.h"
#include "sim/advise/mesh_proposal.h"

namespace shardlens::sim {

// The format of `advise --json` and of the report; docs/reference/cli.md describes the keys. Times
// are in nanoseconds, sizes in bytes.
[[nodiscard]] nlohmann::ordered_json advice_json(const Advice& advice);

// advise --json: "mesh".
[[nodiscard]] nlohmann::ordered_json mesh_proposal_json(const MeshProposal& proposal);

}  // namespace shardlens::sim
