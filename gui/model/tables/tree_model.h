#pragma once

#include <vector>

#include <QAbstractItemModel>
#include <QString>

namespace shardlens::gui {

// The title of a column in the header.
struct ColumnTitle {
  QString title;
  QString help = {};   // tooltip of the title
  bool right = false;  // right-aligned, for numbers
};

// A tree of numbered rows: everything that Qt asks a model about the tree's structure and titles.
// Derived classes keep the rows' data under the same numbers and implement data().
//
// Complexity  every query constant; 40 bytes per row.
class TreeModel : public QAbstractItemModel {
  Q_OBJECT
 public:
  [[nodiscard]] QModelIndex index(int row,
                                  int column,
                                  const QModelIndex& parent = {}) const override;
  [[nodiscard]] QModelIndex parent(const QModelIndex& index) const override;
  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant headerData(int section,
                                    Qt::Orientation orientation,
                                    int role) const override;

 protected:
  static constexpr int kTop = -1;  // as the parent of the top rows

  TreeModel(std::vector<ColumnTitle> columns, QObject* parent);
  // These change the structure; call them between beginResetModel() and endResetModel().
  void clearRows();
  int addRow(int parent);  // at the end of the parent's children; returns the row's number
  int addLooseRow();       // has no place in the tree until setChildren() gives it one
  void setChildren(int parent, const std::vector<int>& children);

  [[nodiscard]] const std::vector<int>& childrenOf(int parent) const;
  [[nodiscard]] QModelIndex indexOfRow(int row) const;
  // Number of the row, kTop for an invalid index.
  [[nodiscard]] static int rowAt(const QModelIndex& index);
  [[nodiscard]] QVariant alignment(int column) const;  // for Qt::TextAlignmentRole
  void emitAllChanged();                               // dataChanged() for every cell

 private:
  struct Place {
    int parent = kTop;
    int position = 0;  // among its parent's children
    std::vector<int> children;
  };
  std::vector<ColumnTitle> columns_;
  std::vector<Place> places_;
  std::vector<int> top_;
};

}  // namespace shardlens::gui
