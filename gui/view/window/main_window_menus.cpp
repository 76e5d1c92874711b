#include <QAction>
#include <QApplication>
#include <QClipboard>
#include <QFileInfo>
#include <QMenu>
#include <QMenuBar>

#include "gui/model/base/time_axis.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/main_window.h"

namespace shardlens::gui {
namespace {

constexpr int kRecentNames = 80;  // characters of a path in the menu; the tooltip has all of it

QString shortened(const QString& path) {
  return path.size() <= kRecentNames ? path : u'…' + path.right(kRecentNames - 1);
}

}  // namespace

void MainWindow::makeMenus() {
  QMenu* menu = nullptr;
  for (const Command& command : actions_.commands()) {
    if (menu == nullptr || menu->title() != command.menu) {
      menu = menuBar()->addMenu(command.menu);
      menu->setToolTipsVisible(true);
    }
    if (command.separated) {
      menu->addSeparator();
    }
    auto* action = menu->addAction(command.title);
    action->setObjectName(command.id);
    QList<QKeySequence> keys;
    for (const QString& key : command.shortcuts) {
      keys.append(QKeySequence(key));
    }
    action->setShortcuts(keys);
    const QString id = command.id;
    connect(action, &QAction::triggered, this, [this, id] { actions_.trigger(id); });
    entries_.push_back(action);
    if (id == QStringLiteral("file.sample")) {
      recent_ = menu->addMenu(tr("Open recent"));
      recent_->setToolTipsVisible(true);
      connect(recent_, &QMenu::triggered, this, [this](QAction* chosen) {
        const QStringList paths = chosen->data().toStringList();
        if (!paths.isEmpty()) {
          open(paths);
        } else {  // later, since it removes the entry that is being handled
          QMetaObject::invokeMethod(this, &MainWindow::forgetRecent, Qt::QueuedConnection);
        }
      });
    }
  }
  fillRecent();
}

// Shortcuts belong to the menus' actions, so these are enabled and disabled immediately when a
// command's state changes.
void MainWindow::followActions() {
  const auto refresh = [this] { actions_.refresh(); };
  connect(&actions_, &ActionRegistry::changed, this, [this] {
    for (QAction* entry : entries_) {
      const Command* command = actions_.find(entry->objectName());
      const bool enabled = command->enabled();
      entry->setEnabled(enabled);
      entry->setToolTip(enabled ? command->title : command->needs);
    }
  });
  connect(&context_, &SelectionContext::runChanged, this, refresh);
  connect(&context_, &SelectionContext::changed, this, refresh);
  connect(&session_, &PlanSession::stateChanged, this, refresh);
  connect(&session_, &PlanSession::simulatedOne, this, refresh);
  connect(&session_.undoStack(), &QUndoStack::canUndoChanged, this, refresh);
  connect(&session_.undoStack(), &QUndoStack::canRedoChanged, this, refresh);
  connect(&compare_, &CompareSession::changed, this, refresh);
  connect(&compare_, &CompareSession::progress, this, refresh);
  connect(&compare_, &CompareSession::failed, this, refresh);
  connect(timeline_, &TimelineView::bookmarksChanged, this, refresh);
  connect(timeline_, &TimelineView::viewChanged, this, refresh);
  connect(this, &MainWindow::settled, this, refresh);
  refresh();
}

void MainWindow::fillRecent() {
  recent_->clear();
  for (const QString& entry : recentFiles()) {
    const QStringList paths = entry.split(u'\n');
    const QString name = shortened(paths.front());
    QAction* action = recent_->addAction(
        paths.size() == 1 ? name : tr("%1 and %2 more").arg(name).arg(paths.size() - 1));
    action->setToolTip(paths.join(u'\n'));
    action->setData(paths);
  }
  recent_->setEnabled(!recent_->isEmpty());
  if (!recent_->isEmpty()) {
    recent_->addSeparator();
    recent_->addAction(tr("Clear this list"));
  }
}

void MainWindow::showContextMenu(const MenuTarget& target, const QPoint& where) {
  auto* menu = new QMenu(this);
  menu->setObjectName(QStringLiteral("context"));
  menu->setAttribute(Qt::WA_DeleteOnClose);
  const auto add = [this, menu](const QString& title, auto&& run) {
    connect(menu->addAction(title), &QAction::triggered, this, run);
  };
  if (target.rank) {
    const bool folded = timeline_->scene().collapsed().contains(*target.rank);
    add(folded ? tr("Unfold the rank") : tr("Fold the rank"),
        [this, rank = *target.rank] { timeline_->toggleRank(rank); });
    for (const char* id : {"view.fold", "view.unfold"}) {
      add(actions_.find(QLatin1String(id))->title,
          [this, id] { actions_.trigger(QLatin1String(id)); });
    }
    menu->addSeparator();
  }
  if (target.item) {
    add(tr("Go to it in the timeline"), [this, item = *target.item] {
      context_.selectItem(item);
      timeline_->goToSelection();
    });
  }
  if (target.unit) {
    const QString name = QString::fromStdString(unit_label(*target.unit));
    add(tr("Select unit %1").arg(shortened(name)),
        [this, unit = *target.unit] { context_.selectUnit(unit); });
    add(tr("Zoom to unit %1").arg(shortened(name)), [this, unit = *target.unit] {
      context_.selectUnit(unit);
      timeline_->goToSelection();
    });
  }
  if (target.time) {
    menu->addSeparator();
    const bool marked = timeline_->bookmarkAt(*target.time).has_value();
    add(marked ? tr("Remove the bookmark") : tr("Bookmark here"),
        [this, time = *target.time] { timeline_->toggleBookmark(time); });
    add(marked ? tr("Edit the bookmark's note …") : tr("Bookmark here with a note …"),
        [this, time = *target.time] { editBookmark(time); });
  }
  menu->addSeparator();
  if (!target.text.isEmpty()) {
    add(tr("Copy"), [text = target.text] { QApplication::clipboard()->setText(text); });
  }
  if (!target.table.isEmpty()) {
    add(tr("Copy the whole table as CSV"),
        [table = target.table] { QApplication::clipboard()->setText(QString::fromUtf8(table)); });
  }
  for (const char* id : {"view.all", "go.clear"}) {
    const Command* command = actions_.find(QLatin1String(id));
    if (command->enabled()) {
      add(command->title, [this, id] { actions_.trigger(QLatin1String(id)); });
    }
  }
  menu->popup(where);
}

}  // namespace shardlens::gui
