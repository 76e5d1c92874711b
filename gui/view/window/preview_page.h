#pragma once

#include <cstdint>
#include <optional>

#include <QWidget>

#include "gui/model/run/selection_context.h"
#include "gui/view/widgets/theme.h"

class QLabel;
class QProgressBar;

namespace shardlens::gui {

class TimelineView;

// The page shown while a run is being read, once a part of it can be drawn: the lanes of one rank,
// and how much has been read. It has a selection of its own, so that no panel shows the part.
class PreviewPage : public QWidget {
  Q_OBJECT
 public:
  explicit PreviewPage(QWidget* parent = nullptr);
  void setRun(const RunPointer& run);  // nullptr: none
  void showProgress(int percent, const QString& what);
  void setTheme(const Theme& theme);
  [[nodiscard]] TimelineView& timeline() { return *timeline_; }
  [[nodiscard]] QString text() const;  // what the page says about the picture

  // What the user looks at. Times are of the rank's own clock.
  struct View {
    int64_t rank = 0;
    std::optional<analysis::Interval> own;  // nullopt: the whole picture
  };
  [[nodiscard]] std::optional<View> view() const;  // nullopt: no picture

 signals:
  void cancelRequested();

 private:
  SelectionContext context_;
  TimelineView* timeline_;
  QLabel* label_;
  QProgressBar* progress_;
};

}  // namespace shardlens::gui
