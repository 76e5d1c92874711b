#include <vector>

#include <QLabel>
#include <QTableView>

#include "gui/model/tables/communication_table.h"
#include "gui/model/tables/group_overlaps.h"
#include "gui/view/panel_parts/overlap_map.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"

namespace shardlens::gui {
namespace {

// The ranks' communication by purpose, group and kind, in the run and under the edited plan. If
// there are several groups, a map below shows how long each pair of them ran at the same time.
class CommunicationPanel final : public Panel {
 public:
  explicit CommunicationPanel(const PanelContext& context) : Panel(context) {
    setView(*view_);
    stack({note_, view_, map_});
    watchWidth();
    connect(&session(), &PlanSession::simulatedOne, this, &CommunicationPanel::refresh);
  }
  void planChanged() override { refresh(); }
  void becameVisible() override { fill(); }
  void setTheme(const Theme& theme) override { map_->setTheme(theme); }

 protected:
  void selectionChanged() override { refresh(); }
  void fitColumns() override { elided_ = fit_columns(*view_); }
  void widthChanged() override { share_width(*view_, elided_); }

 private:
  // All collectives of the window are summed, which takes some time in a large run.
  void refresh() {
    if (isSeen()) {
      fill();
    }
  }
  void fill() {
    const bool empty = table_.rowCount() == 0;
    table_.show(selection(), session());
    map_->show(group_overlaps(selection()));
    note_->setText(
        table_.rowCount() == 0
            ? tr("Nothing communicates in what is chosen.")
            : tr("What the ranks communicate for, in the chosen steps or range and in the "
                 "simulated step."));
    if (empty && table_.rowCount() > 0) {
      fitColumns();
      widthChanged();
    }
  }
  CommunicationTable table_;
  QTableView* view_ = make_table(table_, tr("Communication by purpose"));
  OverlapMap* map_ = new OverlapMap;
  QLabel* note_ = make_note();
  std::vector<int> elided_;
};

}  // namespace

PanelPointer make_communication_panel(const PanelContext& context) {
  return std::make_unique<CommunicationPanel>(context);
}

}  // namespace shardlens::gui
