#pragma once

#include <optional>
#include <vector>

#include <QAbstractScrollArea>
#include <QPoint>

#include "gui/model/run/exposed_list.h"
#include "gui/model/run/selection_context.h"
#include "gui/view/timeline/timeline_scene.h"
#include "gui/view/widgets/menu_target.h"
#include "gui/view/widgets/theme.h"

namespace shardlens::gui {

// The timeline widget. It shows the selection of `context` and can change it.
//
// Mouse  The wheel zooms at the pointer (with Ctrl in small steps); Shift+wheel and Shift+drag pan.
//        A drag measures and snaps to edges (with Alt it does not snap). A click selects an item
//        or a step; a double click zooms to it. In the lanes of another run a click selects the
//        item's unit. Clicks and drags on the minimap move the view; a click on a rank's name
//        folds the rank.
class TimelineView : public QAbstractScrollArea {
  Q_OBJECT
 public:
  explicit TimelineView(SelectionContext& context, QWidget* parent = nullptr);

  void setTheme(const Theme& theme);
  [[nodiscard]] TimelineScene& scene() { return scene_; }
  void setGhost(const Ghost& ghost);

  // Commands. They redraw and emit viewChanged() if the view changed.
  void zoomBy(double factor);  // around the pointer, else around the middle
  void panBy(double part);     // as a fraction of the width
  void scrollBy(int pixels);
  void fitSelection();   // range, item or step; else the whole run
  void goToSelection();  // item, unit (in the selected, else the first step), or as fitSelection()
  void fitAll();
  void showInterval(const analysis::Interval& shown);
  void setView(const analysis::Interval& shown);  // without the margin of showInterval()
  void fitGhost();                                // the other run's lanes; nothing without them
  // Each of these does nothing if the corresponding function below returns nullopt.
  void selectNeighbour(int way);  // next (+1) or previous (-1) item on the selected item's row
  void selectExposed(int way);    // next less (+1) or more (-1) exposed collective
  void followArrow(int way);      // from a collective to what waits for it (+1), and back (-1)
  void goToLaunch();              // from a kernel to its launch, and from a launch to its kernel
  void jumpToBookmark(int way);
  [[nodiscard]] std::optional<Selection::Item> neighbour(int way) const;
  // The next less (+1) or more (-1) exposed collective of the window.
  [[nodiscard]] std::optional<Selection::Item> nextExposed(int way) const;
  [[nodiscard]] std::optional<Selection::Item> arrowEnd(int way) const;
  [[nodiscard]] std::optional<Selection::Item> launchEnd() const;
  [[nodiscard]] std::optional<Nanoseconds> nextBookmark(int way) const;
  // The time of a bookmark set now: the instant under the pointer, else the start of the range,
  // else of the item, else the middle of the view.
  [[nodiscard]] Nanoseconds markedTime() const;
  // The bookmark drawn within some pixels of `time`.
  [[nodiscard]] std::optional<Bookmark> bookmarkAt(Nanoseconds time);
  // Sets a bookmark, or removes the one at `time` with its note.
  void toggleBookmark(Nanoseconds time);
  // Sets a bookmark, or changes the note of the one at `time`. An empty note becomes its time as
  // text.
  void setBookmark(Nanoseconds time, const QString& note);
  void toggleRank(size_t rank);  // folds or unfolds the rank, and selects it
  void setAllCollapsed(bool collapsed);

  // A lane of a rank, as LaneArrangement names it.
  struct LaneAt {
    size_t rank = 0;  // index into RunData::ranks
    QString name;
  };
  // The lane under the pointer, else that of the selected item; nullopt: none.
  [[nodiscard]] std::optional<LaneAt> chosenLane() const;
  [[nodiscard]] bool isPinned(const LaneAt& lane) const;
  // Each emits arranged() if something changed.
  void arrange(const LaneArrangement& arrangement);
  void togglePin(const LaneAt& lane);
  void toggleHidden(const QString& lane);
  void moveLane(const LaneAt& lane, int way);  // by one place, up (-1) or down (+1)
  void toggleNested();                         // operators of the host with those that they call
  // Painting time of the last frame in nanoseconds.
  [[nodiscard]] qint64 lastFrame() const { return last_frame_; }
  // Draws the timeline as on the screen.
  void drawOn(QPainter& painter);

 signals:
  void viewChanged();
  void bookmarksChanged();
  void arranged();          // the lanes were pinned, hidden, moved or shown again
  void laneUnderPointer();  // whether there is one changed
  void hovered(const QString& description);
  // The time under the pointer, in display time; nullopt: it is not on the lanes.
  void cursorMoved(std::optional<shardlens::Nanoseconds> time);
  void menuRequested(const shardlens::gui::MenuTarget& target, const QPoint& where);
  // The range while it is dragged; nullopt when the drag ends.
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
  void reveal(const analysis::Interval& shown);  // moves the view if the interval is not in it
  // Unfolds the selected rank, and scrolls to the lane of the selected item, otherwise to the rank.
  void revealLane();
  void scrollTo(const TimelineLayout::Extent& shown);
  void unfold(size_t rank);
  void moved();  // redraws and emits viewChanged()
  void updateScrollBars();
  void moveMinimapTo(double x);
  void hover(const QPointF& at);
  void setHoveredLane(const std::optional<LaneAt>& lane);
  void click(const QPointF& at);
  [[nodiscard]] bool isRankName(const QPointF& at) const;
  [[nodiscard]] analysis::Interval ghostInterval(const Selection::Item& item) const;
  [[nodiscard]] QString description(const TimelineScene::Hit& hit) const;  // "": of no item
  // Of the selected rank and window; the list is kept until they change.
  [[nodiscard]] const std::vector<ExposedCollective>& exposedByCost() const;

  SelectionContext& context_;
  TimelineScene scene_;
  const Theme* theme_;
  Drag drag_ = Drag::kNone;
  QPointF pressed_, last_;
  Nanoseconds anchor_ = 0;
  qint64 last_frame_ = 0;
  // What is clicked in the timeline is selected where it is: a second click must find it again.
  bool clicking_ = false;
  // The lane under the pointer where it moved last; lanes that move below it do not change it.
  std::optional<LaneAt> hovered_lane_;
  // The rank that was unfolded because it was selected. It is folded when another one is.
  std::optional<size_t> unfolded_;
  struct Walk {
    RunPointer run;
    const RankData* rank = nullptr;
    analysis::IntervalSet window;
    std::vector<ExposedCollective> list;
  };
  mutable Walk walk_;
};

}  // namespace shardlens::gui
