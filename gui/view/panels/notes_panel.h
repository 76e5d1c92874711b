#pragma once

#include <QPlainTextEdit>

#include "gui/view/panels/panel.h"

namespace shardlens::gui {

// The user's notes. They are saved with the project.
class NotesPanel final : public Panel {
  Q_OBJECT
 public:
  explicit NotesPanel(const PanelContext& context);
  [[nodiscard]] QPlainTextEdit& edit() { return *edit_; }

 private:
  QPlainTextEdit* edit_ = new QPlainTextEdit;
};

}  // namespace shardlens::gui
