#include "gui/model/tables/communication_table.h"

#include <numeric>
#include <string>
#include <utility>

#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/model/run/run_notes.h"
#include "gui/model/tables/table_text.h"

namespace shardlens::gui {

std::vector<ColumnTable::Column> CommunicationTable::columns(const CommunicationTable* of) {
  const auto row = [of](size_t r) -> const analysis::CommunicationFigures& { return of->at(r); };
  const QString unknown = QStringLiteral("–");
  return {
      {tr("Purpose"), [row](size_t r) { return words(name_of(row(r).purpose)); }},
      {tr("Group"),
       [row](size_t r) {
         return row(r).group.empty() ? tr("(not named)") : table_text(row(r).group);
       }},
      {tr("Ranks"),
       [row, unknown](size_t r) {
         return row(r).ranks == 0 ? unknown : QString::number(row(r).ranks);
       },
       [row](size_t r) { return static_cast<double>(row(r).ranks); }, true, tr("Of the group")},
      {tr("Collective"),
       [row, unknown](size_t r) { return row(r).kind ? words(name_of(*row(r).kind)) : unknown; }},
      {tr("Count"),
       [row, unknown](size_t r) { return row(r).count ? QString::number(*row(r).count) : unknown; },
       [row](size_t r) { return static_cast<double>(row(r).count.value_or(0)); }, true},
      {tr("Bytes"),
       [row, unknown](size_t r) { return row(r).bytes == 0 ? unknown : bytesText(row(r).bytes); },
       [row](size_t r) { return static_cast<double>(row(r).bytes); }, true,
       tr("Of the larger messages")},
      {tr("Busy"),
       [row](size_t r) { return durationText(row(r).busy); },
       [row](size_t r) { return static_cast<double>(row(r).busy); },
       true,
       {},
       Scale::kDuration},
      {tr("Exposed"), [row](size_t r) { return durationText(row(r).exposed); },
       [row](size_t r) { return static_cast<double>(row(r).exposed); }, true,
       tr("While nothing computes; each section sums to its exposed communication"),
       Scale::kDuration},
  };
}

CommunicationTable::CommunicationTable(QObject* parent) : ColumnTable(columns(this), parent) {}

void CommunicationTable::show(const SelectionContext& selection, const PlanSession& session) {
  run_.clear();
  plan_.clear();
  std::vector<Section> sections(2);
  if (const RankData* rank = selection.rank()) {
    const analysis::IntervalSet window = selection.window();
    run_ = analysis::communication_figures(
        analysis::window_groups(rank->trace, rank->timeline, rank->partition, window),
        rank->timeline, rank->partition, window);
    sections[0].title =
        (is_simulated(*selection.run()) ? tr("Rank %1, simulated") : tr("Rank %1, measured"))
            .arg(rank->figures.rank);
  }
  if (const PlanVersion* now = session.current(); now != nullptr && now->hasStep()) {
    plan_ = now->prediction.communication;
    sections[1].title = tr("v%1, simulated").arg(now - session.versions().data());
  }
  sections[0].rows.resize(run_.size());
  sections[1].rows.resize(plan_.size());
  std::iota(sections[0].rows.begin(), sections[0].rows.end(), 0U);
  std::iota(sections[1].rows.begin(), sections[1].rows.end(), static_cast<uint32_t>(run_.size()));
  reset(std::move(sections));
}

}  // namespace shardlens::gui
