#pragma once

#include <vector>

#include "gui/view/widgets/canvas.h"

namespace shardlens::gui {

// A canvas that records what is drawn.
class Recorder final : public Canvas {
 public:
  struct Drawn {
    enum class What { kFill, kHatch, kFrame, kLine, kArrow, kLabel, kText } what;
    QRectF area;
    Ink ink;
    QString text;
    double opacity = 1;
  };
  void fill(const QRectF& area, Ink ink, double opacity) override {
    drawn.push_back({Drawn::What::kFill, area, ink, {}, opacity});
  }
  void hatch(const QRectF& area, Ink ink) override {
    drawn.push_back({Drawn::What::kHatch, area, ink, {}});
  }
  void frame(const QRectF& area, Ink ink, double /*width*/) override {
    drawn.push_back({Drawn::What::kFrame, area, ink, {}});
  }
  void line(const QPointF& from, const QPointF& to, Ink ink, bool /*dashed*/) override {
    drawn.push_back({Drawn::What::kLine, {from, to}, ink, {}});
  }
  void arrow(const QPointF& from, const QPointF& to, Ink ink) override {
    drawn.push_back({Drawn::What::kArrow, {from, to}, ink, {}});
  }
  void label(const QRectF& area, const QString& text, Ink behind) override {
    drawn.push_back({Drawn::What::kLabel, area, behind, text});
  }
  void text(const QRectF& area,
            const QString& text,
            Ink ink,
            Qt::Alignment /*alignment*/,
            bool /*bold*/) override {
    drawn.push_back({Drawn::What::kText, area, ink, text});
  }

  std::vector<Drawn> drawn;
};

}  // namespace shardlens::gui
