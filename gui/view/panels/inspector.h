#pragma once

#include <QTextBrowser>

#include "gui/model/run/selection_context.h"

namespace shardlens::gui {

// All details of the selection: an event, a collective, a unit, or the rank.
class Inspector : public QTextBrowser {
  Q_OBJECT
 public:
  explicit Inspector(SelectionContext& context, QWidget* parent = nullptr);

 private:
  void update();
  SelectionContext& context_;
};

// The details of the selection as HTML; names from the trace are escaped.
[[nodiscard]] QString inspected(const SelectionContext& context);

}  // namespace shardlens::gui
