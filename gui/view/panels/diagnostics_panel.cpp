#include <QLabel>
#include <QTableView>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/diagnostic_table.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"

namespace shardlens::gui {
namespace {

// Lists what was left out of the run or repaired, and what may be wrong.
class DiagnosticsPanel final : public Panel {
 public:
  explicit DiagnosticsPanel(const PanelContext& context) : Panel(context) {
    setView(*view_);
    stack({note_, view_});
  }

 protected:
  void runChanged() override {
    table_.show(selection().run());
    note_->setText(table_.rowCount() == 0
                       ? tr("No diagnostics: nothing was left out or repaired.")
                       : countText(table_.rowCount(), tr("remark"), tr("remarks")));
  }
  void fitColumns() override { fit_columns(*view_); }

 private:
  DiagnosticTable table_;
  QTableView* view_ = make_table(table_, tr("Diagnostics"));
  QLabel* note_ = make_note();
};

}  // namespace

PanelPointer make_diagnostics_panel(const PanelContext& context) {
  return std::make_unique<DiagnosticsPanel>(context);
}

}  // namespace shardlens::gui
