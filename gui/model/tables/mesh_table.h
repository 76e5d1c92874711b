#pragma once

#include <QModelIndex>

#include "gui/model/tables/column_table.h"
#include "gui/model/what_if/mesh_picture.h"

namespace shardlens::gui {

// The ranks of a plan's mesh: where each is, what it holds at the peak, and how long it waited.
class MeshTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit MeshTable(QObject* parent = nullptr);
  void show(const MeshPicture& picture);
  [[nodiscard]] const MeshPicture& picture() const { return picture_; }

 private:
  static std::vector<Column> columns(const MeshTable* of);
  MeshPicture picture_;
};

}  // namespace shardlens::gui
