#include "cli/results/mesh_proposal_text.h"

#include <string>

#include <fmt/format.h>

#include "core/base/format_bytes.h"
#include "core/base/show.h"
#include "profiler/report/table.h"
#include "sim/search/meshes.h"

#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

void add_row(const std::string& what, const sim::PricedMesh& of, report::Table& table) {
  table.row({what, report::format_duration(of.duration),
             of.interval ? report::format_duration(of.interval->low) : "",
             of.interval ? report::format_duration(of.interval->high) : "",
             format_bytes(of.peak_reserved)});
}

}  // namespace

Shown mesh_proposal_text(const sim::MeshProposal& proposal) {
  if (!proposal.refusal.empty()) {
    return show("\nNo other mesh is proposed: {}\n", proposal.refusal);
  }
  report::Table table({{"mesh, priced from the model", report::Align::kLeft},
                       {"step"},
                       {"90 % from"},
                       {"to"},
                       {"peak reserved"}});
  add_row(fmt::format("the run's own: {}", sim::name_of(proposal.own->mesh)), *proposal.own, table);
  add_row(fmt::format("best of {} others: {}", proposal.searched, proposal.best->title),
          *proposal.best, table);
  const double change =
      static_cast<double>(proposal.change()) / static_cast<double>(proposal.own->duration);
  Shown out = Literal("\n") + table.render(style_of_stdout());
  out += show(
      "{:+.1f} %, on {}. Both steps are predicted from the model, not from the run's "
      "operators, so they are not compared with the changes above.\n",
      100 * change, proposal.machine);
  if (proposal.refused > 0) {
    out += show("{} mesh{} left out: {}\n", proposal.refused,
                proposal.refused == 1 ? " was" : "es were", proposal.why_refused);
  }
  return out;
}

}  // namespace shardlens::cli
