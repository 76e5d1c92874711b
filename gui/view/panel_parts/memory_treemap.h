#pragma once

#include <optional>
#include <string>

#include <QString>

#include "gui/model/memory/memory_map.h"
#include "gui/view/widgets/drawn_widget.h"

namespace shardlens::gui {

// A treemap, by unit and category, of the memory that a simulated plan has allocated at an instant
// of its step. The tiles of the selected unit are framed, the others dimmed.
//
// Mouse  A click chooses the tile's unit; the tooltip lists what it holds.
// Keys   Left and Right choose the unit before and after, in the order of the treemap.
class MemoryTreemap : public DrawnWidget {
  Q_OBJECT
 public:
  explicit MemoryTreemap(QWidget* parent = nullptr);
  // `title`: "v2". An empty curve: nothing is drawn but `why`.
  void show(const sim::MemoryCurve& curve, const QString& title, const QString& why);
  // Since the step began; nullopt: at the peak.
  void setTime(std::optional<Nanoseconds> time);
  void setOrder(MemoryMap::Order order);
  void setChosen(const std::optional<std::string>& unit);
  [[nodiscard]] const MemoryMap& map() const;
  [[nodiscard]] Nanoseconds time() const;  // that is shown
  [[nodiscard]] QString textAt(const QPointF& position) const;
  void drawOn(Canvas& canvas) const override;
  [[nodiscard]] QSize sizeHint() const override { return {400, 150}; }
  [[nodiscard]] QSize minimumSizeHint() const override { return {120, 56}; }

 signals:
  void unitChosen(const std::string& unit);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  bool event(QEvent* event) override;

 private:
  void changed();  // the map, which is made when it is needed
  void drawTile(Canvas& canvas, const MemoryMap::Tile& tile, Bytes group) const;
  sim::MemoryCurve curve_;
  QString title_, why_;
  std::optional<Nanoseconds> time_;
  MemoryMap::Order order_ = MemoryMap::Order::kByUnit;
  std::optional<std::string> chosen_;
  mutable std::optional<MemoryMap> map_;
};

}  // namespace shardlens::gui
