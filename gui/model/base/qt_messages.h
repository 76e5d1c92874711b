#pragma once

#include <QString>

namespace shardlens::gui {

// Whether one of Qt's messages is about the machine, not about a fault of the program: features
// that the offscreen platform lacks, and the directory of its sockets. All other warnings are
// faults.
[[nodiscard]] inline bool is_platform_notice(const QString& message) {
  return message.contains(QStringLiteral("This plugin does not support")) ||
         message.contains(QStringLiteral("XDG_RUNTIME_DIR"));
}

}  // namespace shardlens::gui
