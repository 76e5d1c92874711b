#include "gui/view/window/window_menus.h"

#include <QAction>
#include <QMenu>
#include <QMenuBar>

namespace shardlens::gui {
namespace {

constexpr int kShownCharacters = 80;

}  // namespace

QString shortened(const QString& path) {
  QString text = path.size() <= kShownCharacters ? path : u'…' + path.right(kShownCharacters - 1);
  return text.replace(u'&', QStringLiteral("&&"));  // a single one would mark a mnemonic
}

WindowMenus::WindowMenus(QMainWindow& window, ActionRegistry& actions, RecentFiles& recent)
    : actions_(actions), recent_(recent) {
  QMenu* menu = nullptr;
  for (const Command& command : actions_.commands()) {
    if (menu == nullptr || menu->title() != command.menu) {
      menu = window.menuBar()->addMenu(command.menu);
      menu->setToolTipsVisible(true);
    }
    add(*menu, command);
    if (command.id == QStringLiteral("file.sample")) {
      addRecent(*menu);
    }
  }
  fillRecent();
  connect(&recent_, &RecentFiles::changed, this, &WindowMenus::fillRecent);
  connect(&actions_, &ActionRegistry::changed, this, &WindowMenus::update);
}

void WindowMenus::add(QMenu& menu, const Command& command) {
  if (command.separated) {
    menu.addSeparator();
  }
  auto* action = menu.addAction(command.title);
  action->setObjectName(command.id);
  QList<QKeySequence> keys;
  for (const QString& key : command.shortcuts) {
    keys.append(QKeySequence(key));
  }
  action->setShortcuts(keys);
  connect(action, &QAction::triggered, this, [this, id = command.id] { actions_.trigger(id); });
  entries_.push_back(action);
}

void WindowMenus::addRecent(QMenu& menu) {
  recent_menu_ = menu.addMenu(tr("Open recent"));
  recent_menu_->setToolTipsVisible(true);
  connect(recent_menu_, &QMenu::triggered, this, [this](QAction* chosen) {
    const QStringList paths = chosen->data().toStringList();
    if (!paths.isEmpty()) {
      emit openRequested(paths);
    } else {  // later, since it removes the entry that is being handled
      QMetaObject::invokeMethod(&recent_, &RecentFiles::clear, Qt::QueuedConnection);
    }
  });
}

void WindowMenus::update() {
  for (QAction* entry : entries_) {
    const Command* command = actions_.find(entry->objectName());
    const bool enabled = command->enabled();
    entry->setEnabled(enabled);
    entry->setToolTip(enabled ? command->title : command->needs);
  }
}

void WindowMenus::fillRecent() {
  recent_menu_->clear();
  for (const QString& entry : recent_.entries()) {
    const QStringList paths = entry.split(u'\n');
    const QString name = shortened(paths.front());
    QAction* action = recent_menu_->addAction(
        paths.size() == 1 ? name : tr("%1 and %2 more").arg(name).arg(paths.size() - 1));
    action->setToolTip(paths.join(u'\n'));
    action->setData(paths);
  }
  recent_menu_->setEnabled(!recent_menu_->isEmpty());
  if (!recent_menu_->isEmpty()) {
    recent_menu_->addSeparator();
    recent_menu_->addAction(tr("Clear this list"));
  }
}

}  // namespace shardlens::gui
