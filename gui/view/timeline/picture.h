#pragma once

#include <QByteArray>
#include <QString>
#include <QWidget>

namespace shardlens::gui {

// The widget as SVG; the timeline as vectors.
[[nodiscard]] QByteArray svg_of(const QString& title, QWidget& view);

}  // namespace shardlens::gui
