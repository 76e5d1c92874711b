#include <algorithm>
#include <cmath>

#include "core/base/format_bytes.h"
#include "gui/model/run/run_notes.h"
#include "gui/view/timeline/timeline_scene.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

using analysis::Interval;

constexpr double kLabelPixels = 14;  // narrower boxes have no text
constexpr double kCharacterPixels = 6.3, kElidedPixels = 48;
constexpr double kDimmed = 0.28;    // opacity of items outside the selected unit
constexpr size_t kMostArrows = 24;  // with more collectives in view, only the selected one has one

// The text if it fits, else its last component if that fits, else an empty string.
QString fitting(const QString& text, double width) {
  const auto fits = [width](const QString& t) {
    return static_cast<double>(t.size()) * kCharacterPixels <= width;
  };
  if (fits(text) || width >= kElidedPixels) {
    return text;
  }
  const QString last = text.mid(text.lastIndexOf(u'.') + 1);
  return last.size() < text.size() && fits(last) ? last : QString();
}

// A box leaves one pixel of space to the next one if it is wide enough.
QRectF box(const QRectF& area, double left, double right, double busy) {
  const double gap = right - left > 3 ? 1 : 0;
  const double height = std::max(1.0, std::round((area.height() - 2) * busy));
  return {area.left() + left, area.bottom() - 1 - height, std::max(0.8, right - left - gap),
          height};
}

}  // namespace

void TimelineScene::draw(Canvas& canvas) {
  canvas.fill({0, 0, width_, height_}, Ink::kBackground);
  if (run_ == nullptr) {
    return;
  }
  for (const Band& band : layout_.bands) {
    const double top = kHeader + band.top - scroll;
    if (top + band.height >= kHeader && top < height_) {
      drawBand(canvas, band, top);
    }
  }
  drawSelection(canvas);
  drawArrows(canvas);
  canvas.fill({0, 0, width_, kHeader}, Ink::kPanel);
  drawMinimap(canvas);
  drawRuler(canvas);
  drawOverlay(canvas);
}

void TimelineScene::drawBand(Canvas& canvas, const Band& band, double top) {
  const RankData& rank = *run_->ranks[band.rank];
  const QRectF area(kGutter, top, width_ - kGutter, band.height);
  const QRectF gutter(0, top, kGutter, band.height);
  switch (band.kind) {
    case Band::Kind::kRank: {
      canvas.fill({0, top, width_, band.height}, Ink::kBand);
      const bool closed = collapsed_.contains(band.rank);
      const bool chosen = selection_.rank == band.rank;
      canvas.text(gutter.adjusted(8, 0, -4, 0),
                  (closed ? QStringLiteral("▸ ") : QStringLiteral("▾ ")) + band.label,
                  chosen ? Ink::kAccent : Ink::kText, Qt::AlignLeft | Qt::AlignVCenter, true);
      const analysis::WindowFigures f = rank.live.within(run_->own(rank, axis.view()));
      if (f.duration() > 0) {
        const auto ratio = f.overlap_ratio();
        canvas.text(
            area.adjusted(6, 0, -8, 0),
            (is_simulated(*run_) ? QObject::tr("simulated, ") : QString()) +
                QObject::tr("in view: compute %1, communication hidden %2, exposed %3")
                    .arg(QString::fromStdString(report::format_percent(utilisation(band.rank))),
                         QString::fromStdString(report::format_percent(ratio)),
                         durationText(f.exposed_comm)),
            Ink::kFaintText);
      }
      break;
    }
    case Band::Kind::kSummary:
      drawSummary(canvas, rank, area);
      break;
    case Band::Kind::kMemory:
      canvas.text(gutter.adjusted(16, 0, -4, 0), band.label, Ink::kFaintText);
      drawMemory(canvas, rank, area);
      break;
    case Band::Kind::kGhostHeader:
      canvas.fill({0, top, width_, band.height}, Ink::kBand);
      canvas.text(gutter.adjusted(8, 0, -4, 0), QObject::tr("◇ ") + band.label, Ink::kText,
                  Qt::AlignLeft | Qt::AlignVCenter, true);
      canvas.text(area.adjusted(6, 0, -8, 0), ghost_.note, Ink::kFaintText);
      break;
    case Band::Kind::kGhostLane:
    case Band::Kind::kLane: {
      const bool ghost = band.kind == Band::Kind::kGhostLane;
      const RunData& run = ghost ? *ghost_.run : *run_;
      const RankData& of = ghost ? ghost_.data() : rank;
      drawRow(canvas, run, of, of.lanes[band.lane], band.row, area, ghost);
      canvas.fill(gutter, Ink::kBackground);
      canvas.text(gutter.adjusted(16, 0, -4, 0), band.label, Ink::kFaintText);
      break;
    }
  }
}

void TimelineScene::drawRow(Canvas& canvas,
                            const RunData& run,
                            const RankData& rank,
                            const Lane& lane,
                            size_t row,
                            const QRectF& area,
                            bool ghost) {
  const Interval view = ownView(run, rank);
  const auto draw = [&](const LaneRow& items, double opacity) {
    tiles_.clear();
    append_tiles(items, view, axis.width(), tiles_);
    for (const Tile& tile : tiles_) {
      const LaneItem* item =
          tile.item < 0 ? nullptr : &items.items()[static_cast<size_t>(tile.item)];
      drawTile(canvas, run, rank, lane, item, tile, area, opacity);
    }
  };
  const bool dims = selection_.unit.has_value() && !ghost;
  draw(lane.rows[row], dims ? kDimmed : 1);
  if (dims) {
    const size_t rank_index =
        static_cast<size_t>(std::find_if(run_->ranks.begin(), run_->ranks.end(),
                                         [&](const auto& r) { return r.get() == &rank; }) -
                            run_->ranks.begin());
    const size_t lane_index = static_cast<size_t>(&lane - rank.lanes.data());
    draw(highlighted(rank, rank_index, lane_index, row), 1);
  }
}

void TimelineScene::drawTile(Canvas& canvas,
                             const RunData& run,
                             const RankData& rank,
                             const Lane& lane,
                             const LaneItem* item,
                             const Tile& tile,
                             const QRectF& area,
                             double opacity) const {
  const bool exposed = lane.source == Lane::Source::kExposed;
  const Ink ink = exposed ? Ink::kExposed : ink_of(lane.kind);
  const QRectF at = box(area, tile.left, tile.right, tile.busy);
  canvas.fill(at, ink, exposed ? opacity * 0.45 : opacity);
  if (exposed && at.width() > 2) {
    canvas.hatch(at, Ink::kExposed);
  }
  if (item == nullptr) {
    return;
  }
  if (lane.source == Lane::Source::kCollectives && at.width() > 4 && opacity == 1) {
    drawExposedPart(canvas, run, rank, item->ref, at);
  }
  if (at.width() >= kLabelPixels && !exposed) {
    const QString text = fitting(labelOf(rank, lane, item->ref), at.width() - 6);
    if (!text.isEmpty()) {
      canvas.label(at.adjusted(3, 0, -3, 0), text, opacity < 1 ? Ink::kBackground : ink);
    }
  }
}

// Hatches the exposed parts of a collective on its bar.
void TimelineScene::drawExposedPart(Canvas& canvas,
                                    const RunData& run,
                                    const RankData& rank,
                                    uint32_t collective,
                                    const QRectF& area) const {
  for (const Interval& part : rank.exposed(collective)) {
    const double left = std::max(area.left(), pixelOf(run, rank, part.start) + kGutter);
    const double right = std::min(area.right(), pixelOf(run, rank, part.end) + kGutter);
    if (right - left >= 2) {
      canvas.hatch({left, area.bottom() - 4, right - left, 4}, Ink::kExposed);
    }
  }
}

// A collapsed rank: the busy fraction of its compute, and ticks where communication is exposed.
void TimelineScene::drawSummary(Canvas& canvas, const RankData& rank, const QRectF& area) {
  const Interval view = run_->own(rank, axis.view());
  const QRectF upper(area.left(), area.top(), area.width(), area.height() * 0.6);
  const QRectF lower(area.left(), upper.bottom(), area.width(), area.height() * 0.4);
  for (const Lane& lane : rank.lanes) {
    const bool compute = lane.source == Lane::Source::kEvents && lane.kind == Kind::kCompute;
    if (!compute && lane.source != Lane::Source::kExposed) {
      continue;
    }
    for (const LaneRow& row : lane.rows) {
      tiles_.clear();
      append_tiles(row, view, axis.width(), tiles_);
      for (const Tile& tile : tiles_) {
        canvas.fill(box(compute ? upper : lower, tile.left, tile.right, compute ? tile.busy : 1),
                    compute ? Ink::kCompute : Ink::kExposed);
      }
    }
  }
}

void TimelineScene::drawMemory(Canvas& canvas, const RankData& rank, const QRectF& area) const {
  const auto& devices = rank.figures.memory;
  const auto device =
      std::find_if(devices.begin(), devices.end(),
                   [](const analysis::MemoryFigures& m) { return m.device.starts_with("cuda"); });
  const analysis::MemoryFigures& memory = device == devices.end() ? devices.front() : *device;
  const double scale =
      static_cast<double>(std::max<Bytes>({1, memory.peak.allocated, memory.peak_reserved}));
  canvas.fill(area, Ink::kBand, 0.5);
  for (size_t i = 0; i < memory.timeline.size(); ++i) {
    const analysis::MemoryPoint& point = memory.timeline[i];
    const Nanoseconds until = i + 1 < memory.timeline.size() ? memory.timeline[i + 1].time
                              : rank.timeline.span.empty()   ? point.time
                                                             : rank.timeline.span.back().end;
    const Interval shown = run_->shown(rank, {point.time, until});
    const double left = std::max(0.0, axis.toPixel(shown.start)),
                 right = std::min<double>(axis.width(), axis.toPixel(shown.end));
    if (right <= left) {
      continue;
    }
    const double allocated = area.height() * static_cast<double>(point.allocated) / scale;
    const double reserved =
        area.bottom() - area.height() * static_cast<double>(point.reserved) / scale;
    canvas.fill({area.left() + left, area.bottom() - allocated, right - left, allocated},
                Ink::kMemory, 0.75);
    canvas.line({area.left() + left, reserved}, {area.left() + right, reserved}, Ink::kFaintText);
  }
  canvas.text(area.adjusted(6, 2, -8, 0),
              QObject::tr("%1: peak %2 allocated, %3 reserved (line)")
                  .arg(QString::fromStdString(memory.device),
                       QString::fromStdString(format_bytes(memory.peak.allocated)),
                       QString::fromStdString(format_bytes(memory.peak_reserved))),
              Ink::kText, Qt::AlignLeft | Qt::AlignTop);
}

void TimelineScene::drawSelection(Canvas& canvas) const {
  if (!selection_.item) {
    return;
  }
  const auto where = place(*selection_.item);
  const Band* band = where ? layout_.find(selection_.item->rank, where->lane, where->row) : nullptr;
  if (band == nullptr) {
    return;
  }
  const RankData& rank = *run_->ranks[selection_.item->rank];
  const Interval shown = run_->shown(rank, interval_of(rank, *selection_.item));
  const double left = std::max(0.0, axis.toPixel(shown.start)),
               right = std::min<double>(axis.width(), axis.toPixel(shown.end));
  if (right >= left) {
    const QRectF area = laneArea(*band);
    canvas.frame({area.left() + left - 1, area.top() - 1, std::max(3.0, right - left + 1),
                  area.height() + 1},
                 Ink::kText, 2);
  }
}

// Arrows from the end of each collective to the instant at which it was needed.
void TimelineScene::drawArrows(Canvas& canvas) const {
  for (size_t r = 0; r < run_->ranks.size(); ++r) {
    const RankData& rank = *run_->ranks[r];
    if (collapsed_.contains(r)) {
      continue;
    }
    const Band* compute = nullptr;
    for (const Band& band : layout_.bands) {
      if (band.kind == Band::Kind::kLane && band.rank == r && band.row == 0 &&
          rank.lanes[band.lane].kind == Kind::kCompute) {
        compute = &band;
      }
    }
    const Interval view = run_->own(rank, axis.view());
    const auto& all = rank.timeline.collectives;
    const auto from = std::lower_bound(
        all.begin(), all.end(), view.start,
        [](const analysis::Collective& c, Nanoseconds t) { return c.when.start < t; });
    const auto to = std::lower_bound(
        from, all.end(), view.end,
        [](const analysis::Collective& c, Nanoseconds t) { return c.when.start < t; });
    if (compute == nullptr) {
      continue;
    }
    const bool few = static_cast<size_t>(to - from) <= kMostArrows;
    const bool chosen_here = selection_.item && selection_.item->rank == r &&
                             (selection_.item->source == Lane::Source::kCollectives ||
                              selection_.item->source == Lane::Source::kExposed);
    const auto draw = [&](uint32_t i, bool chosen) {
      const analysis::Collective& c = all[i];
      const auto where = place({r, Lane::Source::kCollectives, i});
      const Band* band = where && c.needed_at ? layout_.find(r, where->lane, where->row) : nullptr;
      if (band == nullptr) {
        return;
      }
      const double x0 = axis.toPixel(run_->shown(rank, c.when).end) + kGutter;
      const double x1 =
          axis.toPixel(run_->shown(rank, {*c.needed_at, *c.needed_at}).start) + kGutter;
      const QPointF start(x0, laneArea(*band).center().y()), end(x1, laneArea(*compute).bottom());
      if (std::max(x0, x1) < kGutter || std::min(x0, x1) > width_) {
        return;
      }
      canvas.arrow(start, end, chosen ? Ink::kAccent : Ink::kFaintText);
      if (chosen) {
        const Nanoseconds slack = *c.needed_at - c.when.end;
        canvas.fill({x0 + 6, start.y() - 9, 128, 18}, Ink::kPanel, 0.92);
        canvas.text(
            {x0 + 10, start.y() - 9, 124, 18},
            QObject::tr("slack %1%2")
                .arg(slack < 0 ? QStringLiteral("") : QStringLiteral("+"), durationText(slack)),
            Ink::kAccent, Qt::AlignLeft | Qt::AlignVCenter, true);
      }
    };
    for (auto c = from; few && c != to; ++c) {
      const auto i = static_cast<uint32_t>(c - all.begin());
      if (c->kind == CollectiveKind::kAllGather && !(chosen_here && selection_.item->ref == i)) {
        draw(i, false);
      }
    }
    if (chosen_here) {
      draw(selection_.item->ref, true);
    }
  }
}

// The whole run over all ranks: the exposed fraction of each pixel, and the position of the view.
void TimelineScene::drawMinimap(Canvas& canvas) {
  const QRectF area(kGutter, 4, width_ - kGutter, kMinimap - 6);
  const int width = axis.width();
  if (heat_.empty()) {
    heat_.assign(static_cast<size_t>(width), 0);
    const double step = static_cast<double>(axis.bounds().length()) / width;
    for (int x = 0; x < width; ++x) {
      Nanoseconds exposed = 0, span = 0;
      for (const auto& rank : run_->ranks) {
        const Interval shown{static_cast<Nanoseconds>(x * step),
                             static_cast<Nanoseconds>((x + 1) * step)};
        const analysis::WindowFigures f = rank->live.within(run_->own(*rank, shown));
        exposed += f.exposed_comm;
        span += f.duration();
      }
      heat_[static_cast<size_t>(x)] =
          span == 0 ? 0 : static_cast<float>(exposed) / static_cast<float>(span);
    }
  }
  canvas.text({8, 2, kGutter - 12, kMinimap - 2}, QObject::tr("exposed, all"), Ink::kFaintText);
  canvas.fill(area, Ink::kBand);
  for (int x = 0; x < width; ++x) {
    const double heat = heat_[static_cast<size_t>(x)];
    if (heat > 0) {
      const double high = std::max(1.0, area.height() * heat);
      canvas.fill({area.left() + x, area.bottom() - high, 1, high}, Ink::kExposed);
    }
  }
  const double scale = width / static_cast<double>(axis.bounds().length());
  const double left = static_cast<double>(axis.view().start - axis.bounds().start) * scale;
  const double right = static_cast<double>(axis.view().end - axis.bounds().start) * scale;
  canvas.fill({area.left(), area.top(), left, area.height()}, Ink::kPanel, 0.6);
  canvas.fill({area.left() + right, area.top(), area.width() - right, area.height()}, Ink::kPanel,
              0.6);
  canvas.frame({area.left() + left, area.top(), std::max(3.0, right - left - 1), area.height()},
               Ink::kAccent, 1.5);
}

void TimelineScene::drawRuler(Canvas& canvas) const {
  const double top = kMinimap, bottom = kMinimap + kRuler;
  canvas.line({0, bottom - 0.5}, {width_, bottom - 0.5}, Ink::kGrid, false);
  for (const TimeAxis::Tick& tick : axis.ticks()) {
    const double x = tick.x + kGutter;
    const bool major = !tick.label.isEmpty();
    canvas.line({x, bottom - (major ? 8 : 4)}, {x, bottom}, Ink::kGrid, false);
    if (major) {
      canvas.text({x + 3, top, 110, kRuler - 4}, tick.label, Ink::kFaintText);
    }
  }
  const RankData& rank = *run_->ranks[std::min(selection_.rank, run_->ranks.size() - 1)];
  for (size_t i = 0; i < rank.figures.steps.size(); ++i) {
    const analysis::StepAnalysis& step = rank.figures.steps[i];
    const Interval shown = run_->shown(rank, step.window);
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
    if (left > 0) {
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
