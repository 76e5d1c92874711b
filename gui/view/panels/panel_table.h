#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <QString>

namespace shardlens::gui {

class Panel;
struct PanelContext;
using PanelPointer = std::unique_ptr<Panel>;

// Where a panel is docked at first.
enum class PanelPlace : uint8_t {
  kLeft,    // at the left, each one below the one before
  kBottom,  // at the bottom, as tabs
  kAside,   // in wide windows at the bottom, left of the tabs; else a tab of the last one at the
            // left
};

// One panel: everything about it that is not in its own file.
struct PanelRow {
  const char* id;     // the dock's object name; the command that shows it is "panel.<id>"
  const char* title;  // in English
  PanelPointer (*make)(const PanelContext& context);
  PanelPlace place;
  int tab;  // position among the tabs at the bottom and in the help of `gui --panel`
};

// All panels, in the order of the menu.
[[nodiscard]] std::span<const PanelRow> panel_table();
// The same, ordered by PanelRow::tab.
[[nodiscard]] std::vector<const PanelRow*> panels_by_tab();
[[nodiscard]] QString title_of(const PanelRow& row);
// The row whose title or id has the same letters, in any case: "What if", what-if, whatif. nullptr:
// none.
[[nodiscard]] const PanelRow* find_panel(const QString& name);
// "modules, ownership, … or notes"
[[nodiscard]] QString panel_names();

}  // namespace shardlens::gui
