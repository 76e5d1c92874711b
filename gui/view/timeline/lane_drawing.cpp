#include "gui/view/timeline/lane_drawing.h"

#include <algorithm>
#include <cmath>

#include <QObject>

#include "gui/model/base/shown_text.h"
#include "gui/model/details/idle_reason.h"
#include "gui/model/details/launch_ends.h"

namespace shardlens::gui {
namespace {

using analysis::Basis;
using analysis::Interval;

constexpr double kLabelPixels = 14;  // narrower boxes have no text
constexpr double kCharacterPixels = 6.3, kElidedPixels = 48;

// The text if it fits, else its last component if that fits, else an empty string.
QString fitting(const QString& text, double width) {
  const auto fits = [width](const QString& t) {
    return static_cast<double>(t.size()) * kCharacterPixels <= width;
  };
  if (fits(text) || width >= kElidedPixels) {
    return text;
  }
  QString last = text.mid(text.lastIndexOf(u'.') + 1);
  if (last.endsWith(u')') && !last.contains(u'(')) {
    last.chop(1);  // of "FSDP::pre_forward (layers.0)"
  }
  return last.size() < text.size() && fits(last) ? last : QString();
}

// A box leaves one pixel of space to the next one if it is wide enough.
QRectF box(const QRectF& area, double left, double right, double busy) {
  const double gap = right - left > 3 ? 1 : 0;
  const double height = std::max(1.0, std::round((area.height() - 2) * busy));
  return {area.left() + left, area.bottom() - 1 - height, std::max(0.8, right - left - gap),
          height};
}

// A kernel has the name of the operator that launched it, which is shorter and known to more
// people; tooltip and inspector have the kernel's own.
QString event_label(const RankData& rank, const Lane& lane, uint32_t ref) {
  if (lane.kind == Kind::kCompute) {
    if (const auto ends = launch_ends(rank, {0, Lane::Source::kEvents, ref})) {
      const trace::Event& call = rank.trace.events[ends->call.ref];
      if (const auto op = rank.operator_at(call.track, call.start)) {
        return shown_text(rank.trace.name(rank.trace.events[*op]));
      }
    }
  }
  return shown_text(rank.trace.name(rank.trace.events[ref]));
}

QString label_of(const RankData& rank, const Lane& lane, uint32_t ref) {
  switch (lane.source) {
    case Lane::Source::kEvents:
      return event_label(rank, lane, ref);
    case Lane::Source::kSections: {
      const analysis::Owner& owner = rank.timeline.sections.parts()[ref].owner;
      const std::string_view section = name_of(owner.section);
      const QString name =
          QString::fromUtf8(section.data(), static_cast<qsizetype>(section.size()));
      return owner.unit == kNoUnit
                 ? name
                 : name + u' ' + short_name(rank.timeline.fsdp.units[owner.unit].fqn);
    }
    case Lane::Source::kResidency:
      return short_name(rank.residencies[ref].unit);
    case Lane::Source::kIdle:
      return idle_text(rank, ref);
    case Lane::Source::kRegions:
      return shown_text(rank.regions[ref].name);
    default:
      return short_name(rank.owner_of(ref));
  }
}

// Hatches the exposed parts of a collective on its bar.
void draw_exposed_part(Canvas& canvas,
                       const DrawnRank& drawn,
                       uint32_t collective,
                       const QRectF& area) {
  for (const Interval& part : drawn.rank.exposed(collective)) {
    const double left = std::max(area.left(), drawn.pixelOf(part.start));
    const double right = std::min(area.right(), drawn.pixelOf(part.end));
    if (right - left >= 2) {
      canvas.hatch({left, area.bottom() - 4, right - left, 4}, Ink::kExposed);
    }
  }
}

// Draws it fainter until the parameters can be used. Returns the part from then on.
QRectF draw_residency(Canvas& canvas,
                      const DrawnRank& drawn,
                      const Residency& held,
                      const QRectF& area,
                      double opacity) {
  constexpr double kGathering = 0.4;
  if (opacity == 1) {
    canvas.fill(area, Ink::kBackground, 1);  // over the same, dimmed
  }
  const double usable = std::clamp(drawn.pixelOf(held.usable), area.left(), area.right());
  canvas.fill({area.left(), area.top(), usable - area.left(), area.height()}, Ink::kGathered,
              kGathering * opacity);
  const QRectF full(usable, area.top(), area.right() - usable, area.height());
  canvas.fill(full, Ink::kGathered, opacity);
  return full;
}

// How the unit of an item was found.
Basis basis_of(const RankData& rank, const Lane& lane, uint32_t ref) {
  if (lane.source == Lane::Source::kCollectives) {
    return rank.timeline.collectives[ref].basis;
  }
  return lane.source == Lane::Source::kEvents && lane.name == nullptr ? rank.basis_of_event(ref)
                                                                      : Basis::kNone;
}

// An item whose unit only its place in an order shows is hatched, one whose unit is ambiguous is
// grey.
void draw_basis(Canvas& canvas, Basis basis, const QRectF& at) {
  if (basis == Basis::kOrder) {
    canvas.hatch(at, Ink::kBackground);
  } else if (basis == Basis::kAmbiguous) {
    canvas.fill(at, Ink::kIdle);
  }
}

Ink lane_ink(const Lane& lane) {
  switch (lane.source) {
    case Lane::Source::kExposed:
      return Ink::kExposed;
    case Lane::Source::kIdle:
      return Ink::kIdle;
    case Lane::Source::kResidency:
      return Ink::kGathered;
    case Lane::Source::kRegions:
      return Ink::kPanel;
    default:
      return ink_of(lane.kind);
  }
}

// `item`: the tile's, nullptr if it is not a single one.
void draw_tile(Canvas& canvas,
               const DrawnRank& drawn,
               const Lane& lane,
               const LaneItem* item,
               const QRectF& at,
               double opacity) {
  const bool exposed = lane.source == Lane::Source::kExposed;
  const Ink ink = lane_ink(lane);
  QRectF named = at;
  if (lane.source == Lane::Source::kResidency && item != nullptr) {
    named = draw_residency(canvas, drawn, drawn.rank.residencies[item->ref], at, opacity);
  } else {
    canvas.fill(at, ink, exposed ? opacity * 0.45 : opacity);
  }
  if (exposed && at.width() > 2) {
    canvas.hatch(at, Ink::kExposed);
  }
  if (lane.source == Lane::Source::kRegions && at.width() > 2) {
    canvas.frame(at.adjusted(0, 0, -1, -1), Ink::kFaintText);
  }
  if (item == nullptr) {
    return;
  }
  if (at.width() > 4 && opacity == 1) {
    draw_basis(canvas, basis_of(drawn.rank, lane, item->ref), at);
  }
  if (lane.source == Lane::Source::kCollectives && at.width() > 4 && opacity == 1 &&
      !drawn.run.preview) {
    draw_exposed_part(canvas, drawn, item->ref, at);
  }
  if (named.width() >= kLabelPixels && !exposed) {
    const QString text = fitting(label_of(drawn.rank, lane, item->ref), named.width() - 6);
    if (!text.isEmpty()) {
      canvas.label(named.adjusted(3, 0, -3, 0), text, opacity < 1 ? Ink::kBackground : ink);
    }
  }
}

}  // namespace

QString short_name(const std::string& fqn) {
  if (fqn.empty()) {
    return QStringLiteral("root");
  }
  const QString text = shown_text(fqn);
  // The last two components distinguish blocks; the rest is the same for all of them.
  const qsizetype last = text.lastIndexOf(u'.');
  const qsizetype before = last > 0 ? text.lastIndexOf(u'.', last - 1) : -1;
  return before < 0 ? text : text.mid(before + 1);
}

Interval DrawnRank::view() const {
  return run.own(rank, {axis.view().start - shift, axis.view().end - shift});
}

double DrawnRank::pixelOf(Nanoseconds own) const {
  return left + axis.toPixel(run.shown(rank, {own, own}).start + shift);
}

Interval DrawnRank::pixels(double first, double count) const {
  return run.own(rank, {axis.toTime(first) - shift, axis.toTime(first + count) - shift});
}

void LaneDrawing::drawRow(Canvas& canvas,
                          const DrawnRank& drawn,
                          const Lane& lane,
                          const LaneRow& row,
                          const QRectF& area,
                          double opacity) {
  tiles_.clear();
  append_tiles(row, drawn.view(), drawn.axis.width(), tiles_);
  for (const Tile& tile : tiles_) {
    const auto item =
        tile.item < 0 ? std::nullopt : std::optional(row.items()[static_cast<size_t>(tile.item)]);
    draw_tile(canvas, drawn, lane, item ? &*item : nullptr,
              box(area, tile.left, tile.right, tile.busy), opacity);
  }
}

void LaneDrawing::drawSummary(Canvas& canvas, const DrawnRank& drawn, const QRectF& area) {
  const Interval view = drawn.view();
  const QRectF upper(area.left(), area.top(), area.width(), area.height() * 0.6);
  const QRectF lower(area.left(), upper.bottom(), area.width(), area.height() * 0.4);
  for (const Lane& lane : drawn.rank.lanes) {
    const bool compute = lane.source == Lane::Source::kEvents && lane.kind == Kind::kCompute;
    if (!compute && lane.source != Lane::Source::kExposed) {
      continue;
    }
    for (const LaneRow& row : lane.rows) {
      tiles_.clear();
      append_tiles(row, view, drawn.axis.width(), tiles_);
      for (const Tile& tile : tiles_) {
        canvas.fill(box(compute ? upper : lower, tile.left, tile.right, compute ? tile.busy : 1),
                    compute ? Ink::kCompute : Ink::kExposed);
      }
    }
  }
}

void LaneDrawing::drawQueue(Canvas& canvas, const DrawnRank& drawn, const QRectF& area) const {
  constexpr int kColumn = 2;  // pixels
  const RankData& rank = drawn.rank;
  canvas.fill(area, Ink::kBand, 0.5);
  const double scale = area.height() / static_cast<double>(rank.queue.highest());
  double from = 0, depth = 0;  // of neighbours that are equally high
  const auto flush = [&](double until) {
    if (depth > 0) {
      canvas.fill({area.left() + from, area.bottom() - depth, until - from, depth}, Ink::kHost,
                  0.8);
    }
    from = until;
  };
  for (int x = 0; x < drawn.axis.width(); x += kColumn) {
    const double now =
        std::ceil(scale * static_cast<double>(rank.queue.most(drawn.pixels(x, kColumn))));
    if (now != depth) {
      flush(x);
      depth = now;
    }
  }
  flush(drawn.axis.width());
}

const analysis::MemoryFigures& LaneDrawing::shownMemory(const RankData& rank) {
  const auto& devices = rank.figures.memory;
  const auto device =
      std::find_if(devices.begin(), devices.end(),
                   [](const analysis::MemoryFigures& m) { return m.device.starts_with("cuda"); });
  return device == devices.end() ? devices.front() : *device;
}

void LaneDrawing::drawMemory(Canvas& canvas, const DrawnRank& drawn, const QRectF& area) const {
  const RankData& rank = drawn.rank;
  const TimeAxis& axis = drawn.axis;
  const analysis::MemoryFigures& memory = shownMemory(rank);
  const double scale =
      static_cast<double>(std::max<Bytes>({1, memory.peak.allocated, memory.peak_reserved}));
  canvas.fill(area, Ink::kBand, 0.5);
  for (size_t i = 0; i < memory.timeline.size(); ++i) {
    const analysis::MemoryPoint& point = memory.timeline[i];
    const Nanoseconds until = i + 1 < memory.timeline.size() ? memory.timeline[i + 1].time
                              : rank.timeline.span.empty()   ? point.time
                                                             : rank.timeline.span.back().end;
    const Interval shown = drawn.run.shown(rank, {point.time, until});
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
}

}  // namespace shardlens::gui
