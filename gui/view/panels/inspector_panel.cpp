#include <QTextBrowser>

#include "gui/model/details/inspected.h"
#include "gui/model/run/run_notes.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"

namespace shardlens::gui {
namespace {

// All details of the selection: an event, a collective, a unit, or the rank.
class InspectorPanel final : public Panel {
 public:
  explicit InspectorPanel(const PanelContext& context) : Panel(context) {
    text_->setOpenLinks(false);
    text_->setFrameShape(QFrame::NoFrame);
    text_->setAccessibleName(tr("Inspector"));
    connect(&selection(), &SelectionContext::changed, this, &InspectorPanel::showDetails);
    stack({text_});
  }
  void runChanged() override { showDetails(); }  // a recovered plan says what a rank keeps
  void setTheme(const Theme& theme) override {
    text_->document()->setDefaultStyleSheet(
        QStringLiteral(".name { color: %1; }").arg(theme[Ink::kFaintText].name()));
    showDetails();
  }

 private:
  // Immediately, not only when the selection has stayed the same for some time.
  void showDetails() {
    const bool simulated = selection().run() != nullptr && is_simulated(*selection().run());
    text_->setHtml((simulated ? tr("<i>simulated, not measured</i>") : QString()) +
                   inspected(selection(), session().recovered(selection().run())));
  }
  QTextBrowser* text_ = new QTextBrowser;
};

}  // namespace

PanelPointer make_inspector_panel(const PanelContext& context) {
  return std::make_unique<InspectorPanel>(context);
}

}  // namespace shardlens::gui
