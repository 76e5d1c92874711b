#pragma once

#include "core/base/shown.h"
#include "sim/advise/mesh_proposal.h"

namespace shardlens::cli {

// The best plan on another mesh, or why there is none; printed after the changes of advise.
[[nodiscard]] Shown mesh_proposal_text(const sim::MeshProposal& proposal);

}  // namespace shardlens::cli
