#include "gui/view/panel_parts/mesh_layout.h"

#include <algorithm>
#include <cmath>

namespace shardlens::gui {
namespace {

// Pixels. A rank is not drawn larger than the first two, in full from the next two on, with a bar
// from the last two on.
constexpr double kWidestRank = 150, kHighestRank = 92, kFullRankWidth = 56, kFullRankHeight = 46,
                 kBarRankWidth = 16, kBarRankHeight = 12;
constexpr double kNodeGap = 4, kRankGap = 2, kNodeTitle = 30;
constexpr double kMeshGapShare = 0.2;     // of a small node or rank, that is left free around it
constexpr double kTitledNodeHeight = 74;  // of a node with a title
constexpr double kNarrowestRank = 3;      // of a rank
constexpr double kRankShape = 1.5;        // width of a rank over its height, if there is a choice

int64_t mesh_rows(int64_t items, int64_t columns) {
  return (items + columns - 1) / columns;
}

}  // namespace

MeshLayout::MeshLayout(int64_t ranks, int64_t gpus_of_node, const QRectF& area)
    : area_(area), ranks_(ranks), gpus_(std::max<int64_t>(1, std::min(gpus_of_node, ranks))) {
  if (ranks <= 0 || area.width() <= 0 || area.height() <= 0) {
    return;
  }
  nodes_ = mesh_rows(ranks_, gpus_);
  gap_ = std::min(kNodeGap, kMeshGapShare * std::sqrt(area.width() * area.height() /
                                                      static_cast<double>(nodes_)));
  for (int64_t columns = 1; columns <= nodes_; ++columns) {
    tryColumns(columns);
  }
  cell_width_ = std::min(cell_width_, kWidestRank);
  cell_height_ = std::min(cell_height_, kHighestRank);
  detail_ = cell_width_ >= kFullRankWidth && cell_height_ >= kFullRankHeight  ? Detail::kFull
            : cell_width_ >= kBarRankWidth && cell_height_ >= kBarRankHeight  ? Detail::kBar
            : cell_width_ >= kNarrowestRank && cell_height_ >= kNarrowestRank ? Detail::kDot
                                                                              : Detail::kNodes;
}

// Takes the arrangement if its ranks are larger than those of the best one so far.
void MeshLayout::tryColumns(int64_t node_columns) {
  const double width = area_.width() / static_cast<double>(node_columns) - gap_;
  const double height =
      area_.height() / static_cast<double>(mesh_rows(nodes_, node_columns)) - gap_;
  const double title = height >= kTitledNodeHeight ? kNodeTitle : 0;
  for (int64_t columns = 1; columns <= gpus_; ++columns) {
    const int64_t rows = mesh_rows(gpus_, columns);
    const double cell_width = (width - gap_) / static_cast<double>(columns);
    const double cell_height = (height - gap_ - title) / static_cast<double>(rows);
    const auto size = [](double wide, double high) {
      return std::min(std::min(wide, kWidestRank), kRankShape * std::min(high, kHighestRank));
    };
    if (size(cell_width, cell_height) > size(cell_width_, cell_height_) + 0.01) {
      cell_width_ = cell_width;
      cell_height_ = cell_height;
      title_ = title;
      node_columns_ = node_columns;
      gpu_columns_ = columns;
      gpu_rows_ = rows;
    }
  }
}

QRectF MeshLayout::node(int64_t node) const {
  const double width = static_cast<double>(gpu_columns_) * cell_width_ + gap_;
  const double height = static_cast<double>(gpu_rows_) * cell_height_ + gap_ + title_;
  return {area_.left() + static_cast<double>(node % node_columns_) * (width + gap_),
          area_.top() + static_cast<double>(node / node_columns_) * (height + gap_), width, height};
}

QRectF MeshLayout::rank(int64_t rank) const {
  const QRectF around = node(rank / gpus_);
  const int64_t gpu = rank % gpus_;
  const double gap = std::min(kRankGap, kMeshGapShare * std::min(cell_width_, cell_height_));
  return {
      around.left() + gap_ / 2 + static_cast<double>(gpu % gpu_columns_) * cell_width_ + gap / 2,
      around.top() + title_ + gap_ / 2 + static_cast<double>(gpu / gpu_columns_) * cell_height_ +
          gap / 2,
      cell_width_ - gap, cell_height_ - gap};
}

std::optional<int64_t> MeshLayout::rankAt(const QPointF& position) const {
  for (int64_t node = 0; node < nodes_; ++node) {
    if (!this->node(node).contains(position)) {
      continue;
    }
    for (int64_t rank = node * gpus_; rank < std::min(ranks_, (node + 1) * gpus_); ++rank) {
      if (this->rank(rank).contains(position)) {
        return rank;
      }
    }
  }
  return std::nullopt;
}

}  // namespace shardlens::gui
