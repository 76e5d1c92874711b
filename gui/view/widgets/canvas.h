#pragma once

#include <cstdint>

#include <QPointF>
#include <QRectF>
#include <QString>

#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// The meaning of something drawn on a canvas; the theme maps it to a colour. The first values are
// those of Kind, in the same order.
enum class Ink : uint8_t {
  kCompute,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kOtherComm,
  kCopy,
  kHost,
  kExposed,
  kIdle,
  kMemory,
  kBackground,
  kPanel,
  kBand,
  kGrid,
  kText,
  kFaintText,
  kAccent,
  kWarning,
  kGathered,  // units whose parameters are gathered
};
inline constexpr int kInkCount = 19;
[[nodiscard]] constexpr Ink ink_of(Kind kind) {
  return static_cast<Ink>(kind);
}

// The surface that timelines and charts are drawn on: a painter (screen, PNG, SVG) or a test's
// list.
class Canvas {
 public:
  Canvas() = default;
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;
  virtual ~Canvas() = default;

  virtual void fill(const QRectF& area, Ink ink, double opacity = 1) = 0;
  // Diagonal strokes, which mark exposed time independently of the hue.
  virtual void hatch(const QRectF& area, Ink ink) = 0;
  virtual void frame(const QRectF& area, Ink ink, double width = 1) = 0;
  virtual void line(const QPointF& from, const QPointF& to, Ink ink, bool dashed = false) = 0;
  virtual void arrow(const QPointF& from, const QPointF& to, Ink ink) = 0;
  // Text elided to the area, in black or white, whichever has more contrast on `behind`.
  virtual void label(const QRectF& area, const QString& text, Ink behind) = 0;
  virtual void text(const QRectF& area,
                    const QString& text,
                    Ink ink,
                    Qt::Alignment alignment = Qt::AlignLeft | Qt::AlignVCenter,
                    bool bold = false) = 0;
};

}  // namespace shardlens::gui
