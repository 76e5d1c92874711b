#pragma once

#include <QStringList>
#include <QWidget>

class QLabel;

namespace shardlens::gui {

// A strip above the timeline with notices that the user must know before reading the run's numbers.
// Hidden if there are none.
class NoticeBar : public QWidget {
  Q_OBJECT
 public:
  explicit NoticeBar(QWidget* parent = nullptr);
  void show(const QStringList& notes);
  [[nodiscard]] QString text() const;

 signals:
  void moreRequested();  // the user asked for the diagnostics

 private:
  QLabel* label_;
};

}  // namespace shardlens::gui
