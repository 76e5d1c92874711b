#pragma once

#include <QStringList>
#include <QWidget>

class QLabel;
class QListWidget;
class QProgressBar;
class QPushButton;

namespace shardlens::gui {

class ActionRegistry;

// What is there before a run: what can be opened, what was opened last, and how a load comes along.
class StartPage : public QWidget {
  Q_OBJECT
 public:
  explicit StartPage(ActionRegistry& actions, QWidget* parent = nullptr);
  void setRecent(const QStringList& paths);
  void showMessage(const QString& message);  // of a load that failed; "" takes it away
  void showProgress(int percent, const QString& what);
  void endProgress();

 signals:
  void openRequested(const QStringList& paths);
  void cancelRequested();

 private:
  QLabel* message_;
  QListWidget* recent_;
  QLabel* recent_title_;
  QLabel* progress_text_;
  QProgressBar* progress_;
  QPushButton* cancel_;
};

}  // namespace shardlens::gui
