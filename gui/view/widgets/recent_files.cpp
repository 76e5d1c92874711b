#include "gui/view/widgets/recent_files.h"

#include <QFileInfo>

namespace shardlens::gui {
namespace {

constexpr qsizetype kRecent = 10;
const QString kRecentKey = QStringLiteral("recent");

}  // namespace

QString absolute_name(const QStringList& paths) {
  QStringList out;
  for (const QString& path : paths) {
    out.append(QFileInfo(path).absoluteFilePath());
  }
  return out.join(u'\n');
}

QStringList RecentFiles::entries() const {
  return settings_.value(kRecentKey).toStringList();
}

void RecentFiles::add(const QStringList& paths) {
  QStringList recent = entries();
  const QString entry = absolute_name(paths);
  recent.removeAll(entry);
  recent.prepend(entry);
  settings_.setValue(kRecentKey, recent.mid(0, kRecent));
  emit changed();
}

void RecentFiles::clear() {
  settings_.remove(kRecentKey);
  emit changed();
}

}  // namespace shardlens::gui
