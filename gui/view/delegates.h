#pragma once

#include <QStyledItemDelegate>

#include "gui/model/column_table.h"
#include "gui/view/theme.h"

namespace shardlens::gui {

// Draws a part of 1 (a role's double) as a hatched bar behind the text.
class ShareDelegate : public QStyledItemDelegate {
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

// Draws which part of a parameter a rank holds.
class SliceDelegate : public QStyledItemDelegate {
  Q_OBJECT
 public:
  explicit SliceDelegate(QObject* parent) : QStyledItemDelegate(parent), theme_(&Theme::light()) {}
  void setTheme(const Theme& theme) { theme_ = &theme; }
  void paint(QPainter* painter,
             const QStyleOptionViewItem& option,
             const QModelIndex& index) const override;

 protected:
  void initStyleOption(QStyleOptionViewItem* option, const QModelIndex& index) const override;

 private:
  const Theme* theme_;
};

// Bold where the model's role says so.
class EmphasisDelegate : public QStyledItemDelegate {
  Q_OBJECT
 public:
  explicit EmphasisDelegate(QObject* parent, int role = ColumnTable::kEmphasisRole)
      : QStyledItemDelegate(parent), role_(role) {}

 protected:
  void initStyleOption(QStyleOptionViewItem* option, const QModelIndex& index) const override;

 private:
  int role_;
};

}  // namespace shardlens::gui
