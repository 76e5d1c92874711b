#include <algorithm>
#include <utility>

#include <QHeaderView>
#include <QLabel>
#include <QTableView>

#include "gui/model/tables/ownership_table.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/delegates.h"
#include "gui/view/widgets/frozen_table.h"
#include "gui/view/widgets/painter_canvas.h"
#include "gui/view/widgets/row_filter.h"

namespace shardlens::gui {
namespace {

// Widths of the column of names, which are elided at the start.
constexpr int kNarrowestParameter = 160, kWidestParameter = 220;
constexpr int kShape = 1, kNow = 2;  // columns

// Draws which part of a parameter a rank holds.
class SliceDelegate : public CellDelegate {
 public:
  explicit SliceDelegate(QObject* parent) : CellDelegate(parent), theme_(&Theme::light()) {}
  void setTheme(const Theme& theme) { theme_ = &theme; }
  void paint(QPainter* painter,
             const QStyleOptionViewItem& option,
             const QModelIndex& index) const override {
    const QRectF part = index.data(OwnershipTable::kPartRole).toRectF();
    const QRectF area = QRectF(option.rect).adjusted(2, 2, -2, -2);
    const QRectF slice(
        area.left() + area.width() * part.left(), area.top() + area.height() * part.top(),
        std::max(2.0, area.width() * part.width()), std::max(2.0, area.height() * part.height()));
    if (index.column() >= OwnershipTable::kFixedColumns) {
      PainterCanvas canvas(*painter, *theme_);
      canvas.fill(area, Ink::kBand, 1);
      if (!part.isEmpty()) {
        canvas.fill(slice, Ink::kCopy, 0.45);
      }
    }
    CellDelegate::paint(painter, option, index);
    if (!part.isEmpty() &&
        option.state & QStyle::State_Selected) {  // its background covers the slice
      painter->setPen(option.palette.color(QPalette::HighlightedText));
      painter->setBrush(Qt::NoBrush);
      painter->drawRect(slice);
    }
  }

 protected:
  // Names of parameters differ at their ends, so they are elided at the start; other text at the
  // end.
  void initStyleOption(QStyleOptionViewItem* option, const QModelIndex& index) const override {
    CellDelegate::initStyleOption(option, index);
    option->textElideMode = index.column() == 0 ? Qt::ElideLeft : Qt::ElideRight;
  }

 private:
  const Theme* theme_;
};

// Which elements of each parameter each rank holds, and whether the unit was gathered at an
// instant: where the selected item or the dragged range begins.
class OwnershipPanel final : public Panel {
 public:
  explicit OwnershipPanel(const PanelContext& context);
  void setTheme(const Theme& theme) override { slice_->setTheme(theme); }

 protected:
  void runChanged() override {
    instant_ = 0;
    shown_rank_ = 0;
    clicked_.reset();
  }
  void selectionChanged() override;
  void fitColumns() override;
  void widthChanged() override;
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.unit = table_.unitAt(index);
  }

 private:
  void followInstant();
  void showTable();
  OwnershipTable table_;
  FrozenTable* view_ = new FrozenTable;
  QLabel* note_ = make_note();
  SliceDelegate* slice_;
  Nanoseconds instant_ = 0;  // in display time
  size_t shown_rank_ = 0;    // whose column was scrolled to
  // The unit of the row that was clicked here. While it is selected, all rows stay, because the row
  // would move away from the pointer otherwise.
  std::optional<std::string> clicked_;
  int name_width_ = 0;   // of the longest name
  int slice_width_ = 0;  // minimum width of a rank's column
};

OwnershipPanel::OwnershipPanel(const PanelContext& context)
    : Panel(context), slice_(new SliceDelegate(this)) {
  view_->setAccessibleName(tr("Ownership"));
  view_->verticalHeader()->setDefaultSectionSize(view_->fontMetrics().height() + 8);
  view_->setModel(&table_);
  view_->setTabKeyNavigation(false);
  view_->setWordWrap(false);
  view_->setAlternatingRowColors(true);
  view_->setSelectionBehavior(QAbstractItemView::SelectRows);
  view_->setSelectionMode(QAbstractItemView::ExtendedSelection);  // several rows: to copy them
  view_->verticalHeader()->hide();
  view_->setCellDelegate(slice_);
  setView(*view_);
  onChosen([this](const QModelIndex& index) {
    clicked_ = table_.unitAt(index);
    selection().selectUnit(clicked_);
  });
  connect(&selection(), &SelectionContext::changed, this, &OwnershipPanel::followInstant);
  stack({new RowFilter(*view_, tr("parameters")), note_, view_});
  watchWidth();
}

void OwnershipPanel::followInstant() {
  if (const auto item = selection().itemInterval()) {
    instant_ = item->start;
  } else if (selection().current().range) {
    instant_ = selection().current().range->start;
  } else {
    return;
  }
  showTable();
}

void OwnershipPanel::showTable() {
  const RankData* rank = selection().rank();
  const RunPointer& run = selection().run();
  if (rank == nullptr) {
    table_.show(nullptr, 0, std::nullopt, 0);
    return;
  }
  const std::optional<std::string>& unit = selection().current().unit;
  if (unit != clicked_) {
    clicked_.reset();
  }
  table_.show(run, selection().current().rank, clicked_ ? std::nullopt : unit,
              run->own(*rank, {instant_, instant_}).start, session().recovered(run));
}

void OwnershipPanel::selectionChanged() {
  showTable();
  note_->setText(table_.why().isEmpty() ? table_.summary() : table_.why());
  const QModelIndexList rows = view_->selectionModel()->selectedRows();
  if (!rows.isEmpty() && table_.unitAt(rows.front()) != selection().current().unit) {
    view_->selectionModel()->clearSelection();
  }
  if (std::exchange(shown_rank_, selection().current().rank) != selection().current().rank) {
    view_->showColumn(table_.columnOfRank());
  }
}

void OwnershipPanel::fitColumns() {
  view_->resizeColumnsToContents();
  name_width_ = view_->columnWidth(0);
  // The text of Now changes with the selected event.
  const int widest = view_->fontMetrics().horizontalAdvance(tr("unsharded")) + 16;
  view_->setColumnWidth(kNow, std::max(widest, view_->columnWidth(kNow)));
  slice_width_ = 0;
  for (int column = OwnershipTable::kFixedColumns; column < table_.columnCount(); ++column) {
    slice_width_ = std::max(slice_width_, view_->columnWidth(column));
  }
  QHeaderView* columns = view_->horizontalHeader();  // ranks are shown before the shape
  columns->moveSection(columns->visualIndex(kShape), columns->count() - 1);
  widthChanged();
}

// The columns of ranks share the remaining width of the dock.
void OwnershipPanel::widthChanged() {
  const int ranks = table_.columnCount() - OwnershipTable::kFixedColumns;
  if (ranks <= 0) {
    return;
  }
  view_->setColumnWidth(
      0, std::min(name_width_, std::clamp(view_->viewport()->width() / 2, kNarrowestParameter,
                                          kWidestParameter)));
  int fixed = 0;
  for (int column = 0; column < OwnershipTable::kFixedColumns; ++column) {
    fixed += view_->columnWidth(column);
  }
  const int width = std::max(slice_width_, (view_->viewport()->width() - fixed) / ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    view_->setColumnWidth(OwnershipTable::kFixedColumns + rank, width);
  }
}

}  // namespace

PanelPointer make_ownership_panel(const PanelContext& context) {
  return std::make_unique<OwnershipPanel>(context);
}

}  // namespace shardlens::gui
