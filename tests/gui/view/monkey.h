#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <QObject>
#include <QStringList>
#include <QTimer>

#include "gui/view/window/main_window.h"

namespace shardlens::gui {

// Clicks, drags, scrolls, resizes, opens menus and types in a window at random; the same seed
// repeats the same actions. Dialogs that write files or start programs are closed when they open.
// Widgets that run an event loop of their own (a button's menu) are answered from a timer.
class Monkey : public QObject {
 public:
  Monkey(MainWindow& window, uint32_t seed);
  // Performs one action and processes its events; log() records the action.
  void act();
  // The last actions, the latest one last.
  [[nodiscard]] const QStringList& log() const { return log_; }
  // The invariants that the window violates now; empty: none.
  [[nodiscard]] QStringList broken();

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override;  // of the application

 private:
  int below(int count);  // 0 … count − 1
  bool chance(double probability);
  QPoint within(const QWidget& widget);
  void say(const QString& what);
  [[nodiscard]] QWidget* top();  // the widget that gets a click: popup, dialog or window
  QWidget* someWidget(QWidget& within_top);  // a random visible widget
  Qt::KeyboardModifiers modifiers();
  void click();
  void drag();
  void wheel();
  void type();
  void command();
  void resize();
  void menu();
  void panel();
  void rank();
  void answer();     // ends nested event loops
  void closeAway();  // closes dialogs that must not be answered
  QStringList brokenNumbers();
  QStringList brokenSelection();

  MainWindow& window_;
  std::mt19937 random_;
  QStringList log_;
  QTimer watch_;
  bool acting_ = false;
  int waited_ = 0;   // ticks of the watch in this action
  int resizes_ = 0;  // of widgets in this action
};

}  // namespace shardlens::gui
