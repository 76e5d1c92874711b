#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <QObject>
#include <QStringList>
#include <QTimer>

#include "gui/view/main_window.h"

namespace shardlens::gui {

// Presses, drags, scrolls, resizes, opens menus and types in a window, as chance has it: the same
// seed does the same. Dialogs that write files or start programs are closed as they come; what
// waits in an event loop of its own (a button's menu) is answered from a timer.
class Monkey : public QObject {
 public:
  Monkey(MainWindow& window, uint32_t seed);
  // One action and what follows from it at once; what it was is in log().
  void act();
  // What the last actions were, the latest last.
  [[nodiscard]] const QStringList& log() const { return log_; }
  // What does not hold of the window now; empty: all does.
  [[nodiscard]] QStringList broken();

 private:
  int below(int count);  // 0 … count − 1
  bool chance(double probability);
  QPoint within(const QWidget& widget);
  void say(const QString& what);
  [[nodiscard]] QWidget* top();              // what a press would reach: popup, dialog or window
  QWidget* someWidget(QWidget& within_top);  // visible, any of them
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
  void answer();     // nested event loops
  void closeAway();  // what must not be answered
  QStringList brokenNumbers();
  QStringList brokenSelection();

  MainWindow& window_;
  std::mt19937 random_;
  QStringList log_;
  QTimer watch_;
  bool acting_ = false;
  int waited_ = 0;  // ticks of the watch in this action
};

}  // namespace shardlens::gui
