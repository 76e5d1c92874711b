#pragma once

#include <QString>

namespace shardlens::gui {

// What Qt says of the machine rather than of us: the offscreen platform's missing features, and
// where it puts its sockets. Everything else that it warns of is a fault of ours.
[[nodiscard]] inline bool is_platform_notice(const QString& message) {
  return message.contains(QStringLiteral("This plugin does not support")) ||
         message.contains(QStringLiteral("XDG_RUNTIME_DIR"));
}

}  // namespace shardlens::gui
