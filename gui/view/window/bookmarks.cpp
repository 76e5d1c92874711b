#include "gui/view/window/bookmarks.h"

#include <memory>

#include <QCryptographicHash>
#include <QInputDialog>

#include "gui/view/timeline/timeline_view.h"

namespace shardlens::gui {
namespace {

QString bookmark_key(const QStringList& paths) {
  const QByteArray name = absolute_name(paths).toUtf8();
  return QStringLiteral("bookmarks/") +
         QString::fromLatin1(QCryptographicHash::hash(name, QCryptographicHash::Sha1).toHex());
}

}  // namespace

Bookmarks::Bookmarks(const WindowParts& parts) : parts_(parts) {
  connect(&parts_.timeline(), &TimelineView::bookmarksChanged, this, &Bookmarks::keep);
}

// Each is stored as "nanoseconds note".
void Bookmarks::keep() {
  QStringList list;
  for (const Bookmark& mark : parts_.timeline().scene().bookmarks) {
    list.append(QStringLiteral("%1 %2").arg(mark.time).arg(mark.note));
  }
  parts_.settings.setValue(bookmark_key(parts_.opened.paths), list);
}

void Bookmarks::restore() {
  TimelineView& timeline = parts_.timeline();
  for (const QString& line :
       parts_.settings.value(bookmark_key(parts_.opened.paths)).toStringList()) {
    bool ok = false;
    const Nanoseconds time = line.section(u' ', 0, 0).toLongLong(&ok);
    if (ok) {
      timeline.scene().bookmarks.push_back({time, line.section(u' ', 1)});
    }
  }
  timeline.viewport()->update();
}

void Bookmarks::edit(Nanoseconds time) {
  const std::optional<Bookmark> there = parts_.timeline().bookmarkAt(time);
  auto* dialog = new QInputDialog(&parts_.window);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setWindowTitle(there ? tr("Note of the bookmark") : tr("Bookmark"));
  dialog->setLabelText(tr("Note"));
  dialog->setTextValue(there ? there->note : QString());
  const std::weak_ptr<const RunData> run = parts_.context.run();  // may be closed before the dialog
  connect(dialog, &QInputDialog::textValueSelected, this,
          [this, time = there ? there->time : time, run](const QString& note) {
            if (!run.expired() && run.lock() == parts_.context.run()) {
              parts_.timeline().setBookmark(time, note);
            }
          });
  dialog->open();
}

}  // namespace shardlens::gui
