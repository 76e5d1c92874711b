#pragma once

#include <functional>
#include <vector>

#include <QObject>
#include <QString>
#include <QStringList>

namespace shardlens::gui {

// Something that the user can do, with everything that menus, shortcuts, the command palette and
// the sheet of shortcuts need to offer it.
struct Command {
  QString id;             // "timeline.fit"
  QString menu;           // of the menu bar that lists it; "" in none
  QString title;          // "Fit the selection"
  QStringList shortcuts;  // as QKeySequence reads them, the first one shown
  std::function<void()> run;
  std::function<bool()> enabled = [] { return true; };
  QString needs = {};      // why it is not enabled, while it is not: "Open a run first"
  bool separated = false;  // a line in the menu, above it
};

// All commands, once. Its order is that of the menus.
//
// Whoever changes what `enabled` asks calls refresh(): menus, buttons and shortcuts follow
// changed(), at once and not when a menu is opened.
class ActionRegistry : public QObject {
  Q_OBJECT
 public:
  explicit ActionRegistry(QObject* parent = nullptr) : QObject(parent) {}
  // An id or a shortcut that is taken is an error of ours.
  void add(Command command);
  [[nodiscard]] const std::vector<Command>& commands() const { return commands_; }
  [[nodiscard]] const Command* find(const QString& id) const;
  // False where there is none, or it cannot run now.
  bool trigger(const QString& id);
  void refresh();

  // Commands whose titles hold the letters of `text` in order, the best first: words that begin
  // with it before words that hold it before scattered letters.
  [[nodiscard]] std::vector<const Command*> matching(const QString& text) const;

 signals:
  void changed();  // what is enabled

 private:
  std::vector<Command> commands_;
  std::vector<bool> enabled_;  // as changed() told last
};

// How well `text` fits `title`: 0 not at all, more is better.
[[nodiscard]] int match_score(const QString& text, const QString& title);

}  // namespace shardlens::gui
