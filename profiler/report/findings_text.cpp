#include "profiler/report/findings_text.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/show.h"

namespace shardlens::report {
namespace {

using analysis::Analysis;
using analysis::RankAnalysis;
using analysis::UnitPart;
using analysis::UnitSpan;
using analysis::Waste;

constexpr size_t kNamesShown = 6, kExplained = 5, kGroups = 12;

std::string list_of(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string out = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  return shown < names.size() ? out + fmt::format(", … ({} in all)", names.size()) : out;
}

// Whether it is known to be for something that FSDP and DDP do not do themselves.
bool is_beyond_sharding(Purpose purpose) {
  switch (purpose) {
    case Purpose::kGatherParameters:
    case Purpose::kReduceGradients:
    case Purpose::kReduceReplicas:
    case Purpose::kOther:
      return false;
    default:
      return true;
  }
}

Nanoseconds lost_in(const RankAnalysis& rank) {
  Nanoseconds sum = 0;
  for (const Waste& waste : rank.waste) {
    sum += waste.lost;
  }
  return sum;
}

Shown proof_line(const analysis::CauseProof& proof, Nanoseconds zero) {
  Shown out = show("    {:<30} {}", proof.what, format_duration(proof.when.start - zero));
  if (proof.when.end > proof.when.start) {
    out += show(" to {} ({})", format_duration(proof.when.end - zero),
                format_duration(proof.when.length()));
  }
  return out + (proof.name.empty() ? Shown() : show("  {}", elided(proof.name, 60))) + "\n";
}

}  // namespace

std::string shown_unit(const std::string& fqn) {
  return fqn.empty() ? "(root)" : fqn;
}

Shown causes_text(const CausesOfParts& causes) {
  Shown out;
  std::optional<analysis::ExposedCause> last;
  for (const auto& [cause, part] : causes) {
    if (cause != last) {
      out += show("  {}: {}\n", words_of(cause), explanation_of(cause));
      last = cause;
    }
  }
  std::map<std::string_view, std::vector<std::string>> remedies;
  for (const auto& [cause, part] : causes) {
    if (const std::string_view remedy = remedy_of(cause, part); !remedy.empty()) {
      remedies[remedy].push_back(fmt::format("{}, {}", analysis::name_of(part), words_of(cause)));
    }
  }
  for (const auto& [remedy, list] : remedies) {
    out += show("  what may help ({}): {}\n", show_joined(list, "; "), remedy);
  }
  return out;
}

Shown blocks_text(const RankAnalysis& rank, Style style) {
  if (rank.blocks.empty()) {
    return {};
  }
  Table table({{"blocks alike", Align::kLeft},
               {"collective", Align::kLeft},
               {"exposed"},
               {"median"},
               {"worst"},
               {"which", Align::kLeft}});
  Shown outliers;
  for (const analysis::BlockFigures& block : rank.blocks) {
    for (size_t i = 0; i < block.parts.size(); ++i) {
      if (const auto& part = block.parts[i]) {
        table.row({block.name, std::string(analysis::name_of(static_cast<UnitPart>(i))),
                   format_duration(part->sum), format_duration(part->median),
                   format_duration(part->worst),
                   part->worst > 0 ? shown_unit(rank.units[part->worst_unit].fqn) : "-"});
      }
    }
    std::vector<std::string> names;
    for (const uint32_t unit : block.outliers) {
      names.push_back(fmt::format("{} ({})", shown_unit(rank.units[unit].fqn),
                                  format_duration(rank.units[unit].exposed())));
    }
    if (!names.empty()) {
      outliers += show("far from the other {}: {}\n", block.name, list_of(names));
    }
  }
  return table.rows() == 0 ? Shown() : "\n" + table.render(style) + outliers;
}

Shown groups_text(const RankAnalysis& rank, Style style) {
  if (rank.groups.size() < 2) {
    return {};
  }
  std::vector<Table::Column> columns{
      {"group", Align::kLeft}, {"ranks"}, {"count"}, {"busy"}, {"exposed"}, {"under compute"}};
  const size_t shown = std::min(rank.groups.size(), kGroups);
  for (size_t i = 0; i < shown; ++i) {
    const std::string& name = rank.groups[i].name;
    columns.push_back({"under " + (name.empty() ? "(not named)" : name)});
  }
  Table table(std::move(columns));
  for (size_t i = 0; i < shown; ++i) {
    const analysis::GroupFigures& group = rank.groups[i];
    std::vector<std::string> row{group.name.empty() ? "(not named)" : group.name,
                                 group.size == 0 ? "-" : std::to_string(group.size),
                                 std::to_string(group.count),
                                 format_duration(group.busy),
                                 format_duration(group.exposed),
                                 format_duration(group.under_compute)};
    for (size_t k = 0; k < shown; ++k) {
      row.push_back(i == k ? "" : format_duration(group.under[k]));
    }
    table.row(std::move(row));
  }
  return "\n" + bold(show("process groups of rank {}", rank.rank), style) + "\n" +
         table.render(style) +
         (rank.groups.size() == shown
              ? Shown()
              : show("({} more, with less communication)\n", rank.groups.size() - shown));
}

Shown communication_table(const std::vector<analysis::CommunicationFigures>& communication,
                          Style style) {
  Table table({{"purpose", Align::kLeft},
               {"group", Align::kLeft},
               {"collective", Align::kLeft},
               {"count"},
               {"bytes"},
               {"busy"},
               {"exposed"}});
  for (const analysis::CommunicationFigures& each : communication) {
    table.row({std::string(name_of(each.purpose)), each.group.empty() ? "(not named)" : each.group,
               std::string(each.kind ? name_of(*each.kind) : "unknown"),
               std::to_string(each.count.value_or(0)), format_message(each.bytes),
               format_duration(each.busy), format_duration(each.exposed)});
  }
  return table.render(style);
}

Shown purposes_text(const RankAnalysis& rank, Style style) {
  if (std::none_of(rank.communication.begin(), rank.communication.end(),
                   [](const auto& each) { return is_beyond_sharding(each.purpose); })) {
    return {};
  }
  return "\n" + bold(show("communication by purpose on rank {}", rank.rank), style) + "\n" +
         communication_table(rank.communication, style);
}

Shown waste_text(const Analysis& analysis, Style style) {
  if (analysis.ranks.empty()) {
    return {};
  }
  const RankAnalysis& rank = *std::max_element(
      analysis.ranks.begin(), analysis.ranks.end(),
      [](const RankAnalysis& a, const RankAnalysis& b) { return lost_in(a) < lost_in(b); });
  if (rank.waste.empty()) {
    return {};
  }
  struct Row {
    Nanoseconds lost = 0;
    int64_t count = 0;
    std::vector<std::string> where;
  };
  std::map<analysis::WasteKind, Row> rows;
  for (const Waste& waste : rank.waste) {
    Row& row = rows[waste.kind];
    row.lost += waste.lost;
    row.count += waste.count;
    if (waste.kind != analysis::WasteKind::kFrozenViews) {
      row.where.push_back(shown_unit(waste.where));
    }
  }
  std::vector<std::pair<analysis::WasteKind, Row>> sorted(rows.begin(), rows.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.lost > b.second.lost; });
  Shown out = "\n" + bold(show("waste on rank {}", rank.rank), style) + "\n";
  for (const auto& [kind, row] : sorted) {
    out += show("{} lost, {} time{}{}: {}\n", format_duration(row.lost), row.count,
                row.count == 1 ? "" : "s", row.where.empty() ? "" : " (" + list_of(row.where) + ")",
                explanation_of(kind));
  }
  return out;
}

Shown explained_text(const Analysis& analysis,
                     const std::string& unit,
                     std::optional<size_t> top,
                     Style style) {
  Shown out;
  for (const RankAnalysis& rank : analysis.ranks) {
    std::vector<const UnitSpan*> spans;
    if (rank.detail) {
      for (const UnitSpan& span : rank.detail->spans) {
        if (span.owner == unit && span.cause) {
          spans.push_back(&span);
        }
      }
    }
    std::stable_sort(spans.begin(), spans.end(),
                     [](const UnitSpan* a, const UnitSpan* b) { return a->exposed > b->exposed; });
    out += "\n" +
           bold(show("{} on rank {}: {} exposed collective{}", shown_unit(unit), rank.rank,
                     spans.size(), spans.size() == 1 ? "" : "s"),
                style) +
           "\n";
    const size_t shown = std::min(spans.size(), top.value_or(kExplained));
    for (size_t i = 0; i < shown; ++i) {
      const UnitSpan& span = *spans[i];
      out += show(
          "  {}{}, {}: {} exposed; {}: {}\n", span.step ? fmt::format("step {}, ", *span.step) : "",
          span.part && *span.part != UnitPart::kOther ? std::string(analysis::name_of(*span.part))
                                                      : span.name,
          name_of(span.section), format_duration(span.exposed), words_of(*span.cause),
          explanation_of(*span.cause));
      const Nanoseconds zero = span.issued.value_or(span.when.start);
      for (const analysis::CauseProof& proof : span.proof) {
        out += proof_line(proof, zero);
      }
      if (span.part) {
        if (const auto remedy = remedy_of(*span.cause, *span.part); !remedy.empty()) {
          out += show("    what may help: {}\n", remedy);
        }
      }
    }
    if (spans.size() > shown) {
      out += show("  ({} more)\n", spans.size() - shown);
    }
  }
  return out;
}

}  // namespace shardlens::report
