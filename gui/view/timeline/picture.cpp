#include "gui/view/timeline/picture.h"

#include <QBuffer>
#include <QPainter>
#include <QSvgGenerator>

#include "gui/view/timeline/timeline_view.h"

namespace shardlens::gui {

QByteArray svg_of(const QString& title, QWidget& view) {
  QByteArray bytes;
  QBuffer buffer(&bytes);
  buffer.open(QIODevice::WriteOnly);
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
  painter.end();
  return bytes;
}

}  // namespace shardlens::gui
