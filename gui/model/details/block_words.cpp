#include "gui/model/details/block_words.h"

#include <algorithm>

#include <QObject>
#include <QStringList>

#include "gui/model/base/time_axis.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

QString name_of_unit(const analysis::UnitFigures& unit) {
  return QString::fromStdString(unit_label(unit.fqn));
}

}  // namespace

QString spread_text(const std::vector<analysis::UnitFigures>& units,
                    const analysis::BlockSpread& spread) {
  return spread.worst == 0
             ? durationText(spread.sum)
             : QObject::tr("%1; median %2, worst %3 (%4)")
                   .arg(durationText(spread.sum), durationText(spread.median),
                        durationText(spread.worst), name_of_unit(units[spread.worst_unit]));
}

QString outliers_text(const std::vector<analysis::UnitFigures>& units,
                      const analysis::BlockFigures& block) {
  constexpr qsizetype kNamed = 8;
  std::vector<uint32_t> outliers = block.outliers;
  std::ranges::stable_sort(outliers, std::ranges::greater(),
                           [&units](uint32_t unit) { return units[unit].exposed(); });
  QStringList names;
  for (const uint32_t unit : outliers) {
    names.append(
        QObject::tr("%1 (%2)").arg(name_of_unit(units[unit]), durationText(units[unit].exposed())));
  }
  const qsizetype more = names.size() - kNamed;
  if (more > 0) {
    names = names.first(kNamed);
    names.append(QObject::tr("%1 more").arg(more));
  }
  return names.join(QStringLiteral(", "));
}

}  // namespace shardlens::gui
