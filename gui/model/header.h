#pragma once

#include <QString>
#include <QVariant>

namespace shardlens::gui {

// What a model's headerData() says of one column, by role. `help`: its tooltip, "" for none.
[[nodiscard]] QVariant header_of(const QString& title, const QString& help, bool right, int role);

}  // namespace shardlens::gui
