#include "gui/model/tables/peak_table.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/model/tables/table_text.h"
#include "gui/model/what_if/fit_text.h"

namespace shardlens::gui {
namespace {

QString bytes_or_dash(Bytes bytes) {
  return bytes == 0 ? QStringLiteral("–") : bytesText(bytes);
}

QString change_text(Bytes change) {
  return change == 0  ? QStringLiteral("=")
         : change > 0 ? QStringLiteral("▲ %1").arg(bytesText(change))
                      : QStringLiteral("▼ %1").arg(bytesText(-change));
}

std::string unit_of(const PlanVersion& version, UnitId unit) {
  return unit == kNoUnit ? "" : unit_label(version.prediction.priced.planned->unit_names.at(unit));
}

}  // namespace

Bytes PeakTable::Peak::sum() const {
  return std::accumulate(categories.begin(), categories.end(), Bytes{0});
}

std::vector<ColumnTable::Column> PeakTable::columns(const PeakTable* of) {
  const auto row = [of](size_t r) -> const Row& { return of->list_[r]; };
  return {{tr("Category"), [row](size_t r) { return words(name_of(row(r).category)); }},
          {tr("What"), [row](size_t r) { return table_text(row(r).what); }},
          {tr("Unit"), [row](size_t r) { return table_text(row(r).unit); }},
          {tr("As it ran"), [row](size_t r) { return bytes_or_dash(row(r).before); },
           [row](size_t r) { return static_cast<double>(row(r).before); }, true,
           tr("Allocated at the peak of v0, the run's own plan, simulated")},
          {tr("This plan"), [row](size_t r) { return bytes_or_dash(row(r).now); },
           [row](size_t r) { return static_cast<double>(row(r).now); }, true,
           tr("Allocated at the peak of the plan that is shown in What if, simulated")},
          {tr("Change"), [row](size_t r) { return change_text(row(r).now - row(r).before); },
           [row](size_t r) { return static_cast<double>(row(r).now - row(r).before); }, true}};
}

PeakTable::PeakTable(QObject* parent) : ColumnTable(columns(this), parent) {}

void PeakTable::show(const PlanSession& session) {
  list_.clear();
  peaks_.clear();
  const PlanVersion* now = session.current();
  const PlanVersion* first = session.versions().empty() ? nullptr : &session.versions().front();
  if (now != nullptr && now->error.isEmpty() && first->error.isEmpty()) {
    std::map<std::tuple<sim::MemoryCategory, std::string, std::string>, size_t> rows;
    const std::vector<const PlanVersion*> both =
        now == first ? std::vector{first} : std::vector{first, now};
    for (const PlanVersion* version : both) {
      for (const sim::AliveAtPeak& each : version->prediction.memory.alive) {
        const auto [at, is_new] = rows.try_emplace(
            {each.category, each.what, unit_of(*version, each.unit)}, list_.size());
        if (is_new) {
          list_.push_back({each.category, each.what, std::get<2>(at->first), 0, 0});
        }
        Row& row = list_[at->second];
        row.before += version == first ? each.bytes : 0;
        row.now += version == now ? each.bytes : 0;
      }
    }
    const auto index = [&session](const PlanVersion* version) {
      return QStringLiteral("v%1").arg(version - session.versions().data());
    };
    const auto peak = [&index](const PlanVersion* version) {
      const sim::StepMemory& memory = version->prediction.memory;
      return Peak{index(version), memory.at_peak, version->prediction.available,
                  memory.fits ? QString()
                              : needText(memory.peak_allocated, memory.peak_reserved,
                                         version->prediction.available)};
    };
    peaks_.push_back(peak(first));
    if (now != first) {
      peaks_.push_back(peak(now));
    }
    std::stable_sort(list_.begin(), list_.end(), [](const Row& a, const Row& b) {
      return std::max(a.now, a.before) > std::max(b.now, b.before);
    });
  }
  reset(list_.size());
}

}  // namespace shardlens::gui
