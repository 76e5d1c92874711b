#include "gui/view/window/context_menu.h"

#include <utility>

#include <QApplication>
#include <QClipboard>
#include <QMenu>

#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/window_menus.h"

namespace shardlens::gui {

ContextMenu::ContextMenu(const WindowParts& parts, Bookmarks& bookmarks)
    : parts_(parts), bookmarks_(bookmarks) {
  connect(&parts_.timeline(), &TimelineView::menuRequested, this, &ContextMenu::show);
  connect(&parts_.panels, &Panels::menuRequested, this, &ContextMenu::show);
}

void ContextMenu::add(QMenu& menu, const QString& title, std::function<void()> run) {
  connect(menu.addAction(title), &QAction::triggered, this, std::move(run));
}

void ContextMenu::addCommand(QMenu& menu, const char* id) {
  add(menu, parts_.actions.find(QLatin1String(id))->title,
      [this, id] { parts_.actions.trigger(QLatin1String(id)); });
}

void ContextMenu::addRank(QMenu& menu, size_t rank) {
  const bool folded = parts_.timeline().scene().collapsed().contains(rank);
  add(menu, folded ? tr("Unfold the rank") : tr("Fold the rank"),
      [this, rank] { parts_.timeline().toggleRank(rank); });
  addCommand(menu, "view.fold");
  addCommand(menu, "view.unfold");
  menu.addSeparator();
}

void ContextMenu::addLane(QMenu& menu, const MenuTarget& target) {
  TimelineView& timeline = parts_.timeline();
  const TimelineView::LaneAt lane{target.lane_rank, target.lane};
  const int64_t rank = parts_.context.run()->ranks[lane.rank]->figures.rank;
  add(menu,
      timeline.isPinned(lane) ? tr("Unpin %1 of rank %2").arg(lane.name).arg(rank)
                              : tr("Pin %1 of rank %2").arg(lane.name).arg(rank),
      [&timeline, lane] { timeline.togglePin(lane); });
  add(menu, tr("Hide %1").arg(lane.name), [&timeline, lane] { timeline.toggleHidden(lane.name); });
  add(menu, tr("Move %1 up").arg(lane.name), [&timeline, lane] { timeline.moveLane(lane, -1); });
  add(menu, tr("Move %1 down").arg(lane.name), [&timeline, lane] { timeline.moveLane(lane, 1); });
  menu.addSeparator();
  for (const QString& hidden : timeline.scene().arrangement().hidden) {
    add(menu, tr("Show %1 again").arg(hidden),
        [&timeline, hidden] { timeline.toggleHidden(hidden); });
  }
  addCommand(menu, "lane.first");
  addCommand(menu, "lane.nested");
  menu.addSeparator();
}

void ContextMenu::addPlaces(QMenu& menu, const MenuTarget& target) {
  if (target.item) {
    add(menu, tr("Go to it in the timeline"), [this, item = *target.item] {
      parts_.context.selectItem(item);
      parts_.timeline().goToSelection();
    });
    add(menu, tr("Measure it"), [this, item = *target.item] {
      parts_.context.selectItem(item);
      parts_.context.measureItem();
    });
  }
  if (target.unit) {
    const QString name = shortened(QString::fromStdString(unit_label(*target.unit)));
    add(menu, tr("Select unit %1").arg(name),
        [this, unit = *target.unit] { parts_.context.selectUnit(unit); });
    add(menu, tr("Zoom to unit %1").arg(name), [this, unit = *target.unit] {
      parts_.context.selectUnit(unit);
      parts_.timeline().goToSelection();
    });
  }
}

void ContextMenu::addBookmark(QMenu& menu, Nanoseconds time) {
  menu.addSeparator();
  const bool marked = parts_.timeline().bookmarkAt(time).has_value();
  add(menu, marked ? tr("Remove the bookmark") : tr("Bookmark here"),
      [this, time] { parts_.timeline().toggleBookmark(time); });
  add(menu, marked ? tr("Edit the bookmark's note …") : tr("Bookmark here with a note …"),
      [this, time] { bookmarks_.edit(time); });
}

void ContextMenu::show(const MenuTarget& target, const QPoint& where) {
  auto* menu = new QMenu(&parts_.window);
  menu->setObjectName(QStringLiteral("context"));
  menu->setAttribute(Qt::WA_DeleteOnClose);
  if (target.rank) {
    addRank(*menu, *target.rank);
  }
  if (!target.lane.isEmpty()) {
    addLane(*menu, target);
  }
  addPlaces(*menu, target);
  if (target.time) {
    addBookmark(*menu, *target.time);
  }
  menu->addSeparator();
  if (!target.text.isEmpty()) {
    add(*menu, tr("Copy"), [text = target.text] { QApplication::clipboard()->setText(text); });
  }
  if (!target.table.isEmpty()) {
    add(*menu, tr("Copy the whole table as CSV"),
        [table = target.table] { QApplication::clipboard()->setText(QString::fromUtf8(table)); });
  }
  for (const char* id : {"plan.try", "view.all", "go.clear"}) {
    if (parts_.actions.find(QLatin1String(id))->enabled()) {
      addCommand(*menu, id);
    }
  }
  menu->popup(where);
}

}  // namespace shardlens::gui
