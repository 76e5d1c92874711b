#pragma once

#include <initializer_list>

#include <QStringList>
#include <QWidget>

class QLabel;
class QListWidget;
class QProgressBar;
class QPushButton;
class QVBoxLayout;

namespace shardlens::gui {

class ActionRegistry;

// The page shown while no run is open: what most users open first, recent files, what else can be
// opened, and the progress of a load.
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
  void addButtons(ActionRegistry& actions,
                  QVBoxLayout& column,
                  std::initializer_list<const char*> ids);
  QLabel* message_;
  QListWidget* recent_;
  QLabel* recent_title_;
  QLabel* progress_text_;
  QProgressBar* progress_;
  QPushButton* cancel_;
};

}  // namespace shardlens::gui
