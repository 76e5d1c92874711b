#include "gui/view/panel_parts/memory_treemap.h"

#include <algorithm>
#include <vector>

#include <QFontMetricsF>
#include <QHelpEvent>
#include <QKeyEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>

#include "gui/model/base/shown_text.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/model/run/run_data.h"
#include "gui/view/panel_parts/memory_inks.h"
#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {
namespace {

constexpr double kTitleHeight = 18, kTileText = 15, kTileSide = 3;
constexpr double kNarrowestText = 14;  // a narrower tile has no text
constexpr double kOtherUnits = 0.35;   // opacity of tiles of units that are not chosen
constexpr size_t kMostHeld = 8;        // lines of a tooltip

QString unit_words(const std::optional<std::string>& unit) {
  return unit ? shown_text(unit_label(*unit)) : MemoryTreemap::tr("of no unit");
}

// The name of a unit, then shorter ones, which still tell it from the others: "layers.3", "3".
QStringList unit_names(const std::optional<std::string>& unit) {
  const QString all = unit_words(unit);
  const qsizetype last = all.lastIndexOf(u'.');
  const qsizetype before = last > 0 ? all.lastIndexOf(u'.', last - 1) : -1;
  QStringList out{before < 0 ? all : all.mid(before + 1)};
  if (last > 0) {
    out.append(all.mid(last + 1));
  }
  return out;
}

}  // namespace

MemoryTreemap::MemoryTreemap(QWidget* parent) : DrawnWidget(parent) {
  setAccessibleName(tr("Memory by unit and category"));
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Expanding);
  setFocusPolicy(Qt::StrongFocus);
}

void MemoryTreemap::show(const sim::MemoryCurve& curve, const QString& title, const QString& why) {
  curve_ = curve;
  title_ = title;
  why_ = why;
  changed();
}

void MemoryTreemap::setTime(std::optional<Nanoseconds> time) {
  if (time != time_) {
    time_ = time;
    changed();
  }
}

void MemoryTreemap::setOrder(MemoryMap::Order order) {
  order_ = order;
  changed();
}

void MemoryTreemap::setChosen(const std::optional<std::string>& unit) {
  chosen_ = unit;
  update();
}

Nanoseconds MemoryTreemap::time() const {
  return curve_.empty() ? 0 : std::min(time_.value_or(curve_.points[curve_.peak].time), curve_.end);
}

void MemoryTreemap::changed() {
  map_.reset();
  update();
}

const MemoryMap& MemoryTreemap::map() const {
  if (!map_) {
    const QRectF area(2, kTitleHeight, width() - 4, std::max(0.0, height() - kTitleHeight - 2));
    map_ = curve_.empty() ? MemoryMap{} : memory_map(curve_, time(), order_, area);
  }
  return *map_;
}

void MemoryTreemap::resizeEvent(QResizeEvent* /*event*/) {
  changed();
}

QString MemoryTreemap::textAt(const QPointF& position) const {
  const MemoryMap::Tile* tile = map().at(position);
  if (tile == nullptr) {
    return {};
  }
  QStringList lines{
      tr("%1, %2: %3")
          .arg(unit_words(tile->unit), words(name_of(tile->category)), bytesText(tile->bytes))};
  const std::vector<HeldMemory> held = held_memory(curve_, time(), tile->unit, tile->category);
  for (size_t i = 0; i < std::min(kMostHeld, held.size()); ++i) {
    lines.append(QStringLiteral("%1 %2").arg(shown_text(held[i].what), bytesText(held[i].bytes)));
  }
  if (held.size() > kMostHeld) {
    lines.append(tr("and %1 more").arg(held.size() - kMostHeld));
  }
  return lines.join(u'\n');
}

void MemoryTreemap::drawTile(Canvas& canvas, const MemoryMap::Tile& tile, Bytes group) const {
  const QRectF area = tile.area.adjusted(0.5, 0.5, -0.5, -0.5);
  const bool other = chosen_ && tile.unit != chosen_;
  const Ink ink = ink_of(tile.category);
  canvas.fill(area, ink, other ? kOtherUnits : 1);
  if (area.width() < kNarrowestText || area.height() < kTileText) {
    return;
  }
  const bool by_unit = order_ == MemoryMap::Order::kByUnit;
  const QStringList units = unit_names(tile.unit);
  const QStringList category{words(name_of(tile.category))};
  const QFontMetricsF metrics(font());
  QStringList lines;
  // Adds the first text that fits; what the colours are is said elsewhere, so no text is cut.
  const auto add = [&](const QStringList& texts) {
    const auto fits = std::ranges::find_if(texts, [&](const QString& text) {
      return metrics.horizontalAdvance(text) <= area.width() - 2 * kTileSide;
    });
    if (fits != texts.end() && area.height() >= static_cast<double>(lines.size() + 1) * kTileText) {
      lines.append(*fits);
    }
  };
  if (tile.largest) {
    const QStringList& names = by_unit ? units : category;
    add(QStringList(tr("%1 %2").arg(names.front(), bytesText(group))) + names);
  }
  add(by_unit ? category : units);
  add({bytesText(tile.bytes)});
  double y = area.top() + 1;
  for (const QString& line : lines) {
    canvas.label({area.left() + kTileSide, y, area.width() - 2 * kTileSide, kTileText - 1}, line,
                 other ? Ink::kBackground : ink);
    y += kTileText;
  }
}

void MemoryTreemap::drawOn(Canvas& canvas) const {
  canvas.fill(rect(), Ink::kBackground, 1);
  if (curve_.empty()) {
    canvas.text(QRectF(rect()).adjusted(8, 0, -8, 0), why_, Ink::kFaintText, Qt::AlignCenter);
    return;
  }
  canvas.text({4, 0, width() - 8.0, kTitleHeight},
              tr("%1 at %2%3: %4 of the peak's %5")
                  .arg(title_, durationText(time()), time_ ? QString() : tr(", the peak"),
                       bytesText(map().sum), bytesText(map().peak)),
              Ink::kFaintText);
  canvas.fill(map().free, Ink::kBand, 1);
  if (map().free.width() > 90 && map().free.height() > kTileText) {
    canvas.text(map().free.adjusted(4, 0, -4, 0),
                tr("%1 less").arg(bytesText(map().peak - map().sum)), Ink::kFaintText,
                Qt::AlignCenter);
  }
  for (const MemoryMap::Group& group : map().groups) {
    for (size_t i = group.begin; i < group.end; ++i) {
      drawTile(canvas, map().tiles[i], group.bytes);
    }
  }
  for (const MemoryMap::Group& group : map().groups) {
    canvas.frame(group.area, Ink::kBackground, 2);
  }
  for (const MemoryMap::Tile& tile : map().tiles) {
    if (chosen_ && tile.unit == chosen_) {
      canvas.frame(tile.area.adjusted(1, 1, -1, -1), Ink::kText, 2);
    }
  }
}

void MemoryTreemap::paintEvent(QPaintEvent* event) {
  DrawnWidget::paintEvent(event);
  if (hasFocus()) {
    QPainter painter(this);
    PainterCanvas canvas(painter, theme());
    canvas.frame(QRectF(rect()).adjusted(1, 1, -1, -1), Ink::kAccent, 1);
  }
}

void MemoryTreemap::mousePressEvent(QMouseEvent* event) {
  const MemoryMap::Tile* tile = map().at(event->position());
  if (event->button() == Qt::LeftButton && tile != nullptr && tile->unit) {
    emit unitChosen(std::string(*tile->unit));
  }
}

void MemoryTreemap::keyPressEvent(QKeyEvent* event) {
  const int way = event->key() == Qt::Key_Right ? 1 : event->key() == Qt::Key_Left ? -1 : 0;
  if (way == 0 || map().tiles.empty()) {
    DrawnWidget::keyPressEvent(event);
    return;
  }
  std::vector<std::string> units;
  for (const MemoryMap::Tile& tile : map().tiles) {
    if (tile.unit && std::ranges::find(units, *tile.unit) == units.end()) {
      units.push_back(*tile.unit);
    }
  }
  if (units.empty()) {
    return;
  }
  const auto count = static_cast<std::ptrdiff_t>(units.size());
  const auto now = chosen_ ? std::ranges::find(units, *chosen_) : units.end();
  const std::ptrdiff_t next =
      now == units.end() ? (way > 0 ? 0 : count - 1) : (now - units.begin() + way + count) % count;
  emit unitChosen(units[static_cast<size_t>(next)]);
}

bool MemoryTreemap::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    QToolTip::showText(help->globalPos(), textAt(help->pos()), this);
    return true;
  }
  if (event->type() == QEvent::ShortcutOverride) {  // Left and Right are shortcuts elsewhere
    const auto* key = static_cast<QKeyEvent*>(event);
    if (key->key() == Qt::Key_Left || key->key() == Qt::Key_Right) {
      event->accept();
      return true;
    }
  }
  return DrawnWidget::event(event);
}

}  // namespace shardlens::gui
