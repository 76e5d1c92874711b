#pragma once

#include <optional>

#include <QAbstractScrollArea>
#include <QPoint>

#include "gui/model/selection_context.h"
#include "gui/view/menu_target.h"
#include "gui/view/theme.h"
#include "gui/view/timeline_scene.h"

namespace shardlens::gui {

// The timeline as a widget: shows the selection of `context` and changes it.
//
// Mouse  wheel zooms at the pointer (Ctrl finely), Shift+wheel and Shift+drag pan, a drag measures
//        and snaps to edges (Alt: freely), a click selects, a double click zooms in on what it
//        hits; the minimap takes clicks and drags, a rank's name folds it.
class TimelineView : public QAbstractScrollArea {
  Q_OBJECT
 public:
  explicit TimelineView(SelectionContext& context, QWidget* parent = nullptr);

  void setTheme(const Theme& theme);
  [[nodiscard]] TimelineScene& scene() { return scene_; }
  void setGhost(const Ghost& ghost);

  // Commands; each redraws and tells viewChanged().
  void zoomBy(double factor);  // around the pointer, else the middle
  void panBy(double part);     // of the width
  void scrollBy(int pixels);
  void fitSelection();   // range, item or step; else all
  void goToSelection();  // item, unit (within the step, else the first one), or as fitSelection()
  void fitAll();
  void showInterval(const analysis::Interval& shown);
  // Each does nothing where the function below it finds nothing.
  void selectNeighbour(int way);  // next (+1) or previous item of the selected one's row
  void selectExposed(int way);    // next or previous exposed collective of the rank
  void followArrow(int way);      // from a collective to what waits for it, and back
  void jumpToBookmark(int way);
  [[nodiscard]] std::optional<Selection::Item> neighbour(int way) const;
  [[nodiscard]] std::optional<Selection::Item> nextExposed(int way) const;
  [[nodiscard]] std::optional<Selection::Item> arrowEnd(int way) const;
  [[nodiscard]] std::optional<Nanoseconds> nextBookmark(int way) const;
  // What a bookmark set now marks: the instant under the pointer, else where the range, else the
  // item begins, else the middle of the view.
  [[nodiscard]] Nanoseconds markedTime() const;
  // The bookmark that is drawn there, within some pixels.
  [[nodiscard]] std::optional<Bookmark> bookmarkAt(Nanoseconds time);
  void toggleBookmark(Nanoseconds time);  // removes the one that is there, with its note
  // Sets one, or gives the one that is there another note; "": its time is its note.
  void setBookmark(Nanoseconds time, const QString& note);
  void toggleRank(size_t rank);  // folds or unfolds, and chooses it
  void setAllCollapsed(bool collapsed);
  // Nanoseconds that the last frame took to paint.
  [[nodiscard]] qint64 lastFrame() const { return last_frame_; }
  // Draws what is on the screen.
  void drawOn(QPainter& painter);

 signals:
  void viewChanged();
  void bookmarksChanged();
  void hovered(const QString& description);
  void menuRequested(const shardlens::gui::MenuTarget& target, const QPoint& where);
  // While a range is dragged, with what it is; finally nullopt.
  void dragging(std::optional<shardlens::analysis::Interval> range);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  void contextMenuEvent(QContextMenuEvent* event) override;
  bool viewportEvent(QEvent* event) override;
  void scrollContentsBy(int dx, int dy) override;

 private:
  enum class Drag : uint8_t { kNone, kPress, kMeasure, kPan, kMinimap };
  std::vector<Bookmark>::iterator bookmarkNear(Nanoseconds time);
  void runChanged();
  void selectionChanged();
  void moved();  // after the axis changed
  void updateScrollBars();
  void moveMinimapTo(double x);
  void hover(const QPointF& at);

  SelectionContext& context_;
  TimelineScene scene_;
  const Theme* theme_;
  Drag drag_ = Drag::kNone;
  QPointF pressed_, last_;
  Nanoseconds anchor_ = 0;
  qint64 last_frame_ = 0;
};

}  // namespace shardlens::gui
