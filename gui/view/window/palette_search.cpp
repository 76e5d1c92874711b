#include "gui/view/window/palette_search.h"

#include <vector>

#include "gui/model/base/shown_text.h"
#include "gui/model/base/text_pattern.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/command_palette.h"

namespace shardlens::gui {
namespace {

constexpr size_t kFoundPlaces = 40;  // of one kind; four times as many in all

void append_units(const WindowParts& parts,
                  const TextPattern& pattern,
                  std::vector<PaletteEntry>& out) {
  SelectionContext& context = parts.context;
  const size_t limit = out.size() + kFoundPlaces;
  for (const analysis::UnitFigures& unit : context.rank()->figures.units) {
    const QString title = QString::fromStdString(unit_label(unit.fqn));
    if (out.size() < limit && pattern.matches(title)) {
      out.push_back({QObject::tr("unit %1").arg(title), {}, [&context, fqn = unit.fqn] {
                       context.selectUnit(fqn);
                     }});
    }
  }
}

// Modules that are not units themselves: each selects the unit that it belongs to.
void append_modules(const WindowParts& parts,
                    const TextPattern& pattern,
                    std::vector<PaletteEntry>& out) {
  SelectionContext& context = parts.context;
  const RunPointer& run = context.run();
  const PlanPointer own = plan_of(run);
  const PlanPointer plan = own != nullptr ? own : parts.session.recovered(run);
  const UnitTree& tree = parts.panels.model<UnitTree>();
  const size_t limit = out.size() + kFoundPlaces;
  for (size_t i = 0; plan != nullptr && i < plan->tree.modules.size() && out.size() < limit; ++i) {
    const std::string& fqn = plan->tree.modules[i].fqn;
    const QString title = shown_text(fqn);
    if (fqn.empty() || !pattern.matches(title)) {
      continue;
    }
    const std::optional<std::string> unit = tree.unitOfModule(fqn);
    if (unit && *unit != fqn) {
      out.push_back({QObject::tr("module %1, in unit %2").arg(title, shown_text(unit_label(*unit))),
                     {},
                     [&context, unit] { context.selectUnit(unit); }});
    }
  }
}

void append_ranks(const WindowParts& parts,
                  const TextPattern& pattern,
                  std::vector<PaletteEntry>& out) {
  SelectionContext& context = parts.context;
  const auto& ranks = context.run()->ranks;
  const size_t limit = out.size() + kFoundPlaces;
  for (size_t i = 0; i < ranks.size() && out.size() < limit; ++i) {
    const QString title = QObject::tr("rank %1").arg(ranks[i]->figures.rank);
    if (pattern.matches(title)) {
      out.push_back({title, {}, [&context, i] { context.selectRank(i); }});
    }
  }
}

void append_steps(const WindowParts& parts,
                  const TextPattern& pattern,
                  size_t limit,
                  std::vector<PaletteEntry>& out) {
  const std::vector<analysis::StepAnalysis>& steps = parts.context.rank()->figures.steps;
  for (size_t i = 0; i < steps.size() && out.size() < limit; ++i) {
    const QString title = QObject::tr("step %1").arg(steps[i].step);
    if (pattern.matches(title)) {
      out.push_back({title, {}, [parts, i] {
                       parts.context.selectStep(i);
                       parts.timeline().fitSelection();
                     }});
    }
  }
}

// "Replicas: 2": every value that a list of What if offers, except for those that hold.
void append_edits(const WindowParts& parts,
                  const TextPattern& pattern,
                  std::vector<PaletteEntry>& out) {
  const PlanSession& session = parts.session;
  const size_t limit = out.size() + kFoundPlaces;
  for (size_t knob = 0; knob < session.knobs().size(); ++knob) {
    const PlanKnob& of = session.knobs()[knob];
    for (size_t i = 0; i < of.choices.size() && out.size() < limit; ++i) {
      const QString title = QObject::tr("%1: %2").arg(of.title, of.choices[i].label);
      if (pattern.matches(title) && !of.choices[i].holds(session.state())) {
        out.push_back({title, QObject::tr("an edit of the plan"),
                       [parts, knob, i] { parts.session.choose(knob, i); }});
      }
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
    const size_t limit = out.size() + 4 * kFoundPlaces;
    const TextPattern pattern(text);
    append_units(parts, pattern, out);
    append_modules(parts, pattern, out);
    append_ranks(parts, pattern, out);
    append_steps(parts, pattern, limit, out);
  }
  if (!text.isEmpty()) {
    append_edits(parts, TextPattern(text), out);
  }
  return out;
}

}  // namespace

void show_palette(const WindowParts& parts) {
  auto* palette = new CommandPalette(
      QObject::tr("Command, unit, module, rank, step or value of the plan"),
      [parts](const QString& text) { return found(parts, text); }, &parts.window);
  palette->setAttribute(Qt::WA_DeleteOnClose);
  palette->open();
}

}  // namespace shardlens::gui
