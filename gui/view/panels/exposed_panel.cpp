#include <vector>

#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QStackedWidget>
#include <QTableView>

#include "gui/model/base/time_axis.h"
#include "gui/model/details/missing_data.h"
#include "gui/model/tables/exposed_groups.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/row_filter.h"

namespace shardlens::gui {
namespace {

// Every exposed collective of the window, with its cause and what helps, or their sums by unit and
// kind.
class ExposedPanel final : public Panel {
 public:
  explicit ExposedPanel(const PanelContext& context) : Panel(context) {
    each_->horizontalHeader()->moveSection(3, 2);  // exposed time, then its cause
    each_->horizontalHeader()->moveSection(6, 3);
    setView(*sums_);
    onChosen([this](const QModelIndex& index) { selection().selectItem(groups_.worstAt(index)); });
    setView(*each_);
    onChosen([this](const QModelIndex& index) { selection().selectItem(table_.itemAt(index)); });
    how_->addItems(
        {tr("Each collective"), tr("By unit and kind"), tr("By unit and kind, all ranks")});
    how_->setAccessibleName(tr("What a row is"));
    connect(how_, &QComboBox::currentIndexChanged, this, &ExposedPanel::showRows);
    views_->addWidget(each_);
    views_->addWidget(sums_);
    auto* bar = new QWidget;
    auto* row = new QHBoxLayout(bar);
    row->setContentsMargins(8, 2, 0, 2);
    row->addWidget(how_);
    auto* of_each = new RowFilter(*each_, tr("units"));
    auto* of_sums = new RowFilter(*sums_, tr("units"));
    of_sums->hide();
    connect(how_, &QComboBox::currentIndexChanged, this, [this, of_each, of_sums] {
      of_each->setVisible(!sums());
      of_sums->setVisible(sums());
    });
    for (RowFilter* filter : {of_each, of_sums}) {
      connect(filter, &RowFilter::filtered, this, [this] { note_->setText(summary()); });
    }
    row->addWidget(of_each);
    row->addWidget(of_sums);
    row->addWidget(note_, 1);
    stack({bar, views_});
    watchWidth();
  }

 protected:
  // selectionChanged() only fills the list that is shown.
  void runChanged() override { groups_.clear(); }
  void selectionChanged() override {
    const Selection& chosen = selection().current();
    const bool collective =
        chosen.item && selection().run() != nullptr && is_collective(*chosen.item);
    table_.show(selection().run(), chosen.rank, selection().window());
    if (sums()) {
      groups_.show(selection(), how_->currentIndex() == kAllRanks);
      show_row(*sums_, collective ? groups_.indexOf(*chosen.item) : QModelIndex());
    } else {
      show_row(*each_, collective ? table_.indexOfCollective(chosen.item->ref) : QModelIndex());
    }
    note_->setText(summary());
  }
  void fitColumns() override {
    if (!sums()) {
      elided_ = fit_columns(*each_);
    } else {
      fit_columns(*sums_);
    }
  }
  void widthChanged() override { share_width(*each_, elided_); }
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.item = sums() ? groups_.worstAt(index) : table_.itemAt(index);
  }

 private:
  static constexpr int kAllRanks = 2;  // of how_
  [[nodiscard]] bool sums() const { return how_->currentIndex() > 0; }
  void showRows() {
    views_->setCurrentWidget(sums() ? sums_ : each_);
    showView(sums() ? *sums_ : *each_);
    showSelection();
    fitColumns();
  }
  // A summary of the rows that the filter leaves.
  [[nodiscard]] QString summary() const {
    if (selection().rank() == nullptr) {
      return {};
    }
    const QTableView& view = sums() ? *sums_ : *each_;
    const int rows = view.model()->rowCount();
    if (rows == 0) {
      return why_nothing_exposed(*selection().run(), *selection().rank());
    }
    int shown = 0;
    Nanoseconds total = 0;
    for (int row = 0; row < rows; ++row) {
      if (!view.isRowHidden(row)) {
        ++shown;
        const QModelIndex index = view.model()->index(row, 0);
        total += sums() ? groups_.exposedAt(index) : table_.exposedAt(index);
      }
    }
    const QString counted = sums() ? countText(rows, tr("kind"), tr("kinds"))
                                   : countText(rows, tr("collective"), tr("collectives"));
    return shown == rows ? tr("%1, %2 exposed in total").arg(counted, durationText(total))
                         : tr("%1 of %2 shown, %3 exposed in these")
                               .arg(shown)
                               .arg(counted, durationText(total));
  }
  ExposedTable table_;
  ExposedGroups groups_;
  QComboBox* how_ = new QComboBox;
  QStackedWidget* views_ = new QStackedWidget;
  QTableView* each_ = make_table(table_, tr("Exposed collectives"));
  QTableView* sums_ = make_table(groups_, tr("Exposed collectives by unit and kind"));
  QLabel* note_ = make_note();
  std::vector<int> elided_;  // columns of each_ that are too narrow for their texts
};

}  // namespace

PanelPointer make_exposed_panel(const PanelContext& context) {
  return std::make_unique<ExposedPanel>(context);
}

}  // namespace shardlens::gui
