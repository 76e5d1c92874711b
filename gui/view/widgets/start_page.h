#pragma once

#include <QStringList>
#include <QWidget>

class QLabel;
class QListWidget;
class QProgressBar;
class QPushButton;

namespace shardlens::gui {

class ActionRegistry;

// The page shown while no run is open: what can be opened, recent files, and the progress of a
// load.
class StartPage : public QWidget {
  Q_OBJECT
 public:
  explicit StartPage(ActionRegistry& actions, QWidget* parent = nullptr);
  void setRecent(const QStringList& paths);
  void showMessage(const QString& message);  // error of a failed load; "": hides the message
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
