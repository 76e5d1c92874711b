#pragma once

#include "gui/model/run/run_data.h"
#include "gui/model/tables/column_table.h"

namespace shardlens::gui {

// Diagnostics: what was left out or repaired, and what may be wrong.
class DiagnosticTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit DiagnosticTable(QObject* parent = nullptr);
  void show(RunPointer run);

 private:
  RunPointer run_;
};

}  // namespace shardlens::gui
