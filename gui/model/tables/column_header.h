#pragma once

#include <QString>
#include <QVariant>

namespace shardlens::gui {

// What a model's headerData() returns for one column and `role`. `help`: the tooltip; "": none.
[[nodiscard]] QVariant header_of(const QString& title, const QString& help, bool right, int role);

}  // namespace shardlens::gui
