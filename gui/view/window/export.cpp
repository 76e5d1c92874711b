#include <QAbstractItemView>
#include <QApplication>
#include <QBuffer>
#include <QDialog>
#include <QDockWidget>
#include <QPainter>
#include <QPixmap>
#include <QSvgGenerator>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/main_window.h"

namespace shardlens::gui {
namespace {

void write_svg(QBuffer& buffer, const QString& title, QWidget& view) {
  QSvgGenerator generator;
  generator.setOutputDevice(&buffer);
  generator.setSize(view.size());
  generator.setViewBox(view.rect());
  generator.setTitle(title);
  QPainter painter(&generator);
  if (auto* timeline = qobject_cast<TimelineView*>(&view)) {
    timeline->drawOn(painter);
  } else {
    view.render(&painter);
  }
}

// Dialogs are separate windows; in the picture they are drawn in the middle, with a frame.
void draw_dialogs(const QWidget& window, QPixmap& picture) {
  QPainter painter(&picture);
  for (QDialog* dialog : window.findChildren<QDialog*>()) {
    if (dialog->isVisible()) {
      QRect place(QPoint(), dialog->size());
      place.moveCenter(window.rect().center());
      painter.drawPixmap(place.topLeft(), dialog->grab());
      painter.setPen(window.palette().color(QPalette::Mid));
      painter.drawRect(place.adjusted(-1, -1, 0, 0));
    }
  }
}

}  // namespace

QWidget* MainWindow::focusedView() const {
  for (const Panels::Panel& panel : panels_->all()) {
    if (panel.dock->isAncestorOf(QApplication::focusWidget())) {
      return panel.dock->widget();
    }
  }
  return timeline_;
}

bool MainWindow::exportTo(const QString& path, QWidget* view) {
  error_.clear();
  QByteArray bytes;
  QBuffer buffer(&bytes);
  buffer.open(QIODevice::WriteOnly);
  if (path.endsWith(QStringLiteral(".svg"), Qt::CaseInsensitive)) {
    write_svg(buffer, windowTitle(), view == nullptr ? *timeline_ : *view);
  } else if (path.endsWith(QStringLiteral(".csv"), Qt::CaseInsensitive)) {
    const QAbstractItemView* table = nullptr;
    for (const Panels::Panel& panel : panels_->all()) {
      if (panel.view != nullptr &&
          (view == nullptr ? table == nullptr : panel.dock->widget() == view)) {
        table = panel.view;
      }
    }
    if (table == nullptr) {
      error_ =
          tr("%1: no table in this view; expected a panel with a table, such as Modules or Events")
              .arg(path);
      return false;
    }
    bytes = to_csv(*table->model());
  } else if (path.endsWith(QStringLiteral(".png"), Qt::CaseInsensitive)) {
    QPixmap picture = view == nullptr ? grab() : view->grab();
    if (view == nullptr && unattended_) {
      draw_dialogs(*this, picture);
    }
    picture.save(&buffer, "PNG");
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
