#pragma once

#include <QAbstractItemView>

#include "gui/view/widgets/search_box.h"

namespace shardlens::gui {

// A box above a table or tree that hides the rows whose first column does not match its text. A row
// of a tree stays if one below it or above it matches. Whatever the view shows later
// is filtered too.
class RowFilter : public SearchBox {
  Q_OBJECT
 public:
  // `view`: a QTableView or QTreeView with a model; it must outlive the box. `what`: "units".
  RowFilter(QAbstractItemView& view, const QString& what);

 signals:
  void filtered();  // other rows may be hidden now

 private:
  void apply();
  QAbstractItemView& view_;
  bool filtered_ = false;
};

}  // namespace shardlens::gui
