#include <vector>

#include <QLabel>
#include <QTableView>

#include "gui/model/tables/ranks_table.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"

namespace shardlens::gui {
namespace {

// All ranks at once, the one that others waited for longest first.
class RanksPanel final : public Panel {
 public:
  explicit RanksPanel(const PanelContext& context) : Panel(context) {
    setView(*view_);
    onChosen([this](const QModelIndex& index) { selection().selectRank(table_.rankAt(index)); });
    stack({note_, view_});
    watchWidth();
  }

 protected:
  void selectionChanged() override {
    table_.show(selection());
    note_->setText(table_.summary());
    show_row(*view_, table_.indexOfRank(selection().current().rank));
  }
  void fitColumns() override { elided_ = fit_columns(*view_); }
  void widthChanged() override { share_width(*view_, elided_); }

 private:
  RanksTable table_;
  QTableView* view_ = make_table(table_, tr("Ranks"));
  QLabel* note_ = make_note();
  std::vector<int> elided_;
};

}  // namespace

PanelPointer make_ranks_panel(const PanelContext& context) {
  return std::make_unique<RanksPanel>(context);
}

}  // namespace shardlens::gui
