#pragma once

#include <QString>
#include <QVariant>

namespace shardlens::gui {

// What a model's headerData() returns for one column and `role`. `help`: the tooltip; "": none.
[[nodiscard]] QVariant header_of(const QString& title, const QString& help, bool right, int role);
// The value of Qt::TextAlignmentRole: at the left or right, in the middle of the height.
[[nodiscard]] QVariant cell_alignment(bool right);

}  // namespace shardlens::gui
