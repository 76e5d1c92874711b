#include <QAbstractItemView>
#include <QBuffer>
#include <QDockWidget>
#include <QPainter>
#include <QPixmap>
#include <QSvgGenerator>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "gui/view/main_window.h"
#include "gui/view/timeline_view.h"

namespace shardlens::gui {

bool MainWindow::exportTo(const QString& path) {
  error_.clear();
  QByteArray bytes;
  QBuffer buffer(&bytes);
  buffer.open(QIODevice::WriteOnly);
  if (path.endsWith(QStringLiteral(".svg"), Qt::CaseInsensitive)) {
    QSvgGenerator generator;
    generator.setOutputDevice(&buffer);
    generator.setSize(timeline_->viewport()->size());
    generator.setViewBox(timeline_->viewport()->rect());
    generator.setTitle(windowTitle());
    QPainter painter(&generator);
    timeline_->drawOn(painter);
    painter.end();
  } else if (path.endsWith(QStringLiteral(".csv"), Qt::CaseInsensitive)) {
    const QAbstractItemView* chosen = nullptr;
    for (const Panels::Panel& panel : panels_->all()) {
      if (panel.view != nullptr && (chosen == nullptr || panel.view->hasFocus())) {
        chosen = panel.view;
      }
    }
    bytes = to_csv(*chosen->model());
  } else if (path.endsWith(QStringLiteral(".png"), Qt::CaseInsensitive)) {
    grab().save(&buffer, "PNG");
  } else {
    error_ = tr("%1: expected a name that ends in .png, .svg or .csv").arg(path);
    return false;
  }
  try {
    write_file_atomically(path.toStdString(),
                          {bytes.constData(), static_cast<size_t>(bytes.size())});
  } catch (const Error& error) {
    error_ = QString::fromStdString(error.what());
    return false;
  }
  return true;
}

}  // namespace shardlens::gui
