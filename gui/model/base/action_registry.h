#pragma once

#include <functional>
#include <vector>

#include <QObject>
#include <QString>
#include <QStringList>

namespace shardlens::gui {

// An action that the user can run, with everything that menus, shortcuts, the command palette and
// the sheet of shortcuts need to offer it.
struct Command {
  QString id;             // "timeline.fit"
  QString menu;           // menu of the menu bar that lists it; "": none
  QString title;          // "Fit the selection"
  QStringList shortcuts;  // as QKeySequence parses them; the first one is shown
  std::function<void()> run;
  std::function<bool()> enabled = [] { return true; };
  QString needs = {};      // shown while it is disabled: "Open a run first"
  bool separated = false;  // the menu has a separator above it
};

// All commands, each one once, in the order of the menus.
//
// Code that changes the state that `enabled` reads must call refresh(). Menus, buttons and
// shortcuts are updated on changed(), immediately and not only when a menu is opened.
class ActionRegistry : public QObject {
  Q_OBJECT
 public:
  explicit ActionRegistry(QObject* parent = nullptr) : QObject(parent) {}
  // Throws RuntimeFault (a programming error) if the id or a shortcut is already used.
  void add(Command command);
  [[nodiscard]] const std::vector<Command>& commands() const { return commands_; }
  [[nodiscard]] const Command* find(const QString& id) const;
  // Runs the command; false if there is no such command or it is disabled.
  bool trigger(const QString& id);
  void refresh();

  // Commands whose titles contain the letters of `text` in order, the best match first: `text` at
  // the start of a word, then within a word, then its letters scattered.
  [[nodiscard]] std::vector<const Command*> matching(const QString& text) const;

 signals:
  void changed();  // some command became enabled or disabled

 private:
  std::vector<Command> commands_;
  std::vector<bool> enabled_;  // at the last changed()
};

// How well `text` matches `title`: 0: not at all; higher is better.
[[nodiscard]] int match_score(const QString& text, const QString& title);

}  // namespace shardlens::gui
