#pragma once

#include <QObject>
#include <QSettings>
#include <QStringList>

namespace shardlens::gui {

// The runs that were opened before, the latest first. An entry is the absolute paths of one run,
// one a line.
class RecentFiles : public QObject {
  Q_OBJECT
 public:
  explicit RecentFiles(QSettings& settings) : settings_(settings) {}
  [[nodiscard]] QStringList entries() const;
  void add(const QStringList& paths);
  void clear();

 signals:
  void changed();

 private:
  QSettings& settings_;
};

// The paths, absolute, one a line: the same run has the same name whatever the current directory
// is.
[[nodiscard]] QString absolute_name(const QStringList& paths);

}  // namespace shardlens::gui
