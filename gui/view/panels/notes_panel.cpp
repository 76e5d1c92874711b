#include "gui/view/panels/notes_panel.h"

#include "gui/view/panels/panel_table.h"

namespace shardlens::gui {

NotesPanel::NotesPanel(const PanelContext& context) : Panel(context) {
  edit_->setAccessibleName(tr("Notes"));
  edit_->setPlaceholderText(tr("Your notes. They are saved with the project (Ctrl+S)."));
  edit_->setTabChangesFocus(true);
  edit_->setFrameShape(QFrame::NoFrame);
  stack({edit_});
}

PanelPointer make_notes_panel(const PanelContext& context) {
  return std::make_unique<NotesPanel>(context);
}

}  // namespace shardlens::gui
