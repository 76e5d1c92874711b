#pragma once

#include <string_view>

#include <QString>

namespace shardlens::gui {

// The analyzer's name of a kind, part or cause as text: "all_gather_forward" becomes "all-gather
// forward".
[[nodiscard]] inline QString words(std::string_view name) {
  QString text = QString::fromUtf8(name.data(), static_cast<qsizetype>(name.size()));
  for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce"}) {
    const QString written = QString::fromLatin1(collective);
    text.replace(written, QString(written).replace(u'_', u'-'));
  }
  return text.replace(u'_', u' ');
}

}  // namespace shardlens::gui
