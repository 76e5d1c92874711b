#pragma once

#include <QString>

#include "gui/model/tables/column_table.h"

class QLabel;
class QModelIndex;
class QTableView;

namespace shardlens::gui {

// A table as the panels show it: whole rows are selected, a click on a title sorts. `name`: for
// screen readers. The caller owns it until it is put into a layout.
[[nodiscard]] QTableView* make_table(ColumnTable& model, const QString& name);
// A text above a table.
[[nodiscard]] QLabel* make_note();
// Makes the columns as wide as their texts, within limits.
void fit_columns(QTableView& view);
// Selects the row and scrolls to it; an invalid index clears the selection.
void show_row(QTableView& view, const QModelIndex& row);

}  // namespace shardlens::gui
