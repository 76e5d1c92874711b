#include "gui/view/window/opened_run.h"

#include <QFileInfo>

namespace shardlens::gui {

QString OpenedRun::label(const QStringList& paths) {
  const QString name = paths.isEmpty() ? QString() : QFileInfo(paths.front()).fileName();
  return name.isEmpty() ? paths.value(0) : name;
}

}  // namespace shardlens::gui
