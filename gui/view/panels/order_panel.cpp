#include <QHeaderView>
#include <QLabel>
#include <QTableView>

#include "gui/model/tables/order_table.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"

namespace shardlens::gui {
namespace {

// The collectives planned, issued and started in the step, side by side.
class OrderPanel final : public Panel {
 public:
  explicit OrderPanel(const PanelContext& context) : Panel(context) {
    view_->setSortingEnabled(false);
    view_->horizontalHeader()->setStretchLastSection(false);
    for (int column = 0; column < table_.columnCount(); ++column) {
      const bool named = column >= 1 && column <= 3;  // planned, issued, started
      view_->horizontalHeader()->setSectionResizeMode(
          column, named ? QHeaderView::Stretch : QHeaderView::ResizeToContents);
    }
    setView(*view_);
    onChosen([this](const QModelIndex& index) {
      if (const auto item = table_.itemAt(index)) {
        selection().selectItem(*item);
      } else {
        selection().selectUnit(table_.unitAt(index));
      }
    });
    stack({note_, view_});
  }

 protected:
  void selectionChanged() override {
    const Selection& chosen = selection().current();
    table_.show(selection().run(), chosen.rank, chosen.step.value_or(0));
    note_->setText(table_.verdict());
    const QModelIndexList rows = view_->selectionModel()->selectedRows();
    if (!rows.isEmpty()) {
      const auto item = table_.itemAt(rows.front());
      if (item ? item != chosen.item : table_.unitAt(rows.front()) != chosen.unit) {
        show_row(*view_, {});
      }
    }
  }
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.item = table_.itemAt(index);
    target.unit = table_.unitAt(index);
  }

 private:
  OrderTable table_;
  QTableView* view_ = make_table(table_, tr("Order of collectives"));
  QLabel* note_ = make_note();
};

}  // namespace

PanelPointer make_order_panel(const PanelContext& context) {
  return std::make_unique<OrderPanel>(context);
}

}  // namespace shardlens::gui
