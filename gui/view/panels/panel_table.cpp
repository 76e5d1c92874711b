#include "gui/view/panels/panel_table.h"

#include <algorithm>

#include <QCoreApplication>
#include <QRegularExpression>

#include "gui/view/panels/panel.h"

namespace shardlens::gui {

// Each is defined in the panel's own file.
PanelPointer make_modules_panel(const PanelContext& context);
PanelPointer make_ownership_panel(const PanelContext& context);
PanelPointer make_inspector_panel(const PanelContext& context);
PanelPointer make_exposed_panel(const PanelContext& context);
PanelPointer make_ranks_panel(const PanelContext& context);
PanelPointer make_mesh_panel(const PanelContext& context);
PanelPointer make_communication_panel(const PanelContext& context);
PanelPointer make_order_panel(const PanelContext& context);
PanelPointer make_events_panel(const PanelContext& context);
PanelPointer make_diagnostics_panel(const PanelContext& context);
PanelPointer make_what_if_panel(const PanelContext& context);
PanelPointer make_advice_panel(const PanelContext& context);
PanelPointer make_scaling_panel(const PanelContext& context);
PanelPointer make_plan_space_panel(const PanelContext& context);
PanelPointer make_run_panel(const PanelContext& context);
PanelPointer make_memory_panel(const PanelContext& context);
PanelPointer make_roofline_panel(const PanelContext& context);
PanelPointer make_compare_panel(const PanelContext& context);
PanelPointer make_notes_panel(const PanelContext& context);

namespace {

// clang-format off
constexpr PanelRow kPanels[] = {
  {"modules",     "Modules",      make_modules_panel,      PanelPlace::kLeft,   0},
  {"ownership",   "Ownership",    make_ownership_panel,    PanelPlace::kLeft,   1},
  {"inspector",   "Inspector",    make_inspector_panel,    PanelPlace::kAside,  2},
  {"exposed",     "Exposed",      make_exposed_panel,      PanelPlace::kBottom, 3},
  {"ranks",       "Ranks",        make_ranks_panel,        PanelPlace::kBottom, 4},
  {"mesh",        "Mesh",         make_mesh_panel,         PanelPlace::kBottom, 5},
  {"communication", "Traffic",    make_communication_panel, PanelPlace::kBottom, 15},
  {"order",       "Order",        make_order_panel,        PanelPlace::kBottom, 14},
  {"events",      "Events",       make_events_panel,       PanelPlace::kBottom, 16},
  {"diagnostics", "Diagnostics",  make_diagnostics_panel,  PanelPlace::kBottom, 17},
  {"whatif",      "What if",      make_what_if_panel,      PanelPlace::kBottom, 6},
  {"advice",      "Advice",       make_advice_panel,       PanelPlace::kBottom, 7},
  {"space",       "Plan space",   make_plan_space_panel,   PanelPlace::kBottom, 8},
  {"scaling",     "Scaling",      make_scaling_panel,      PanelPlace::kBottom, 9},
  {"run",         "Run plan",     make_run_panel,          PanelPlace::kBottom, 10},
  {"memory",      "Memory",       make_memory_panel,       PanelPlace::kBottom, 11},
  {"roofline",    "Roofline",     make_roofline_panel,     PanelPlace::kBottom, 13},
  {"compare",     "Compare",      make_compare_panel,      PanelPlace::kBottom, 12},
  {"notes",       "Notes",        make_notes_panel,        PanelPlace::kBottom, 18},
};
// clang-format on

QString letters_of(QString text) {
  return text.remove(QRegularExpression(QStringLiteral("[^A-Za-z]"))).toLower();
}

}  // namespace

std::span<const PanelRow> panel_table() {
  return kPanels;
}

std::vector<const PanelRow*> panels_by_tab() {
  std::vector<const PanelRow*> out;
  for (const PanelRow& row : kPanels) {
    out.push_back(&row);
  }
  std::ranges::stable_sort(out, {}, [](const PanelRow* row) { return row->tab; });
  return out;
}

QString title_of(const PanelRow& row) {
  return QCoreApplication::translate("Panels", row.title);
}

const PanelRow* find_panel(const QString& name) {
  const QString letters = letters_of(name);
  for (const PanelRow& row : kPanels) {
    if (letters_of(title_of(row)) == letters || letters_of(QLatin1String(row.id)) == letters) {
      return &row;
    }
  }
  return nullptr;
}

QString panel_names() {
  QStringList names;
  for (const PanelRow* row : panels_by_tab()) {
    names.append(QString::fromUtf8(row->title).toLower().replace(u' ', u'-'));
  }
  const QString last = names.takeLast();
  return QStringLiteral("%1 or %2").arg(names.join(QStringLiteral(", ")), last);
}

}  // namespace shardlens::gui
