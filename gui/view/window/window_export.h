#pragma once

#include <QObject>

#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// Writes the window, or one of its views, as picture or table.
class WindowExport : public QObject {
  Q_OBJECT
 public:
  explicit WindowExport(const WindowParts& parts) : parts_(parts) {}
  // The panel that has the keyboard focus, else the timeline.
  [[nodiscard]] QWidget* focusedView() const;
  // Writes by the extension of `path`: PNG or SVG of `view`, CSV of its table, or share_page() as
  // HTML. `view` nullptr: PNG of the whole window, SVG of the timeline, CSV of the first panel that
  // has a table. Returns false and sets the last error on failure.
  bool write(const QString& path, QWidget* view);
  void choose();  // asks for a file

 private:
  [[nodiscard]] const QAbstractItemView* tableOf(const QWidget* view) const;
  [[nodiscard]] QByteArray picture(QWidget* view) const;
  WindowParts parts_;
};

}  // namespace shardlens::gui
