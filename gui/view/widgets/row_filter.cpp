#include "gui/view/widgets/row_filter.h"

#include <QTableView>
#include <QTreeView>

namespace shardlens::gui {
namespace {

bool matches(const QModelIndex& row, const TextPattern& pattern) {
  return pattern.matches(row.data().toString());
}

// Hides the rows below `parent` that do not match; returns whether one is left.
bool filter_tree(QTreeView& tree,
                 const QModelIndex& parent,
                 const TextPattern& pattern,
                 bool filters) {
  const QAbstractItemModel& model = *tree.model();
  bool any = false;
  for (int row = 0; row < model.rowCount(parent); ++row) {
    const QModelIndex index = model.index(row, 0, parent);
    const bool itself = matches(index, pattern);
    const bool below =
        filter_tree(tree, index, itself ? TextPattern() : pattern, filters && !itself);
    tree.setRowHidden(row, parent, !itself && !below);
    any = any || itself || below;
    if (below && !itself && filters) {
      tree.expand(index);
    }
  }
  return any;
}

void filter_table(QTableView& table, const TextPattern& pattern) {
  const QAbstractItemModel& model = *table.model();
  for (int row = 0; row < model.rowCount(); ++row) {
    table.setRowHidden(row, !matches(model.index(row, 0), pattern));
  }
}

}  // namespace

RowFilter::RowFilter(QAbstractItemView& view, const QString& what)
    : SearchBox(tr("Filter %1").arg(what), tr("Filter %1").arg(what)), view_(view) {
  const auto again = [this] {
    if (filtered_) {
      apply();
    }
  };
  connect(this, &QLineEdit::textChanged, this, &RowFilter::apply);
  connect(view.model(), &QAbstractItemModel::modelReset, this, again);
  connect(view.model(), &QAbstractItemModel::layoutChanged, this, again);
}

void RowFilter::apply() {
  filtered_ = !text().isEmpty();
  if (auto* tree = qobject_cast<QTreeView*>(&view_)) {
    filter_tree(*tree, {}, pattern(), filtered_);
  } else if (auto* table = qobject_cast<QTableView*>(&view_)) {
    filter_table(*table, pattern());
  }
  emit filtered();
}

}  // namespace shardlens::gui
