#include "gui/view/panel_parts/mesh_map.h"

#include <algorithm>
#include <numeric>

#include <QHelpEvent>
#include <QMouseEvent>
#include <QToolTip>

#include "core/mesh/mesh.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/view/panel_parts/memory_inks.h"

namespace shardlens::gui {
namespace {

using RankDetail = MeshLayout::Detail;

constexpr double kMeshSide = 4, kMeshLine = 15, kGroupStripe = 4;
constexpr int64_t kMostFramedNodes = 256;              // nodes
constexpr double kMeshSwatch = 13, kMeshEntryGap = 8;  // of the legend
constexpr double kFarLimitOfRanks = 1.5;  // a limit that is farther away would make the bars short

// From the one that is allocated all the time to those that come and go.
constexpr sim::MemoryCategory kHeldOrder[] = {
    sim::MemoryCategory::kParameters, sim::MemoryCategory::kOptimizer,
    sim::MemoryCategory::kGradients,  sim::MemoryCategory::kActivations,
    sim::MemoryCategory::kUnsharded,  sim::MemoryCategory::kCommunication};

// As the columns of the table next to it.
QString name_of_held(sim::MemoryCategory category) {
  return category == sim::MemoryCategory::kUnsharded       ? MeshMap::tr("gathered")
         : category == sim::MemoryCategory::kCommunication ? MeshMap::tr("buffers")
                                                           : words(name_of(category));
}

Bytes held_sum(const std::array<Bytes, sim::kMemoryCategoryCount>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), Bytes{0});
}

}  // namespace

Ink ink_of_axis(std::string_view axis) {
  return axis == mesh::kReplicate     ? Ink::kAllReduce
         : axis == mesh::kShard       ? Ink::kAllGather
         : axis == mesh::kContext     ? Ink::kCopy
         : axis == mesh::kTensor      ? Ink::kCompute
         : axis == mesh::kExpert      ? Ink::kReduceScatter
         : axis == mesh::kExpertShard ? Ink::kMemory
                                      : Ink::kOtherComm;
}

MeshMap::MeshMap(QWidget* parent) : DrawnWidget(parent) {
  setAccessibleName(tr("Mesh of ranks"));
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Expanding);
  setMouseTracking(true);
}

void MeshMap::show(const MeshPicture& picture) {
  picture_ = picture;
  hovered_.reset();
  const auto ranks = static_cast<int64_t>(picture_.ranks.size());
  if (chosen_ && *chosen_ >= ranks) {
    chosen_.reset();
  }
  scale_ = longest_ = 1;
  for (size_t rank = 0; rank < picture_.ranks.size(); ++rank) {
    scale_ = std::max(scale_, held_sum(picture_.held(rank)));
    longest_ = std::max(longest_, picture_.ranks[rank].waited.value_or(0));
  }
  if (static_cast<double>(picture_.available) < kFarLimitOfRanks * static_cast<double>(scale_)) {
    scale_ = std::max(scale_, picture_.available);
  }
  arrange();
}

void MeshMap::setChosen(std::optional<int64_t> rank) {
  chosen_ = rank && *rank < std::ssize(picture_.ranks) ? rank : std::nullopt;
  update();
}

void MeshMap::lightAxis(const std::string& axis) {
  lit_ = axis;
  update();
}

void MeshMap::showBoxes(RankBoxes boxes) {
  boxes_ = std::move(boxes);
  update();
}

void MeshMap::arrange() {
  layOutLegend();
  const double top = legend_.empty() ? kMeshSide : kMeshLine + 4;
  layout_ = MeshLayout(std::ssize(picture_.ranks), picture_.gpus,
                       QRectF(rect()).adjusted(kMeshSide, top, -kMeshSide, -kMeshSide));
  update();
}

// What the colours of the bars are; an entry for which there is no room is left out.
void MeshMap::layOutLegend() {
  legend_.clear();
  if (!picture_.peak || picture_.ranks.empty()) {
    return;
  }
  const QFontMetricsF metrics(font());
  double x = kMeshSide;
  const auto add = [&](const QString& text, Ink ink) {
    const double wide = kMeshSwatch + metrics.horizontalAdvance(text) + 2;
    if (x + wide <= width()) {
      legend_.push_back({text, ink, {x, 2, wide, kMeshLine}});
    }
    x += wide + kMeshEntryGap;
  };
  const auto held = picture_.held(0);
  for (const sim::MemoryCategory category : kHeldOrder) {
    if (held[static_cast<size_t>(category)] > 0) {
      add(name_of_held(category), ink_of(category));
    }
  }
  if (std::ranges::any_of(picture_.ranks, [](const auto& rank) { return rank.waited > 0; })) {
    add(tr("waited"), Ink::kExposed);
  }
}

// Not for boxes of a parameter, nor for ranks that are drawn without bars.
void MeshMap::drawLegend(Canvas& canvas) const {
  const bool bars = layout_.detail() == RankDetail::kFull || layout_.detail() == RankDetail::kBar;
  if (!boxes_.empty() || !bars) {
    return;
  }
  for (const Entry& entry : legend_) {
    const QRectF swatch(entry.area.left(), entry.area.top() + 3, 9, 9);
    if (entry.ink == Ink::kExposed) {
      canvas.fill(swatch, entry.ink, 0.25);
      canvas.hatch(swatch, entry.ink);
    } else {
      canvas.fill(swatch, entry.ink, 1);
    }
    canvas.text(entry.area.adjusted(kMeshSwatch, 0, 0, 0), entry.text, Ink::kFaintText);
  }
}

void MeshMap::resizeEvent(QResizeEvent* /*event*/) {
  arrange();
}

void MeshMap::drawNode(Canvas& canvas, int64_t node) const {
  const QRectF area = layout_.node(node);
  canvas.fill(area, layout_.detail() == RankDetail::kNodes ? Ink::kHost : Ink::kPanel, 1);
  if (layout_.nodes() <= kMostFramedNodes) {
    canvas.frame(area, Ink::kGrid, 1);
  }
  if (!layout_.hasTitles()) {
    return;
  }
  // The switch between the GPUs, with a link to each of the first row.
  canvas.text({area.left() + 5, area.top() + 1, area.width() - 10, kMeshLine},
              picture_.nodes() > 1 || picture_.spec ? tr("node %1").arg(node) : tr("this run"),
              Ink::kFaintText);
  const double y = area.top() + kMeshLine + 4;
  canvas.fill({area.left() + 5, y, area.width() - 10, 4}, Ink::kGrid, 1);
  const int64_t first = node * picture_.gpus;
  for (int64_t rank = first; rank < std::min(first + picture_.gpus, std::ssize(picture_.ranks));
       ++rank) {
    const QRectF gpu = layout_.rank(rank);
    if (gpu.top() > layout_.rank(first).top()) {
      break;
    }
    canvas.line({gpu.center().x(), y + 4}, {gpu.center().x(), gpu.top()}, Ink::kGrid, false);
  }
}

// The area is the whole parameter.
void MeshMap::drawBoxes(Canvas& canvas, const QRectF& area, size_t rank) const {
  constexpr double kLeastSide = 1;  // a thin shard is seen too
  for (const QRectF& box : boxes_[rank]) {
    canvas.fill({area.left() + box.left() * area.width(), area.top() + box.top() * area.height(),
                 std::max(kLeastSide, box.width() * area.width()),
                 std::max(kLeastSide, box.height() * area.height())},
                Ink::kGathered);
  }
  if (layout_.detail() != RankDetail::kDot) {
    canvas.frame(area, Ink::kGrid);
  }
}

void MeshMap::drawHeld(Canvas& canvas, const QRectF& area, size_t rank) const {
  const auto bytes = picture_.held(rank);
  const double scale = area.width() / static_cast<double>(scale_);
  double left = area.left();
  for (const sim::MemoryCategory category : kHeldOrder) {
    const double wide = scale * static_cast<double>(bytes[static_cast<size_t>(category)]);
    if (wide >= 0.5) {
      canvas.fill({left, area.top(), wide, area.height()}, ink_of(category), 1);
    }
    left += wide;
  }
  const double limit = area.left() + scale * static_cast<double>(picture_.available);
  if (picture_.available > 0 && limit <= area.right() + 0.5) {
    canvas.line({limit, area.top() - 2}, {limit, area.bottom() + 2}, Ink::kWarning, false);
  }
}

void MeshMap::drawWaited(Canvas& canvas, const QRectF& area, size_t rank) const {
  const Nanoseconds waited = picture_.ranks[rank].waited.value_or(0);
  const double wide = area.width() * static_cast<double>(waited) / static_cast<double>(longest_);
  if (wide >= 0.5) {
    canvas.fill({area.left(), area.top(), wide, area.height()}, Ink::kExposed, 0.25);
    canvas.hatch({area.left(), area.top(), wide, area.height()}, Ink::kExposed);
  }
}

// The axes along which the rank is in a group with the one under the pointer, or with the chosen
// one.
void MeshMap::drawGroups(Canvas& canvas, const QRectF& area, int64_t rank) const {
  const std::optional<int64_t> of = hovered_ ? hovered_ : chosen_;
  const auto axes = static_cast<double>(picture_.axes.size());
  for (size_t i = 0; i < picture_.axes.size(); ++i) {
    const mesh::Group& group = picture_.axes[i].group;
    const Ink ink = ink_of_axis(group.name);
    if (group.name == lit_) {  // neighbouring groups differ
      const int64_t index =
          group.first(rank) / group.stride / group.size + group.first(rank) % group.stride;
      canvas.fill(area, ink, 0.2 + 0.25 * static_cast<double>(index % 4));
    } else if (lit_.empty() && of && group.first(rank) == group.first(*of)) {
      const double high = area.height() / axes;
      layout_.detail() == RankDetail::kDot
          ? canvas.fill(area, ink, 1)
          : canvas.fill({area.left(), area.top() + high * static_cast<double>(i),
                         std::min(kGroupStripe, area.width() / 3), high},
                        ink, 1);
    }
  }
}

// With its name; below it what it holds, how long it waited and its place, or its boxes.
void MeshMap::drawDetails(Canvas& canvas, const QRectF& area, int64_t rank) const {
  const auto index = static_cast<size_t>(rank);
  canvas.text({area.left(), area.top(), area.width(), kMeshLine}, tr("rank %1").arg(rank),
              Ink::kText, Qt::AlignLeft | Qt::AlignVCenter, rank == chosen_);
  if (index < boxes_.size()) {
    drawBoxes(canvas, area.adjusted(0, kMeshLine + 2, 0, -2), index);
    return;
  }
  const double waited = 5, high = std::max(8.0, std::min(20.0, area.height() - kMeshLine - 12));
  drawHeld(canvas, {area.left(), area.top() + kMeshLine + 2, area.width(), high}, index);
  drawWaited(canvas, {area.left(), area.top() + kMeshLine + high + 5, area.width(), waited}, index);
  // The place in one line, else a line for each axis; it is left out where they have no room.
  double below = area.top() + kMeshLine + high + waited + 6;
  const QString place = picture_.place(index);
  const bool fits = QFontMetricsF(font()).horizontalAdvance(place) <= area.width();
  const QStringList lines = fits ? QStringList(place) : place.split(QStringLiteral(", "));
  if (area.bottom() - below >= kMeshLine * static_cast<double>(lines.size())) {
    for (const QString& line : lines) {
      canvas.text({area.left(), below, area.width(), kMeshLine}, line, Ink::kFaintText);
      below += kMeshLine;
    }
  }
}

void MeshMap::drawRank(Canvas& canvas, int64_t rank) const {
  const QRectF area = layout_.rank(rank);
  const auto index = static_cast<size_t>(rank);
  const bool boxes = index < boxes_.size();
  canvas.fill(area, Ink::kBand, 1);
  if (layout_.detail() == RankDetail::kDot) {
    const double share =
        static_cast<double>(held_sum(picture_.held(index))) / static_cast<double>(scale_);
    if (boxes) {
      drawBoxes(canvas, area, index);
    } else {
      canvas.fill(area, Ink::kHost, 0.2 + 0.6 * share);
      drawGroups(canvas, area, rank);
    }
  } else {
    drawGroups(canvas, area, rank);
    const QRectF inner = area.adjusted(kGroupStripe + 3, 2, -3, -2);
    if (layout_.detail() == RankDetail::kBar) {
      const double high = std::max(3.0, inner.height() / 3);
      const bool named = inner.height() >= kMeshLine + high && inner.width() >= 24;
      if (named) {
        canvas.text({inner.left(), inner.top(), inner.width(), kMeshLine}, QString::number(rank),
                    Ink::kText);
      }
      const double below = inner.top() + (named ? kMeshLine : 0);
      boxes ? drawBoxes(canvas, {inner.left(), below, inner.width(), inner.bottom() - below}, index)
            : drawHeld(canvas, {inner.left(), inner.bottom() - high, inner.width(), high}, index);
    } else {
      drawDetails(canvas, inner, rank);
    }
  }
  if (rank == chosen_ || rank == hovered_) {
    canvas.frame(area, Ink::kAccent, rank == chosen_ ? 2 : 1);
  }
}

void MeshMap::drawOn(Canvas& canvas) const {
  canvas.fill(rect(), Ink::kBackground, 1);
  if (picture_.ranks.empty()) {
    return;
  }
  drawLegend(canvas);
  for (int64_t node = 0; node < layout_.nodes(); ++node) {
    drawNode(canvas, node);
  }
  for (int64_t rank = 0;
       layout_.detail() != RankDetail::kNodes && rank < std::ssize(picture_.ranks); ++rank) {
    drawRank(canvas, rank);
  }
}

void MeshMap::mousePressEvent(QMouseEvent* event) {
  if (const auto rank = layout_.rankAt(event->position())) {
    emit rankChosen(*rank);
  }
}

void MeshMap::mouseDoubleClickEvent(QMouseEvent* event) {
  if (const auto rank = layout_.rankAt(event->position())) {
    emit rankOpened(*rank);
  }
}

void MeshMap::mouseMoveEvent(QMouseEvent* event) {
  const auto rank = layout_.rankAt(event->position());
  if (rank != hovered_) {
    hovered_ = rank;
    update();
  }
}

void MeshMap::leaveEvent(QEvent* /*event*/) {
  hovered_.reset();
  update();
}

bool MeshMap::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const auto rank = layout_.rankAt(help->pos());
    QToolTip::showText(help->globalPos(),
                       rank ? picture_.text(static_cast<size_t>(*rank)) : QString(), this);
    return true;
  }
  return DrawnWidget::event(event);
}

}  // namespace shardlens::gui
