#include "gui/view/window/palette_search.h"

#include <vector>

#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/command_palette.h"

namespace shardlens::gui {
namespace {

constexpr size_t kFoundPlaces = 40;  // units; twice as many places in all

void append_units(const WindowParts& parts, const QString& text, std::vector<PaletteEntry>& out) {
  SelectionContext& context = parts.context;
  const size_t limit = out.size() + kFoundPlaces;
  for (const analysis::UnitFigures& unit : context.rank()->figures.units) {
    const QString title = QString::fromStdString(unit_label(unit.fqn));
    if (out.size() < limit && title.contains(text, Qt::CaseInsensitive)) {
      out.push_back({QObject::tr("unit %1").arg(title), {}, [&context, fqn = unit.fqn] {
                       context.selectUnit(fqn);
                     }});
    }
  }
}

void append_steps(const WindowParts& parts,
                  const QString& text,
                  size_t limit,
                  std::vector<PaletteEntry>& out) {
  const std::vector<analysis::StepAnalysis>& steps = parts.context.rank()->figures.steps;
  for (size_t i = 0; i < steps.size() && out.size() < limit; ++i) {
    const QString title = QObject::tr("step %1").arg(steps[i].step);
    if (title.contains(text, Qt::CaseInsensitive)) {
      out.push_back({title, {}, [parts, i] {
                       parts.context.selectStep(i);
                       parts.timeline().fitSelection();
                     }});
    }
  }
}

std::vector<PaletteEntry> found(const WindowParts& parts, const QString& text) {
  std::vector<PaletteEntry> out;
  for (const Command* command : parts.actions.matching(text)) {
    if (command->id != QStringLiteral("go.palette") && command->enabled()) {
      out.push_back({command->title,
                     command->shortcuts.isEmpty() ? QString() : command->shortcuts.front(),
                     [&actions = parts.actions, id = command->id] { actions.trigger(id); }});
    }
  }
  if (parts.context.rank() != nullptr && !text.isEmpty()) {
    const size_t limit = out.size() + 2 * kFoundPlaces;
    append_units(parts, text, out);
    append_steps(parts, text, limit, out);
  }
  return out;
}

}  // namespace

void show_palette(const WindowParts& parts) {
  auto* palette = new CommandPalette(
      QObject::tr("Command, unit or step"),
      [parts](const QString& text) { return found(parts, text); }, &parts.window);
  palette->setAttribute(Qt::WA_DeleteOnClose);
  palette->open();
}

}  // namespace shardlens::gui
