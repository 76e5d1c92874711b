#include <QHeaderView>
#include <QLabel>
#include <QLocale>
#include <QTableView>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/event_table.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/search_box.h"

namespace shardlens::gui {
namespace {

constexpr int kName = 2, kCategory = 3, kTrack = 4;  // columns
constexpr int kCategoryWidth = 120, kTrackWidth = 130;

// Events of the rank, found by name; within the dragged range, if there is one. While nobody sees
// the panel its table is empty.
class EventsPanel final : public Panel {
 public:
  explicit EventsPanel(const PanelContext& context) : Panel(context) {
    connect(search_, &QLineEdit::textChanged, this, &Panel::updateRequested);
    setView(*view_);
    onChosen([this](const QModelIndex& index) { selection().selectItem(table_.itemAt(index)); });
    stack({search_, note_, view_});
    view_->horizontalHeader()->setStretchLastSection(false);
    view_->horizontalHeader()->setSectionResizeMode(kName, QHeaderView::Stretch);
    view_->setColumnWidth(kCategory, kCategoryWidth);
    view_->setColumnWidth(kTrack, kTrackWidth);
  }
  [[nodiscard]] QLineEdit* search() const override { return search_; }
  void walkFound(int way) override {
    const int rows = table_.rowCount();
    if (rows == 0) {
      return;
    }
    const QModelIndex now = view_->currentIndex();
    const int next = !now.isValid() ? (way > 0 ? 0 : rows - 1) : (now.row() + way + rows) % rows;
    selection().selectItem(table_.itemAt(table_.index(next, 0)));
    show_row(*view_, table_.index(next, 0));
    emit goRequested();
  }
  void becameVisible() override { emit updateRequested(); }

 protected:
  void selectionChanged() override {
    showEvents();
    const std::optional<Selection::Item>& item = selection().current().item;
    const bool event = item && item->source == Lane::Source::kEvents;
    show_row(*view_, event ? table_.indexOf(item->ref) : QModelIndex());
  }
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.item = table_.itemAt(index);
  }

 private:
  void showEvents() {
    const RankData* rank = selection().rank();
    if (rank == nullptr || !isVisible() || view_->visibleRegion().isEmpty()) {
      table_.show(nullptr, 0, std::nullopt, {});
      return;
    }
    const auto range = selection().current().range;
    std::optional<analysis::Interval> own;
    if (range) {
      own = selection().run()->own(*rank, *range);
    }
    table_.show(selection().run(), selection().current().rank, own, search_->text());
    const auto all = static_cast<qlonglong>(rank->trace.events.size());
    note_->setText(tr("%1 of %2 of rank %3%4")
                       .arg(QLocale().toString(table_.rowCount()))
                       .arg(countText(all, tr("event"), tr("events")))
                       .arg(rank->figures.rank)
                       .arg(range ? tr(", within the dragged range") : QString()) +
                   (table_.rowCount() > 0 || search_->text().isEmpty()
                        ? QString()
                        : tr(". No name contains the text in the box.")));
  }
  EventTable table_;
  QTableView* view_ = make_table(table_, tr("Events"));
  SearchBox* search_ = new SearchBox(tr("Name contains … (Ctrl+F)"), tr("Find events by name"));
  QLabel* note_ = make_note();
};

}  // namespace

PanelPointer make_events_panel(const PanelContext& context) {
  return std::make_unique<EventsPanel>(context);
}

}  // namespace shardlens::gui
