#pragma once

#include <QStringList>
#include <QWidget>

class QLabel;

namespace shardlens::gui {

// A strip above the timeline with what must be known about the run before reading it; hidden
// where there is nothing.
class NoticeBar : public QWidget {
  Q_OBJECT
 public:
  explicit NoticeBar(QWidget* parent = nullptr);
  void show(const QStringList& notes);
  [[nodiscard]] QString text() const;

 signals:
  void moreRequested();  // the diagnostics

 private:
  QLabel* label_;
};

}  // namespace shardlens::gui
