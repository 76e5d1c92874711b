#pragma once

#include <QStyledItemDelegate>

#include "gui/model/tables/column_table.h"
#include "gui/view/widgets/theme.h"

namespace shardlens::gui {

// Draws cells of tables and trees. Long names are elided in the middle. The tooltip is the model's,
// or else the text itself if it is elided.
class CellDelegate : public QStyledItemDelegate {
  Q_OBJECT
 public:
  using QStyledItemDelegate::QStyledItemDelegate;
  bool helpEvent(QHelpEvent* event,
                 QAbstractItemView* view,
                 const QStyleOptionViewItem& option,
                 const QModelIndex& index) override;

 protected:
  void initStyleOption(QStyleOptionViewItem* option, const QModelIndex& index) const override;
};

// Draws a fraction from 0 to 1 (the role's value) as a hatched bar at the bottom of the cell.
class ShareDelegate : public CellDelegate {
  Q_OBJECT
 public:
  ShareDelegate(int role, QObject* parent);
  void setTheme(const Theme& theme) { theme_ = &theme; }
  void paint(QPainter* painter,
             const QStyleOptionViewItem& option,
             const QModelIndex& index) const override;

 private:
  int role_;
  const Theme* theme_;
};

// Draws the text bold if the model's value of `role` is true, and in the error colour if that of
// ColumnTable::kErrorRole is.
class EmphasisDelegate : public CellDelegate {
  Q_OBJECT
 public:
  explicit EmphasisDelegate(QObject* parent, int role = ColumnTable::kEmphasisRole)
      : CellDelegate(parent), role_(role) {}

 protected:
  void initStyleOption(QStyleOptionViewItem* option, const QModelIndex& index) const override;

 private:
  int role_;
};

}  // namespace shardlens::gui
