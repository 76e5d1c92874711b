#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gui/model/base/time_axis.h"
#include "gui/model/details/launch_ends.h"
#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/what_if/project.h"
#include "gui/view/timeline/lane_drawing.h"
#include "gui/view/timeline/minimap.h"
#include "gui/view/timeline/timeline_layout.h"
#include "gui/view/widgets/canvas.h"

namespace shardlens::gui {

// The state of the timeline. It can be drawn on any canvas, and hit() finds what is at a position.
//
// Layout  at the top minimap, ruler and steps (kHeader high together), at the left the lane names
//         (kGutter wide); the rest scrolls by `scroll` pixels.
// Units   pixels of the whole widget; times are display times (RunData::shown).
class TimelineScene {
 public:
  static constexpr double kGutter = 116, kMinimap = 26, kRuler = 22, kSteps = 18,
                          kHeader = kMinimap + kRuler + kSteps;

  struct Hit {
    std::optional<Selection::Item> item;
    bool ghost = false;                        // `item` is in the ghost's run
    std::optional<TimelineLayout::Band> band;  // a copy, since a click can rebuild the layout
    int64_t merged = 0;                        // number of items under the pixel
    double busy = 0;                           // busy fraction of the pixel
  };

  void setRun(RunPointer run);
  void setGhost(Ghost ghost);
  void setSelection(const Selection& selection);
  void setSize(double width, double height);
  void toggle(size_t rank);  // collapse or expand
  void setCollapsed(const std::set<size_t>& ranks);
  void arrange(const LaneArrangement& arrangement);

  TimeAxis axis;
  double scroll = 0;
  std::optional<Nanoseconds> cursor;          // under the mouse
  std::optional<analysis::Interval> dragged;  // being measured
  std::vector<Bookmark> bookmarks;

  [[nodiscard]] const RunPointer& run() const { return run_; }
  [[nodiscard]] const Ghost& ghost() const { return ghost_; }
  // Start and end of the ghost, in display time; nullopt without a ghost.
  [[nodiscard]] std::optional<analysis::Interval> ghostInterval() const;
  [[nodiscard]] const TimelineLayout& layout() const { return layout_; }
  [[nodiscard]] const std::set<size_t>& collapsed() const { return collapsed_; }
  [[nodiscard]] const LaneArrangement& arrangement() const { return arrangement_; }
  // As TimelineLayout::Band::lane counts.
  [[nodiscard]] const Lane& lane(size_t rank, size_t index) const;
  // From the top of the widget.
  [[nodiscard]] double topOf(const TimelineLayout::Band& band) const {
    return kHeader + band.top - (band.pinned ? 0 : scroll);
  }
  [[nodiscard]] const Selection& selection() const { return selection_; }

  void draw(Canvas& canvas);
  [[nodiscard]] Hit hit(double x, double y) const;
  // The value of a curve's band, or the gathered units of their lane, at `cursor`, which must be
  // set; "" for other bands.
  [[nodiscard]] QString textAtCursor(const TimelineLayout::Band& band) const;
  // The lines to the left of a band: its name and, for a curve, its largest value.
  [[nodiscard]] QStringList gutterLines(const TimelineLayout::Band& band) const;
  // The step of the selected rank whose box above the lanes is at this position.
  [[nodiscard]] std::optional<size_t> stepAt(double x, double y) const;
  // The nearest start or end, within `reach` pixels of x, of an item on the band at y or of a step
  // of any rank; the time at x if there is none.
  [[nodiscard]] Nanoseconds snap(double x, double y, double reach) const;
  // Lane, row and index of the item; nullopt: it is in no lane. An operator may be in a second
  // lane, among the nested ones.
  struct Place {
    size_t lane = 0, row = 0, index = 0;
  };
  [[nodiscard]] std::optional<Place> place(const Selection::Item& item) const;
  [[nodiscard]] std::vector<Place> places(const Selection::Item& item) const;
  // The interval, in display time, that contains all items of the selected unit on the selected
  // rank that start within `window` (in the rank's own time); nullopt: there are none.
  [[nodiscard]] std::optional<analysis::Interval> unitInterval(const analysis::Interval& window);

 private:
  using Band = TimelineLayout::Band;
  void relayout();
  void nest(size_t rank);
  [[nodiscard]] std::vector<uint32_t> positionsOfUnit(const RankData& rank,
                                                      size_t rank_index,
                                                      size_t lane,
                                                      size_t row) const;
  void drawRuler(Canvas& canvas) const;
  void drawBands(Canvas& canvas, bool pinned);
  void drawBand(Canvas& canvas, const Band& band, double top);
  void drawRankHeader(Canvas& canvas, const Band& band, double top) const;
  void drawRow(Canvas& canvas, const Band& band, const QRectF& area);
  void drawSelection(Canvas& canvas, bool pinned) const;
  void drawArrows(Canvas& canvas, size_t rank_index) const;
  void drawLaunch(Canvas& canvas) const;
  void drawArrow(Canvas& canvas,
                 size_t rank_index,
                 uint32_t collective,
                 const Band& compute,
                 bool chosen) const;
  void drawOverlay(Canvas& canvas) const;
  [[nodiscard]] const LaneRow& highlighted(const RankData& rank,
                                           size_t rank_index,
                                           size_t lane,
                                           size_t row);
  [[nodiscard]] QRectF laneArea(const Band& band) const;
  // The rank, of the open run or of the ghost, that the band shows.
  [[nodiscard]] DrawnRank drawnOn(const Band& band) const;

  RunPointer run_;
  Ghost ghost_;
  Selection selection_;
  std::optional<LaunchEnds> launch_;  // of the selected item
  std::set<size_t> collapsed_;
  LaneArrangement arrangement_;
  NestedLanes nested_;  // of the ranks that were unfolded since the run was opened
  TimelineLayout layout_;
  double width_ = 0, height_ = 0;
  Minimap minimap_;
  LaneDrawing lanes_;
  std::map<std::tuple<size_t, size_t, size_t>, LaneRow> highlights_;  // of the selected unit
};

// Text for tooltips and the status bar: what the item is, its unit, its duration and its start.
[[nodiscard]] QString description_of(const RunData& run, const Selection::Item& item);

}  // namespace shardlens::gui
