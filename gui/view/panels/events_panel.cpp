#include <vector>

#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLocale>
#include <QSignalBlocker>
#include <QStackedWidget>
#include <QTableView>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/event_groups.h"
#include "gui/model/tables/event_table.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/search_box.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

constexpr int kName = 2, kCategory = 3, kTrack = 4;  // columns of EventTable
constexpr int kCategoryWidth = 120, kTrackWidth = 130;

// A list whose width does not depend on its texts.
QComboBox* make_list(const QString& name) {
  auto* list = new QComboBox;
  list->setAccessibleName(name);
  list->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  list->setMinimumContentsLength(10);
  return list;
}

// Events of the rank, found by name and category, each or summed up; within the dragged range or
// the chosen step, if there is one. While nobody sees the panel its tables are empty.
class EventsPanel final : public Panel {
 public:
  explicit EventsPanel(const PanelContext& context) : Panel(context) {
    for (const auto& [title, help] :
         {std::pair(tr("Each event"), tr("A row for each event")),
          std::pair(tr("By name"), tr("Count, sum, mean and extremes of all events of a name")),
          std::pair(tr("By category"), tr("Sums of kernels, operators, launches, …")),
          std::pair(tr("By thread or stream"), tr("Sums of the threads and streams")),
          std::pair(tr("By unit"), tr("Sums of the units of the model")),
          std::pair(tr("By name, all ranks"), tr("Sums over all ranks"))}) {
      how_->addItem(title);
      how_->setItemData(how_->count() - 1, help, Qt::ToolTipRole);
    }
    categories_->addItem(tr("all categories"), QString());
    setView(*sums_);
    onChosen([this](const QModelIndex& index) {
      selection().selectItem(groups_.groupAt(index).longest);
    });
    setView(*each_);
    onChosen([this](const QModelIndex& index) { selection().selectItem(table_.itemAt(index)); });
    views_->addWidget(each_);
    views_->addWidget(sums_);
    auto* bar = new QWidget;
    auto* row = new QHBoxLayout(bar);
    row->setContentsMargins(8, 2, 0, 2);
    row->addWidget(how_);
    row->addWidget(categories_);
    row->addWidget(search_, 1);
    stack({bar, note_, views_});
    each_->horizontalHeader()->setStretchLastSection(false);
    each_->horizontalHeader()->setSectionResizeMode(kName, QHeaderView::Stretch);
    each_->setColumnWidth(kCategory, kCategoryWidth);
    each_->setColumnWidth(kTrack, kTrackWidth);
    sums_->horizontalHeader()->setSectionResizeMode(0, QHeaderView::Stretch);
    connect(search_, &QLineEdit::textChanged, this, &Panel::updateRequested);
    connect(how_, &QComboBox::currentIndexChanged, this, &EventsPanel::showRows);
    connect(categories_, &QComboBox::currentIndexChanged, this, &EventsPanel::showSelection);
  }
  [[nodiscard]] QLineEdit* search() const override { return search_; }
  void walkFound(int way) override {
    how_->setCurrentIndex(0);
    const int rows = table_.rowCount();
    if (rows == 0) {
      return;
    }
    const QModelIndex now = each_->currentIndex();
    const int next = !now.isValid() ? (way > 0 ? 0 : rows - 1) : (now.row() + way + rows) % rows;
    selection().selectItem(table_.itemAt(table_.index(next, 0)));
    show_row(*each_, table_.index(next, 0));
    emit goRequested();
  }
  void becameVisible() override { emit updateRequested(); }

 protected:
  void runChanged() override { listed_.reset(); }
  void selectionChanged() override {
    const RankData* rank = selection().rank();
    if (rank == nullptr || !isVisible() || views_->visibleRegion().isEmpty()) {
      table_.show(nullptr, 0, {});
      groups_.clear();
      return;
    }
    listCategories(*rank);
    const std::optional<Selection::Item>& item = selection().current().item;
    if (sums()) {
      table_.show(nullptr, 0, {});
      groups_.show(selection(), asked());
      for (int column = 1; column < groups_.columnCount(); ++column) {
        sums_->resizeColumnToContents(column);  // names take the room that is left
      }
      show_row(*sums_, item ? groups_.indexOf(*item) : QModelIndex());
    } else {
      groups_.clear();
      EventFilter filter = asked().filter;
      filter.window = event_window(selection(), selection().current().rank);
      table_.show(selection().run(), selection().current().rank, filter);
      const bool event = item && item->source == Lane::Source::kEvents;
      show_row(*each_, event ? table_.indexOf(item->ref) : QModelIndex());
    }
    note_->setText(summary(*rank));
  }
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.item = sums() ? groups_.groupAt(index).longest : table_.itemAt(index);
  }

 private:
  static constexpr int kAllRanks = 5;  // of how_
  [[nodiscard]] bool sums() const { return how_->currentIndex() > 0; }
  [[nodiscard]] EventGroups::Asked asked() const {
    EventGroups::Asked out;
    out.filter.text = search_->text();
    out.filter.category = categories_->currentData().toString();
    out.all_ranks = how_->currentIndex() == kAllRanks;
    if (sums() && !out.all_ranks) {
      out.by = static_cast<EventGrouping>(how_->currentIndex() - 1);
    }
    return out;
  }
  void showRows() {
    views_->setCurrentWidget(sums() ? sums_ : each_);
    showView(sums() ? *sums_ : *each_);
    showSelection();
  }
  // Lists the categories of the rank's events. The chosen one stays, even if the rank has no event
  // of it.
  void listCategories(const RankData& rank) {
    if (listed_ == selection().current().rank) {
      return;
    }
    listed_ = selection().current().rank;
    const QSignalBlocker quiet(categories_);
    const QString chosen = categories_->currentData().toString();
    while (categories_->count() > 1) {
      categories_->removeItem(1);
    }
    for (const QString& each : event_categories(rank.trace)) {
      categories_->addItem(each, each);
    }
    if (categories_->findData(chosen) < 0) {
      categories_->addItem(chosen, chosen);
    }
    categories_->setCurrentIndex(categories_->findData(chosen));
  }
  [[nodiscard]] QString summary(const RankData& rank) const {
    const auto all = static_cast<qlonglong>(rank.trace.events.size());
    const Selection& chosen = selection().current();
    const QString where = chosen.range  ? tr(", within the dragged range")
                          : chosen.step ? tr(", within the chosen step")
                                        : QString();
    const QString none =
        search_->text().isEmpty() ? QString() : tr(". No name contains the text in the box.");
    if (!sums()) {
      return tr("%1 of %2 of rank %3%4")
                 .arg(QLocale().toString(table_.rowCount()))
                 .arg(countText(all, tr("event"), tr("events")))
                 .arg(rank.figures.rank)
                 .arg(where) +
             (table_.rowCount() > 0 ? QString() : none);
    }
    if (groups_.rowCount() == 0) {
      return tr("No events%1").arg(where) + none;
    }
    const double share = groups_.total() == 0 ? 0
                                              : static_cast<double>(groups_.sum()) /
                                                    static_cast<double>(groups_.total());
    return tr("%1, %2 in total, %3 of all in these categories, of %4%5")
        .arg(countText(groups_.count(), tr("event"), tr("events")), durationText(groups_.sum()),
             QString::fromStdString(report::format_percent(share)),
             asked().all_ranks ? tr("all ranks") : tr("rank %1").arg(rank.figures.rank), where);
  }
  EventTable table_;
  EventGroups groups_;
  QComboBox* how_ = make_list(tr("What a row is"));
  QComboBox* categories_ = make_list(tr("Category of the events"));
  SearchBox* search_ = new SearchBox(tr("Name contains … (Ctrl+F)"), tr("Find events by name"));
  QLabel* note_ = make_note();
  QStackedWidget* views_ = new QStackedWidget;
  QTableView* each_ = make_table(table_, tr("Events"));
  QTableView* sums_ = make_table(groups_, tr("Events, summed up"));
  std::optional<size_t> listed_;  // the rank whose categories are listed
};

}  // namespace

PanelPointer make_events_panel(const PanelContext& context) {
  return std::make_unique<EventsPanel>(context);
}

}  // namespace shardlens::gui
