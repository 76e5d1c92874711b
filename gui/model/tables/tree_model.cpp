#include "gui/model/tables/tree_model.h"

#include <functional>
#include <utility>

#include "gui/model/tables/column_header.h"

namespace shardlens::gui {

TreeModel::TreeModel(std::vector<ColumnTitle> columns, QObject* parent)
    : QAbstractItemModel(parent), columns_(std::move(columns)) {}

void TreeModel::clearRows() {
  places_.clear();
  top_.clear();
}

int TreeModel::addRow(int parent) {
  const int row = addLooseRow();
  std::vector<int>& siblings =
      parent == kTop ? top_ : places_[static_cast<size_t>(parent)].children;
  places_[static_cast<size_t>(row)].parent = parent;
  places_[static_cast<size_t>(row)].position = static_cast<int>(siblings.size());
  siblings.push_back(row);
  return row;
}

int TreeModel::addLooseRow() {
  places_.emplace_back();
  return static_cast<int>(places_.size()) - 1;
}

void TreeModel::setChildren(int parent, const std::vector<int>& children) {
  for (size_t i = 0; i < children.size(); ++i) {
    Place& place = places_[static_cast<size_t>(children[i])];
    place.parent = parent;
    place.position = static_cast<int>(i);
  }
  (parent == kTop ? top_ : places_[static_cast<size_t>(parent)].children) = children;
}

const std::vector<int>& TreeModel::childrenOf(int parent) const {
  return parent == kTop ? top_ : places_[static_cast<size_t>(parent)].children;
}

int TreeModel::rowAt(const QModelIndex& index) {
  return index.isValid() ? static_cast<int>(index.internalId()) : kTop;
}

QModelIndex TreeModel::indexOfRow(int row) const {
  return row == kTop ? QModelIndex()
                     : createIndex(places_[static_cast<size_t>(row)].position, 0,
                                   static_cast<quintptr>(row));
}

QModelIndex TreeModel::index(int row, int column, const QModelIndex& parent) const {
  if (!hasIndex(row, column, parent)) {
    return {};
  }
  const int number = childrenOf(rowAt(parent))[static_cast<size_t>(row)];
  return createIndex(row, column, static_cast<quintptr>(number));
}

QModelIndex TreeModel::parent(const QModelIndex& index) const {
  return index.isValid() ? indexOfRow(places_[static_cast<size_t>(rowAt(index))].parent)
                         : QModelIndex();
}

int TreeModel::rowCount(const QModelIndex& parent) const {
  return parent.column() > 0 ? 0 : static_cast<int>(childrenOf(rowAt(parent)).size());
}

int TreeModel::columnCount(const QModelIndex& /*parent*/) const {
  return static_cast<int>(columns_.size());
}

QVariant TreeModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal || section < 0 || section >= columnCount()) {
    return {};
  }
  const ColumnTitle& column = columns_[static_cast<size_t>(section)];
  return header_of(column.title, column.help, column.right, role);
}

QVariant TreeModel::alignment(int column) const {
  return cell_alignment(columns_[static_cast<size_t>(column)].right);
}

void TreeModel::emitAllChanged() {
  const std::function<void(const QModelIndex&)> visit = [&](const QModelIndex& parent) {
    const int rows = rowCount(parent);
    if (rows > 0) {
      emit dataChanged(index(0, 0, parent), index(rows - 1, columnCount() - 1, parent));
    }
    for (int row = 0; row < rows; ++row) {
      visit(index(row, 0, parent));
    }
  };
  visit({});
}

}  // namespace shardlens::gui
