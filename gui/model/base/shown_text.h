#pragma once

#include <string_view>

#include <QString>

#include "core/base/shown.h"

namespace shardlens::gui {

// A string of a file for display, on one line and without characters that are invisible or turn the
// direction of text (core/base/shown.h). Widgets that may show HTML need toHtmlEscaped() too.
[[nodiscard]] inline QString shown_text(std::string_view view) {
  return QString::fromStdString(escaped(view));
}

}  // namespace shardlens::gui
