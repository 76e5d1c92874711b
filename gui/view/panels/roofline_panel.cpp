#include <algorithm>
#include <string>
#include <vector>

#include <QBoxLayout>
#include <QComboBox>
#include <QLabel>
#include <QTableView>

#include "gui/model/tables/roofline_table.h"
#include "gui/view/panel_parts/roofline_plot.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"

namespace shardlens::gui {
namespace {

// The shares of the GPU's rates that the operators reach, by unit, module, kind or name.
class RooflinePanel final : public Panel {
 public:
  explicit RooflinePanel(const PanelContext& context) : Panel(context) {
    setView(*view_);
    onChosen([this](const QModelIndex& index) {
      plot_->setChosen(table_.rowAt(index));
      if (by_->currentIndex() < 2) {  // a unit, or a module of one
        selection().selectUnit(table_.rowOf(index).unit);
      }
    });
    by_->addItems({tr("By unit"), tr("By module"), tr("By kind"), tr("By operator")});
    by_->setAccessibleName(tr("What a row is"));
    auto* left = new QWidget;
    auto* column = new QVBoxLayout(left);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addWidget(by_);
    column->addWidget(plot_, 1);
    auto* both = new QWidget;
    auto* row = new QHBoxLayout(both);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(0);
    row->addWidget(left, 1);
    row->addWidget(view_, 2);
    stack({note_, both});
    static_cast<QBoxLayout*>(layout())->setStretchFactor(both, 1);
    watchWidth();
    connect(by_, &QComboBox::currentIndexChanged, this, &RooflinePanel::fill);
    connect(plot_, &RooflinePlot::rowChosen, this,
            [this](size_t chosen) { view_->selectRow(table_.indexOf(chosen).row()); });
    connect(&session(), &PlanSession::simulatedOne, this, &RooflinePanel::refresh);
    connect(&session(), &PlanSession::observed, this, &RooflinePanel::refresh);
  }
  void planChanged() override { refresh(); }
  void becameVisible() override { refresh(); }
  void setTheme(const Theme& theme) override { plot_->setTheme(theme); }

 protected:
  void runChanged() override { refresh(); }
  void selectionChanged() override { markUnit(); }
  void fitColumns() override { elided_ = fit_columns(*view_); }
  void widthChanged() override {
    constexpr int kLeastName = 190;  // pixels; modules with shorter names would look alike
    share_width(*view_, elided_);
    view_->setColumnWidth(0, std::max(kLeastName, view_->columnWidth(0)));
  }
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.unit = table_.rowOf(index).unit;
  }

 private:
  void refresh() {
    if (isSeen()) {
      fill();
    }
  }
  void fill() {
    table_.show(selection(), session(), static_cast<RooflineGrouping>(by_->currentIndex()));
    plot_->show(table_);
    note_->setText(table_.summary());
    fitColumns();
    widthChanged();
    showSelection();  // marks the row without choosing it
  }
  // The row of the unit that is selected elsewhere.
  void markUnit() {
    const std::optional<std::string>& unit = selection().current().unit;
    if (by_->currentIndex() != 0 || !unit) {
      return;
    }
    const auto found = std::ranges::find(table_.rows(), *unit, &RooflineTable::Row::unit);
    if (found != table_.rows().end()) {
      const auto row = static_cast<size_t>(found - table_.rows().begin());
      plot_->setChosen(row);
      show_row(*view_, table_.indexOf(row));
    }
  }
  RooflineTable table_;
  QTableView* view_ = make_table(table_, tr("Operators and the rates of the GPU"));
  QLabel* note_ = make_note();
  QComboBox* by_ = new QComboBox;
  RooflinePlot* plot_ = new RooflinePlot;
  std::vector<int> elided_;
};

}  // namespace

PanelPointer make_roofline_panel(const PanelContext& context) {
  return std::make_unique<RooflinePanel>(context);
}

}  // namespace shardlens::gui
