#pragma once

#include <vector>

#include <QString>

#include "gui/model/tables/column_table.h"

class QHeaderView;
class QLabel;
class QModelIndex;
class QTableView;

namespace shardlens::gui {

// A table as the panels show it: whole rows are selected, a click on a title sorts. `name`: for
// screen readers. The caller owns it until it is put into a layout.
[[nodiscard]] QTableView* make_table(ColumnTable& model, const QString& name);
// A text above a table.
[[nodiscard]] QLabel* make_note();
// Makes the columns as wide as their texts, within limits. Returns the columns that are too narrow
// for their texts; if the table is too narrow for all columns, these give way, as in share_width().
std::vector<int> fit_columns(QTableView& view);
// Gives the `elided` columns the width that the other columns leave, within limits. To be called
// when the width of the table changes.
void share_width(QTableView& view, const std::vector<int>& elided);
// The visible columns, in their order on the screen.
[[nodiscard]] std::vector<int> shown_columns(const QHeaderView& header);
// Selects the row and scrolls to it; an invalid index clears the selection.
void show_row(QTableView& view, const QModelIndex& row);

}  // namespace shardlens::gui
