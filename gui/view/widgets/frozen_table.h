#pragma once

#include <QTableView>

namespace shardlens::gui {

class FrozenColumn;

// A table whose first column stays in place while the others scroll sideways. That column is drawn
// by a second view of the same model and the same selection, which lies on top of this one. Mouse
// and keyboard stay with this view, so that there is one table for the user.
class FrozenTable : public QTableView {
  Q_OBJECT
 public:
  explicit FrozenTable(QWidget* parent = nullptr);
  void setModel(QAbstractItemModel* model) override;
  // Also for the first column. To be used instead of setItemDelegate().
  void setCellDelegate(QAbstractItemDelegate* delegate);

  // Never scrolls sideways for the first column, and not below it for the others.
  void scrollTo(const QModelIndex& index, ScrollHint hint = EnsureVisible) override;
  // Scrolls sideways until the column is in sight, as far as there is room for it.
  void showColumn(int column);
  // The view that is on top.
  [[nodiscard]] const QTableView& frozen() const;

 protected:
  void resizeEvent(QResizeEvent* event) override;
  void updateGeometries() override;

 private:
  void placeFrozen();  // over the first column
  void hideOthers();   // columns of the view on top
  FrozenColumn* frozen_;
};

}  // namespace shardlens::gui
