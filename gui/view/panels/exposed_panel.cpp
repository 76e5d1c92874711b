#include <vector>

#include <QHeaderView>
#include <QLabel>
#include <QTableView>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"

namespace shardlens::gui {
namespace {

// Every exposed collective of the window, with its cause and what helps.
class ExposedPanel final : public Panel {
 public:
  explicit ExposedPanel(const PanelContext& context) : Panel(context) {
    view_->horizontalHeader()->moveSection(3, 2);  // exposed time, then its cause
    view_->horizontalHeader()->moveSection(6, 3);
    setView(*view_);
    onChosen([this](const QModelIndex& index) { selection().selectItem(table_.itemAt(index)); });
    stack({note_, view_});
    watchWidth();
  }

 protected:
  void selectionChanged() override {
    const Selection& chosen = selection().current();
    table_.show(selection().run(), chosen.rank, selection().window());
    note_->setText(selection().rank() == nullptr ? QString() : summary());
    const bool collective = chosen.item && chosen.item->source != Lane::Source::kEvents &&
                            chosen.item->source != Lane::Source::kSections;
    show_row(*view_, collective ? table_.indexOfCollective(chosen.item->ref) : QModelIndex());
  }
  void fitColumns() override { elided_ = fit_columns(*view_); }
  void widthChanged() override { share_width(*view_, elided_); }
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.item = table_.itemAt(index);
  }

 private:
  [[nodiscard]] QString summary() const {
    return table_.rowCount() == 0
               ? tr("No communication is exposed: all of it overlapped with compute, or there was "
                    "none.")
               : tr("%1, %2 exposed in total")
                     .arg(countText(table_.rowCount(), tr("collective"), tr("collectives")),
                          durationText(table_.total()));
  }
  ExposedTable table_;
  QTableView* view_ = make_table(table_, tr("Exposed collectives"));
  QLabel* note_ = make_note();
  std::vector<int> elided_;  // columns that are too narrow for their texts
};

}  // namespace

PanelPointer make_exposed_panel(const PanelContext& context) {
  return std::make_unique<ExposedPanel>(context);
}

}  // namespace shardlens::gui
