#pragma once

#include <cstdint>
#include <optional>

#include <QRectF>

namespace shardlens::gui {

// Places the ranks of a mesh: nodes in rows, and in each node its GPUs in rows, as large as they
// fit.
class MeshLayout {
 public:
  // How much of a rank is drawn in the room that it has. kNodes: only nodes are drawn.
  enum class Detail : uint8_t { kFull, kBar, kDot, kNodes };

  MeshLayout() = default;
  MeshLayout(int64_t ranks, int64_t gpus_of_node, const QRectF& area);

  [[nodiscard]] int64_t nodes() const { return nodes_; }
  [[nodiscard]] Detail detail() const { return detail_; }
  // Whether each node has a title and the links between its GPUs above them.
  [[nodiscard]] bool hasTitles() const { return title_ > 0; }
  [[nodiscard]] double titleHeight() const { return title_; }
  [[nodiscard]] QRectF node(int64_t node) const;
  [[nodiscard]] QRectF rank(int64_t rank) const;
  [[nodiscard]] std::optional<int64_t> rankAt(const QPointF& position) const;

 private:
  void tryColumns(int64_t node_columns);

  QRectF area_;
  int64_t ranks_ = 0, gpus_ = 1, nodes_ = 0;
  int64_t node_columns_ = 1, gpu_columns_ = 1, gpu_rows_ = 1;
  double cell_width_ = 0, cell_height_ = 0, title_ = 0, gap_ = 0;
  Detail detail_ = Detail::kDot;
};

}  // namespace shardlens::gui
