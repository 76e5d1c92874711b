#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gui/model/project.h"
#include "gui/model/run_data.h"
#include "gui/model/selection_context.h"
#include "gui/model/time_axis.h"
#include "gui/view/canvas.h"
#include "gui/view/timeline_layout.h"

namespace shardlens::gui {

// The timeline as a picture of its state: drawn on any canvas, asked what lies where.
//
// Layout  ruler and minimap at the top, then the steps (kHeader high), lane names at the left
//         (kGutter wide), the rest scrolls by `scroll` pixels.
// Units   pixels of the whole widget; times are display times (RunData::shown).
class TimelineScene {
 public:
  static constexpr double kGutter = 116, kMinimap = 26, kRuler = 22, kSteps = 18,
                          kHeader = kMinimap + kRuler + kSteps;

  struct Hit {
    std::optional<Selection::Item> item;
    bool ghost = false;                        // of the ghost's run
    std::optional<TimelineLayout::Band> band;  // a copy: the layout is made anew by what is clicked
    int64_t merged = 0;  // narrow items under the pixel, where no single one is drawn
    double busy = 0;     // of the pixel, where several are merged
  };

  void setRun(RunPointer run);
  void setGhost(Ghost ghost);
  void setSelection(const Selection& selection);
  void setSize(double width, double height);
  void toggle(size_t rank);  // collapse or expand
  void setCollapsed(const std::set<size_t>& ranks);

  TimeAxis axis;
  double scroll = 0;
  std::optional<Nanoseconds> cursor;          // under the mouse
  std::optional<analysis::Interval> dragged;  // being measured
  std::vector<Bookmark> bookmarks;

  [[nodiscard]] const RunPointer& run() const { return run_; }
  [[nodiscard]] const Ghost& ghost() const { return ghost_; }
  // When the ghost is, in display time; nullopt without one.
  [[nodiscard]] std::optional<analysis::Interval> ghostInterval() const;
  [[nodiscard]] const TimelineLayout& layout() const { return layout_; }
  [[nodiscard]] const std::set<size_t>& collapsed() const { return collapsed_; }
  [[nodiscard]] const Selection& selection() const { return selection_; }

  void draw(Canvas& canvas);
  [[nodiscard]] Hit hit(double x, double y) const;
  // Start or end of something within `reach` pixels of x, on the band at y or else any; else the
  // time at x.
  [[nodiscard]] Nanoseconds snap(double x, double y, double reach) const;
  // Where the item lies in its lane: lane, row and index. nullopt: it is in none.
  struct Place {
    size_t lane = 0, row = 0, index = 0;
  };
  [[nodiscard]] std::optional<Place> place(const Selection::Item& item) const;
  // From the first to the last that the selected rank has of the selected unit, of what begins
  // within the window; that in the rank's own time, the answer in display time. nullopt: nothing.
  [[nodiscard]] std::optional<analysis::Interval> unitInterval(const analysis::Interval& window);
  // How busy the rank's compute is in the view, 0 to 1.
  [[nodiscard]] double utilisation(size_t rank) const;

 private:
  using Band = TimelineLayout::Band;
  void relayout();
  void drawMinimap(Canvas& canvas);
  void drawRuler(Canvas& canvas) const;
  void drawBand(Canvas& canvas, const Band& band, double top);
  void drawRow(Canvas& canvas,
               const RunData& run,
               const RankData& rank,
               const Lane& lane,
               size_t row,
               const QRectF& area,
               bool ghost);
  void drawTile(Canvas& canvas,
                const RunData& run,
                const RankData& rank,
                const Lane& lane,
                const LaneItem* item,
                const Tile& tile,
                const QRectF& area,
                double opacity) const;
  void drawExposedPart(Canvas& canvas,
                       const RunData& run,
                       const RankData& rank,
                       uint32_t collective,
                       const QRectF& area) const;
  void drawSummary(Canvas& canvas, const RankData& rank, const QRectF& area);
  void drawMemory(Canvas& canvas, const RankData& rank, const QRectF& area) const;
  void drawSelection(Canvas& canvas) const;
  void drawArrows(Canvas& canvas) const;
  void drawOverlay(Canvas& canvas) const;
  [[nodiscard]] const LaneRow& highlighted(const RankData& rank,
                                           size_t rank_index,
                                           size_t lane,
                                           size_t row);
  [[nodiscard]] std::string ownerOf(const RankData& rank, const Lane& lane, uint32_t ref) const;
  [[nodiscard]] QString labelOf(const RankData& rank, const Lane& lane, uint32_t ref) const;
  [[nodiscard]] QRectF laneArea(const Band& band) const;

  RunPointer run_;
  Ghost ghost_;
  // Between the display time of a run that is drawn and the axis: the ghost's own zero is
  // elsewhere.
  [[nodiscard]] Nanoseconds shiftOf(const RunData& run) const {
    return &run == ghost_.run.get() ? ghost_.start : 0;
  }
  [[nodiscard]] analysis::Interval ownView(const RunData& run, const RankData& rank) const;
  [[nodiscard]] double pixelOf(const RunData& run, const RankData& rank, Nanoseconds own) const;
  Selection selection_;
  std::set<size_t> collapsed_;
  TimelineLayout layout_;
  double width_ = 0, height_ = 0;
  std::vector<float> heat_;  // exposed part of each pixel of the minimap
  std::map<std::tuple<size_t, size_t, size_t>, LaneRow> highlights_;  // of the selected unit
  std::vector<Tile> tiles_;  // kept between rows for its memory
};

// "layers.3" of "model.layers.3", "root" of "".
[[nodiscard]] QString short_name(const std::string& fqn);
// Text for a tooltip and the inspector's title: what the item is, whose, when and how long.
[[nodiscard]] QString description_of(const RunData& run, const Selection::Item& item);

}  // namespace shardlens::gui
