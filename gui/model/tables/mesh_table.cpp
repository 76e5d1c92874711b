#include "gui/model/tables/mesh_table.h"

#include "gui/model/base/time_axis.h"

namespace shardlens::gui {

std::vector<ColumnTable::Column> MeshTable::columns(const MeshTable* of) {
  const auto held = [of](const QString& title, sim::MemoryCategory category, const QString& help) {
    const auto bytes = [of, category](size_t r) {
      return of->picture_.held(r)[static_cast<size_t>(category)];
    };
    const auto known = [of, category] {
      return category == sim::MemoryCategory::kParameters || of->picture_.peak.has_value();
    };
    return Column{
        title,
        [bytes, known](size_t r) { return known() ? bytesText(bytes(r)) : QStringLiteral("–"); },
        [bytes](size_t r) { return static_cast<double>(bytes(r)); }, true, help};
  };
  using enum sim::MemoryCategory;
  const QString at_peak = tr("At the simulated peak of the rank that needs most");
  return {{tr("Rank"), [](size_t r) { return QString::number(r); },
           [](size_t r) { return static_cast<double>(r); }, true},
          {tr("Place"), [of](size_t r) { return of->picture_.place(r); }, nullptr, false,
           tr("Its positions along the axes of the mesh")},
          {tr("Waited"),
           [of](size_t r) {
             const auto& waited = of->picture_.ranks[r].waited;
             return waited ? durationText(*waited) : QStringLiteral("–");
           },
           [of](size_t r) { return static_cast<double>(of->picture_.ranks[r].waited.value_or(0)); },
           true,
           tr("Communication while nothing computed: measured in the chosen steps or range, or in "
              "the simulated step of another plan"),
           Scale::kDuration},
          held(tr("Parameters"), kParameters, tr("That it keeps between steps, padding included")),
          held(tr("Gradients"), kGradients, at_peak),
          held(tr("Optimizer"), kOptimizer, at_peak),
          held(tr("Gathered"), kUnsharded, at_peak),
          held(tr("Activations"), kActivations, at_peak),
          held(tr("Buffers"), kCommunication, at_peak)};
}

MeshTable::MeshTable(QObject* parent) : ColumnTable(columns(this), parent) {}

void MeshTable::show(const MeshPicture& picture) {
  picture_ = picture;
  reset(picture_.ranks.size());
}

}  // namespace shardlens::gui
