#pragma once

#include <QObject>

#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// Keeps the timeline's bookmarks in the settings, under the run's absolute paths, and edits their
// notes.
class Bookmarks : public QObject {
  Q_OBJECT
 public:
  explicit Bookmarks(const WindowParts& parts);
  void restore();  // adds what was kept for the open run
  // Asks for a note. If there is already a bookmark, its note is edited; it stays until the dialog
  // is accepted.
  void edit(Nanoseconds time);

 private:
  void keep();
  WindowParts parts_;
};

}  // namespace shardlens::gui
