#include <algorithm>
#include <cmath>

#include "gui/model/run/run_notes.h"
#include "gui/view/timeline/timeline_scene.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

constexpr double kTickCharacter = 8;  // pixels, about; a label that would be cut off is left out
constexpr double kSeparated = 16;     // pixels; narrower steps have no line between them
constexpr double kDimmed = 0.28;      // opacity of items outside the selected unit
constexpr double kInnerRow = 0.72;    // of every other row of nested operators
constexpr double kArrowPixels = 12;   // between heads of arrows; closer ones are left out
constexpr size_t kMostArrows = 24;  // with more collectives in view, only the selected one has one

}  // namespace

void TimelineScene::draw(Canvas& canvas) {
  canvas.fill({0, 0, width_, height_}, Ink::kBackground);
  if (run_ == nullptr) {
    return;
  }
  drawBands(canvas, false);
  drawSelection(canvas, false);
  for (size_t rank = 0; rank < run_->ranks.size(); ++rank) {
    if (!collapsed_.contains(rank)) {
      drawArrows(canvas, rank);
    }
  }
  drawLaunch(canvas);
  if (layout_.pinned > 0) {
    canvas.fill({0, kHeader, width_, layout_.pinned}, Ink::kBackground);
    drawBands(canvas, true);
    drawSelection(canvas, true);
    canvas.line({0, kHeader + layout_.pinned - 1}, {width_, kHeader + layout_.pinned - 1},
                Ink::kAccent, false);
  }
  canvas.fill({0, 0, width_, kHeader}, Ink::kPanel);
  canvas.text({8, 2, kGutter - 12, kMinimap - 2},
              run_->preview ? QString() : QObject::tr("exposed, all"), Ink::kFaintText);
  minimap_.draw(canvas, *run_, axis, {kGutter, 4, width_ - kGutter, kMinimap - 6});
  drawRuler(canvas);
  drawOverlay(canvas);
}

void TimelineScene::drawBands(Canvas& canvas, bool pinned) {
  const double above = kHeader + (pinned ? 0 : layout_.pinned);
  for (const Band& band : layout_.bands) {
    const double top = topOf(band);
    if (band.pinned == pinned && top + band.height >= above && top < height_) {
      drawBand(canvas, band, top);
    }
  }
}

void TimelineScene::drawRankHeader(Canvas& canvas, const Band& band, double top) const {
  const RankData& rank = *run_->ranks[band.rank];
  const QRectF area(kGutter, top, width_ - kGutter, band.height);
  const QRectF gutter(0, top, kGutter, band.height);
  canvas.fill({0, top, width_, band.height}, Ink::kBand);
  const bool closed = collapsed_.contains(band.rank);
  const bool chosen = selection_.rank == band.rank;
  canvas.text(gutter.adjusted(8, 0, -4, 0),
              (closed ? QStringLiteral("▸ ") : QStringLiteral("▾ ")) + band.label,
              chosen ? Ink::kAccent : Ink::kText, Qt::AlignLeft | Qt::AlignVCenter, true);
  if (run_->preview) {
    canvas.text(area.adjusted(6, 0, -8, 0), QObject::tr("being read, no figures yet"),
                Ink::kFaintText);
    return;
  }
  const analysis::WindowFigures f = rank.live.within(run_->own(rank, axis.view()));
  if (f.duration() > 0) {
    const auto ratio = f.overlap_ratio();
    const auto hidden = arrangement_.hidden.size();
    canvas.text(
        area.adjusted(6, 0, -8, 0),
        (is_simulated(*run_) ? QObject::tr("simulated, ") : QString()) +
            QObject::tr("in view: compute %1, communication hidden %2, exposed %3")
                .arg(QString::fromStdString(report::format_percent(
                         static_cast<double>(f.compute) / static_cast<double>(f.duration()))),
                     QString::fromStdString(report::format_percent(ratio)),
                     durationText(f.exposed_comm)) +
            (hidden == 0 ? QString()
                         : QObject::tr("; hidden lanes: %1")
                               .arg(arrangement_.hidden.join(QStringLiteral(", ")))),
        Ink::kFaintText);
  }
}

void TimelineScene::drawBand(Canvas& canvas, const Band& band, double top) {
  const QRectF area(kGutter, top, width_ - kGutter, band.height);
  const QRectF gutter(0, top, kGutter, band.height);
  switch (band.kind) {
    case Band::Kind::kRank:
      drawRankHeader(canvas, band, top);
      break;
    case Band::Kind::kSummary:
      lanes_.drawSummary(canvas, drawnOn(band), area);
      break;
    case Band::Kind::kQueue:
    case Band::Kind::kMemory: {
      band.kind == Band::Kind::kQueue ? lanes_.drawQueue(canvas, drawnOn(band), area)
                                      : lanes_.drawMemory(canvas, drawnOn(band), area);
      // In the gutter, since a caption in the lane would cover the curve.
      constexpr double kLine = 15;
      const QStringList lines = gutterLines(band);
      double y = top + std::max(0.0, (band.height - kLine * static_cast<double>(lines.size())) / 2);
      for (const QString& line : lines) {
        canvas.text({16, y, kGutter - 20, kLine}, line, Ink::kFaintText);
        y += kLine;
      }
      break;
    }
    case Band::Kind::kGhostHeader:
      canvas.fill({0, top, width_, band.height}, Ink::kBand);
      canvas.text(gutter.adjusted(8, 0, -4, 0), QObject::tr("◇ ") + band.label, Ink::kText,
                  Qt::AlignLeft | Qt::AlignVCenter, true);
      canvas.text(area.adjusted(6, 0, -8, 0), ghost_.note, Ink::kFaintText);
      break;
    case Band::Kind::kGhostLane:
    case Band::Kind::kLane:
      drawRow(canvas, band, area);
      canvas.fill(gutter, Ink::kBackground);
      canvas.text(gutter.adjusted(16, 0, -4, 0), band.label, Ink::kFaintText);
      break;
  }
}

void TimelineScene::drawRow(Canvas& canvas, const Band& band, const QRectF& area) {
  const bool ghost = band.kind == Band::Kind::kGhostLane;
  const DrawnRank drawn = drawnOn(band);
  const Lane& lane = ghost ? drawn.rank.lanes[band.lane] : this->lane(band.rank, band.lane);
  const bool dims = selection_.unit.has_value() && !ghost;
  const double full = !lane.thread.isEmpty() && band.row % 2 == 1 ? kInnerRow : 1;
  lanes_.drawRow(canvas, drawn, lane, lane.rows[band.row], area, dims ? kDimmed : full);
  if (dims) {
    const LaneRow& chosen = highlighted(drawn.rank, band.rank, band.lane, band.row);
    lanes_.drawRow(canvas, drawn, lane, chosen, area, full);
  }
}

void TimelineScene::drawSelection(Canvas& canvas, bool pinned) const {
  if (!selection_.item) {
    return;
  }
  const size_t of = selection_.item->rank;
  const RankData& rank = *run_->ranks[of];
  const analysis::Interval shown = run_->shown(rank, interval_of(rank, *selection_.item));
  const double left = std::max(0.0, axis.toPixel(shown.start)),
               right = std::min<double>(axis.width(), axis.toPixel(shown.end));
  if (right < left) {
    return;
  }
  for (const Place& where : places(*selection_.item)) {
    for (const Band& band : layout_.bands) {
      if (band.kind == Band::Kind::kLane && band.rank == of && band.lane == where.lane &&
          band.row == where.row && band.pinned == pinned) {
        const QRectF area = laneArea(band);
        canvas.frame({area.left() + left - 1, area.top() - 1, std::max(3.0, right - left + 1),
                      area.height() + 1},
                     Ink::kText, 2);
      }
    }
  }
}

// Draws an arrow from the end of a collective to the instant at which it was needed, at the bottom
// of the row of compute.
void TimelineScene::drawArrow(Canvas& canvas,
                              size_t rank_index,
                              uint32_t collective,
                              const Band& compute,
                              bool chosen) const {
  const RankData& rank = *run_->ranks[rank_index];
  const analysis::Collective& c = rank.timeline.collectives[collective];
  const auto where = place({rank_index, Lane::Source::kCollectives, collective});
  const Band* band =
      where && c.needed_at ? layout_.find(rank_index, where->lane, where->row) : nullptr;
  if (band == nullptr) {
    return;
  }
  const double x0 = axis.toPixel(run_->shown(rank, c.when).end) + kGutter;
  const double x1 = axis.toPixel(run_->shown(rank, {*c.needed_at, *c.needed_at}).start) + kGutter;
  const QPointF start(x0, laneArea(*band).center().y()), end(x1, laneArea(compute).bottom());
  if (std::max(x0, x1) < kGutter || std::min(x0, x1) > width_ ||
      std::max(start.y(), end.y()) < kHeader || std::min(start.y(), end.y()) > height_) {
    return;
  }
  canvas.arrow(start, end, chosen ? Ink::kAccent : Ink::kFaintText);
  if (chosen) {
    const Nanoseconds slack = *c.needed_at - c.when.end;
    canvas.fill({x0 + 6, start.y() - 9, 128, 18}, Ink::kPanel, 0.92);
    canvas.text({x0 + 10, start.y() - 9, 124, 18},
                QObject::tr("slack %1%2")
                    .arg(slack < 0 ? QStringLiteral("") : QStringLiteral("+"), durationText(slack)),
                Ink::kAccent, Qt::AlignLeft | Qt::AlignVCenter, true);
  }
}

void TimelineScene::drawArrows(Canvas& canvas, size_t rank_index) const {
  if (run_->preview) {
    return;
  }
  const RankData& rank = *run_->ranks[rank_index];
  const Band* compute = nullptr;
  for (const Band& band : layout_.bands) {
    if (band.kind == Band::Kind::kLane && band.rank == rank_index && band.row == 0 &&
        !band.pinned && lane(rank_index, band.lane).kind == Kind::kCompute) {
      compute = &band;
    }
  }
  if (compute == nullptr) {
    return;
  }
  const analysis::Interval view = run_->own(rank, axis.view());
  const auto& all = rank.timeline.collectives;
  const auto starts_before = [](const analysis::Collective& c, Nanoseconds t) {
    return c.when.start < t;
  };
  const auto from = std::lower_bound(all.begin(), all.end(), view.start, starts_before);
  const auto to = std::lower_bound(from, all.end(), view.end, starts_before);
  const bool few = static_cast<size_t>(to - from) <= kMostArrows;
  const bool chosen_here =
      selection_.item && selection_.item->rank == rank_index && is_collective(*selection_.item);
  double last = -kArrowPixels;  // of the head that was drawn last
  for (auto c = from; few && c != to; ++c) {
    const auto i = static_cast<uint32_t>(c - all.begin());
    if (c->kind != CollectiveKind::kAllGather || !c->needed_at ||
        (chosen_here && selection_.item->ref == i)) {
      continue;
    }
    const double x = axis.toPixel(run_->shown(rank, {*c->needed_at, *c->needed_at}).start);
    if (std::abs(x - last) >= kArrowPixels) {
      drawArrow(canvas, rank_index, i, *compute, false);
      last = x;
    }
  }
  if (chosen_here) {
    drawArrow(canvas, rank_index, selection_.item->ref, *compute, true);
  }
}

// Draws an arrow from the call of the host to what it launched.
void TimelineScene::drawLaunch(Canvas& canvas) const {
  if (!launch_) {
    return;
  }
  const auto call = place(launch_->call), launched = place(launch_->launched);
  if (!call || !launched) {
    return;
  }
  const size_t rank_index = launch_->call.rank;
  const Band* from = layout_.find(rank_index, call->lane, call->row);
  const Band* to = layout_.find(rank_index, launched->lane, launched->row);
  if (from == nullptr || to == nullptr) {
    return;
  }
  const RankData& rank = *run_->ranks[rank_index];
  const double x0 =
      axis.toPixel(run_->shown(rank, interval_of(rank, launch_->call)).start) + kGutter;
  const double x1 =
      axis.toPixel(run_->shown(rank, interval_of(rank, launch_->launched)).start) + kGutter;
  if (std::max(x0, x1) < kGutter || std::min(x0, x1) > width_) {
    return;
  }
  const QPointF start(x0, laneArea(*from).bottom()), end(x1, laneArea(*to).top());
  canvas.arrow(start, end, Ink::kAccent);
  const Nanoseconds later =
      interval_of(rank, launch_->launched).start - interval_of(rank, launch_->call).start;
  const QRectF label(std::clamp(x0 + 6, kGutter, width_ - 150), start.y() + 2, 144, 18);
  canvas.fill(label, Ink::kPanel, 0.92);
  canvas.text(label.adjusted(4, 0, -4, 0),
              QObject::tr("launched %1 before").arg(durationText(later)), Ink::kAccent,
              Qt::AlignLeft | Qt::AlignVCenter, true);
}

void TimelineScene::drawRuler(Canvas& canvas) const {
  const double top = kMinimap, bottom = kMinimap + kRuler;
  canvas.line({0, bottom - 0.5}, {width_, bottom - 0.5}, Ink::kGrid, false);
  for (const TimeAxis::Tick& tick : axis.ticks()) {
    const double x = tick.x + kGutter;
    const bool major = !tick.label.isEmpty();
    canvas.line({x, bottom - (major ? 8 : 4)}, {x, bottom}, Ink::kGrid, false);
    if (major && tick.x + kTickCharacter * static_cast<double>(tick.label.size()) < axis.width()) {
      canvas.text({x + 3, top, 110, kRuler - 4}, tick.label, Ink::kFaintText);
    }
  }
  const RankData& rank = *run_->ranks[std::min(selection_.rank, run_->ranks.size() - 1)];
  for (size_t i = 0; i < rank.figures.steps.size(); ++i) {
    const analysis::StepAnalysis& step = rank.figures.steps[i];
    const analysis::Interval shown = run_->shown(rank, step.window);
    const double left = std::max(0.0, axis.toPixel(shown.start));
    const double right = std::min<double>(axis.width(), axis.toPixel(shown.end));
    if (right - left < 1) {
      continue;
    }
    const bool chosen = selection_.step == i;
    const QRectF band(kGutter + left, bottom + 1, std::max(1.0, right - left - 1), kSteps - 3);
    canvas.fill(band, chosen ? Ink::kAccent : Ink::kBand, chosen ? 0.3 : 1);
    if (right - left > 60) {
      canvas.text(
          band.adjusted(6, 0, -4, 0),
          QObject::tr("step %1   %2").arg(step.step).arg(durationText(step.window.length())),
          chosen ? Ink::kText : Ink::kFaintText, Qt::AlignLeft | Qt::AlignVCenter, chosen);
    }
    if (left > 0 && right - left >= kSeparated) {
      canvas.line({kGutter + left, bottom}, {kGutter + left, height_}, Ink::kGrid, true);
    }
  }
  canvas.fill({0, top, kGutter, kRuler - 1}, Ink::kPanel, 1);
  canvas.text({8, bottom, kGutter - 12, kSteps},
              rank.figures.steps.empty() ? QString() : QObject::tr("steps"), Ink::kFaintText);
}

void TimelineScene::drawOverlay(Canvas& canvas) const {
  const auto range = dragged ? dragged : selection_.range;
  if (range) {
    const double left = std::max(0.0, axis.toPixel(range->start)),
                 right = std::min<double>(axis.width(), axis.toPixel(range->end));
    if (right > left) {
      canvas.fill({kGutter + left, kMinimap, right - left, height_ - kMinimap}, Ink::kAccent, 0.13);
      canvas.line({kGutter + left, kMinimap}, {kGutter + left, height_}, Ink::kAccent);
      canvas.line({kGutter + right, kMinimap}, {kGutter + right, height_}, Ink::kAccent);
      const QRectF label(kGutter + std::min(left + 4, axis.width() - 110.0), kMinimap + 2, 106,
                         kRuler - 4);
      canvas.fill(label, Ink::kAccent);
      canvas.label(label, durationText(range->length()), Ink::kAccent);
    }
  }
  for (const Bookmark& mark : bookmarks) {
    const double x = axis.toPixel(mark.time);
    if (x >= 0 && x <= axis.width()) {
      canvas.line({kGutter + x, kMinimap}, {kGutter + x, height_}, Ink::kWarning);
      canvas.text({kGutter + x + 3, height_ - 18, 160, 16}, QStringLiteral("⚑ ") + mark.note,
                  Ink::kWarning, Qt::AlignLeft | Qt::AlignVCenter, true);
    }
  }
  if (cursor) {
    const double x = axis.toPixel(*cursor);
    if (x >= 0 && x <= axis.width()) {
      canvas.line({kGutter + x, kMinimap}, {kGutter + x, height_}, Ink::kFaintText);
    }
  }
  canvas.line({kGutter - 0.5, 0}, {kGutter - 0.5, height_}, Ink::kGrid);
}

}  // namespace shardlens::gui
