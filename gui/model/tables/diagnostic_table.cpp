#include "gui/model/tables/diagnostic_table.h"

#include <utility>

#include "gui/model/base/in_window.h"
#include "gui/model/tables/table_text.h"

namespace shardlens::gui {

DiagnosticTable::DiagnosticTable(QObject* parent)
    : ColumnTable(
          {{tr("Severity"),
            [this](size_t r) {
              return table_text(name_of(run_->analysis.diagnostics[r].severity));
            }},
           {tr("Count"),
            [this](size_t r) { return QString::number(run_->analysis.diagnostics[r].count); },
            [this](size_t r) { return static_cast<double>(run_->analysis.diagnostics[r].count); },
            true},
           {tr("Message"),
            [this](size_t r) {
              return in_window(table_text(run_->analysis.diagnostics[r].message));
            }}},
          parent) {
  setTooltip(
      [this](size_t r) { return in_window(table_text(run_->analysis.diagnostics[r].message)); });
  setEmphasis([this](size_t r) {
    return run_->analysis.diagnostics[r].severity != trace::Severity::kNote;
  });
}

void DiagnosticTable::show(RunPointer run) {
  run_ = std::move(run);
  reset(run_ == nullptr ? 0 : run_->analysis.diagnostics.size());
}

}  // namespace shardlens::gui
