#include "gui/view/window/window_export.h"

#include <algorithm>

#include <QAbstractItemView>
#include <QApplication>
#include <QBuffer>
#include <QFileDialog>
#include <QPainter>
#include <QPixmap>
#include <QPointer>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "gui/model/tables/column_table.h"
#include "gui/view/timeline/picture.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/share_page.h"

namespace shardlens::gui {
namespace {

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

bool ends_with(const QString& path, const char* extension) {
  return path.endsWith(QLatin1String(extension), Qt::CaseInsensitive);
}

}  // namespace

QWidget* WindowExport::focusedView() const {
  for (const Panels::Docked& docked : parts_.panels.all()) {
    if (docked.dock->isAncestorOf(QApplication::focusWidget())) {
      return docked.panel;
    }
  }
  return &parts_.timeline();
}

const QAbstractItemView* WindowExport::tableOf(const QWidget* view) const {
  for (const Panels::Docked& docked : parts_.panels.all()) {
    if (docked.panel->view() != nullptr && (view == nullptr || docked.panel == view)) {
      return docked.panel->view();
    }
  }
  return nullptr;
}

QByteArray WindowExport::picture(QWidget* view) const {
  QPixmap pixels = view == nullptr ? parts_.window.grab() : view->grab();
  if (view == nullptr && parts_.messages.unattended()) {
    draw_dialogs(parts_.window, pixels);
  }
  QByteArray bytes;
  QBuffer buffer(&bytes);
  buffer.open(QIODevice::WriteOnly);
  pixels.save(&buffer, "PNG");
  return bytes;
}

bool WindowExport::write(const QString& path, QWidget* view) {
  parts_.messages.clearError();
  QByteArray bytes;
  if (ends_with(path, ".svg")) {
    QWidget& drawn = view == nullptr ? static_cast<QWidget&>(parts_.timeline()) : *view;
    bytes = svg_of(parts_.window.windowTitle(), drawn);
  } else if (ends_with(path, ".csv")) {
    const QAbstractItemView* table = tableOf(view);
    if (table == nullptr) {
      parts_.messages.setError(
          tr("%1: no table in this view; expected a panel with a table, such as Modules or Events")
              .arg(path));
      return false;
    }
    bytes = to_csv(*table->model());
  } else if (ends_with(path, ".png")) {
    bytes = picture(view);
  } else if (ends_with(path, ".html") && parts_.hasRun()) {
    bytes = share_page(parts_);
  } else {
    parts_.messages.setError(
        tr("%1: expected a name that ends in .png, .svg, .csv or .html").arg(path));
    return false;
  }
  try {
    write_file_atomically(path.toStdString(),
                          {bytes.constData(), static_cast<size_t>(bytes.size())});
  } catch (const Error& error) {
    parts_.messages.setError(QString::fromStdString(error.what()));
    return false;
  }
  return true;
}

void WindowExport::choose() {
  QWidget* view = focusedView();  // before the dialog takes the focus
  QString name = tr("timeline");
  for (const Panels::Docked& docked : parts_.panels.all()) {
    name = docked.panel == view ? docked.dock->windowTitle() : name;
  }
  const QStringList filters{tr("The window as PNG (*.png)"), tr("%1 as PNG (*.png)").arg(name),
                            tr("%1 as SVG (*.svg)").arg(name), tr("%1 as CSV (*.csv)").arg(name),
                            tr("All that is shown, as a page (*.html)")};
  auto* dialog = new QFileDialog(&parts_.window, tr("Export"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setAcceptMode(QFileDialog::AcceptSave);
  dialog->setNameFilters(filters);
  dialog->selectFile(QStringLiteral("shardlens.png"));
  connect(dialog, &QFileDialog::fileSelected, this,
          [this, dialog, view = QPointer<QWidget>(view), filters](const QString& path) {
            const qsizetype filter =
                std::max<qsizetype>(0, filters.indexOf(dialog->selectedNameFilter()));
            constexpr const char* kEndings[] = {".png", ".png", ".svg", ".csv", ".html"};
            const bool named = std::ranges::any_of(
                kEndings, [&path](const char* ending) { return ends_with(path, ending); });
            const bool whole = filter == 0 && !path.endsWith(QStringLiteral(".csv"));
            if (!write(named ? path : path + QString::fromLatin1(kEndings[filter]),
                       whole ? nullptr : view.data())) {
              parts_.messages.tell(tr("Export"), parts_.messages.lastError());
            }
          });
  dialog->open();
}

}  // namespace shardlens::gui
