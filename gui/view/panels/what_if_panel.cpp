#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QTableView>
#include <QVBoxLayout>

#include "gui/model/base/in_window.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/memory/measured_memory.h"
#include "gui/model/run/run_notes.h"
#include "gui/model/what_if/fit_text.h"
#include "gui/view/panel_parts/pareto_plot.h"
#include "gui/view/panel_parts/plan_form.h"
#include "gui/view/panel_parts/version_columns.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/widgets/delegates.h"
#include "gui/view/widgets/elided_header.h"
#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {
namespace {

// Edits the plan and shows the simulated versions next to the measured run.
class WhatIfPanel final : public Panel {
 public:
  explicit WhatIfPanel(const PanelContext& context);
  void setTheme(const Theme& theme) override {
    plot_->setTheme(theme);
    showVersions();
  }

 protected:
  void widthChanged() override { fitVersions(); }

 private:
  void makeTable();
  void showVersions();
  void fitVersions();  // hides the least important columns if not all fit the table's width
  [[nodiscard]] QString baselineNote() const;
  static constexpr int kChangeOfStep = 3, kInterval = 4;  // columns
  [[nodiscard]] QString cell(size_t version, int column) const {
    return versions_.indexOf(version).siblingAtColumn(column).data().toString();
  }
  PlanForm* form_;
  QLabel* note_;
  ColumnTable versions_;
  QTableView* table_;
  ParetoPlot* plot_;
  std::vector<int> widest_;  // of each column, since the run was opened
  QString learning_;         // progress of observing the run, as text
};

WhatIfPanel::WhatIfPanel(const PanelContext& context)
    : Panel(context),
      form_(new PlanForm(session())),
      note_(new QLabel),
      versions_(version_columns(session())),
      table_(new QTableView),
      plot_(new ParetoPlot(session(), proposals())) {
  note_->setWordWrap(true);
  note_->setContentsMargins(8, 4, 8, 4);
  note_->setTextFormat(Qt::RichText);
  note_->setAccessibleName(tr("Result of the simulation"));
  connect(note_, &QLabel::linkActivated, this, [this](const QString& link) {
    link == QStringLiteral("#stop") ? session().cancel() : session().resume();
  });
  makeTable();
  auto* right = new QVBoxLayout;
  right->setContentsMargins(0, 0, 0, 0);
  right->setSpacing(0);
  right->addWidget(note_);
  right->addWidget(table_, 1);
  auto* row = new QHBoxLayout(this);
  row->setContentsMargins(0, 0, 0, 0);
  row->addWidget(form_, 2);
  row->addLayout(right, 6);
  row->addWidget(plot_, 1);
  plot_->setMinimumWidth(104);
  plot_->setMaximumWidth(200);
  connect(&session(), &PlanSession::stateChanged, this, &WhatIfPanel::showVersions);
  connect(&session(), &PlanSession::simulatedOne, this, &WhatIfPanel::showVersions);
  connect(&session(), &PlanSession::progress, this, [this](int percent, const QString& what) {
    learning_ = percent < 0 ? tr("%1 …").arg(what) : tr("%1 … %2 %").arg(what).arg(percent);
    showVersions();
  });
  connect(&session(), &PlanSession::observed, this, &WhatIfPanel::showVersions);
  showVersions();
}

void WhatIfPanel::makeTable() {
  elide_header(*table_);
  table_->setModel(&versions_);
  table_->setWordWrap(false);
  table_->setAccessibleName(tr("Versions of the plan"));
  table_->setSelectionBehavior(QAbstractItemView::SelectRows);
  table_->setSelectionMode(QAbstractItemView::SingleSelection);
  table_->setShowGrid(false);
  table_->setTabKeyNavigation(false);
  table_->setAlternatingRowColors(true);
  table_->verticalHeader()->hide();
  table_->verticalHeader()->setDefaultSectionSize(table_->fontMetrics().height() + 7);
  table_->horizontalHeader()->setStretchLastSection(false);  // the last ones are numbers
  table_->setItemDelegate(new EmphasisDelegate(table_));
  setView(*table_);
  watchWidth();
  versions_.setEmphasis(
      [this](size_t r) { return &session().versions()[r] == session().current(); });
  versions_.setErrors([this](size_t r) { return !session().versions()[r].prediction.memory.fits; });
  versions_.setTooltip([this](size_t r) {
    const PlanVersion& v = session().versions()[r];
    QString text = in_window(!v.error.isEmpty() ? v.error : v.engine);
    for (int column = 0; column < versions_.columnCount(); ++column) {
      text += QStringLiteral("%1%2: %3")
                  .arg(text.isEmpty() ? QString() : QStringLiteral("\n"),
                       versions_.headerData(column, Qt::Horizontal, Qt::DisplayRole).toString(),
                       versions_.index(versions_.indexOf(r).row(), column).data().toString());
    }
    return text + (&v == session().current() ? QString() : tr("\nA double click returns to it."));
  });
  connect(table_, &QTableView::activated, this, [this](const QModelIndex& index) {
    const PlanVersion& v = session().versions()[versions_.rowAt(index)];
    session().edit(tr("back to v%1").arg(versions_.rowAt(index)), v.state);
  });
}

// Hidden columns are in the rows' tooltips.
void WhatIfPanel::fitVersions() {
  constexpr int kChange = 1, kNarrowestChange = 48, kWidestChange = 180, kPadding = 8;
  // Tokens/s, exposed, engine, the error's parts, machine, change of the peak, and the simulator's
  // error, which is also above the table with its parts, at last the interval; the step, its change
  // and the peak always stay, so that the text of the change is elided before they are cut.
  constexpr int kDropped[] = {12, 11, 10, 6, 7, 9, 5, kInterval};
  for (const int column : kDropped) {
    table_->setColumnHidden(column, false);
  }
  table_->resizeColumnsToContents();
  table_->setColumnWidth(kChange, kWidestChange);
  // Within a session columns only become wider: they stay in place when versions are added.
  if (session().versions().size() <= 1 || widest_.empty()) {
    widest_.assign(static_cast<size_t>(versions_.columnCount()), 0);
    // What the usual texts of later versions need, in bold as the shown version is.
    constexpr std::pair<int, const char*> kUsual[] = {{2, "88.888 ms"},
                                                      {3, "▲ 88.8 %"},
                                                      {kInterval, "−88.8 to +88.8 %"},
                                                      {8, "88.88 GiB"},
                                                      {9, "▲ 88.8 %"}};
    QFont bold = table_->font();
    bold.setBold(true);
    for (const auto& [column, text] : kUsual) {
      widest_[static_cast<size_t>(column)] =
          QFontMetrics(bold).horizontalAdvance(QString::fromUtf8(text)) + kPadding;
    }
  }
  int width = 0;
  for (int column = 0; column < versions_.columnCount(); ++column) {
    int& widest = widest_[static_cast<size_t>(column)];
    widest = std::max(widest, table_->columnWidth(column));
    table_->setColumnWidth(column, widest);
    width += widest;
  }
  for (const int column : kDropped) {
    const int elided = column == kInterval ? table_->columnWidth(kChange) - kNarrowestChange : 0;
    if (width - elided > table_->viewport()->width()) {
      width -= table_->columnWidth(column);
      table_->setColumnHidden(column, true);
    }
  }
  const int missing = width - table_->viewport()->width();
  if (missing > 0) {
    table_->setColumnWidth(kChange,
                           std::max(kNarrowestChange, table_->columnWidth(kChange) - missing));
  }
}

// How the measured step is defined: "the median of 24 steps".
QString measuredSteps(const sim::Baseline& baseline) {
  return baseline.one_pass     ? QObject::tr("one pass")
         : baseline.steps == 1 ? QObject::tr("the only step")
                               : QObject::tr("the median of %1 steps").arg(baseline.steps);
}

// The simulator's error for the run's own plan, or why it is unknown.
QString WhatIfPanel::baselineNote() const {
  if (const auto baseline = session().baseline()) {
    const bool simulated = selection().run() != nullptr && is_simulated(*selection().run());
    const QString parts = baselinePartsText(session().baselineParts());
    const auto peak = session().run() == nullptr ? std::nullopt : measured_peak(*session().run());
    const QString memory =
        peak && !session().versions().empty() && session().versions().front().error.isEmpty()
            ? tr("Its peak memory: %1%2. ")
                  .arg(peaksText(session().versions().front().peak(), *peak),
                       session().subject().of_config == nullptr
                           ? tr(", simulated without the activations that backward needs")
                           : QString())
            : QString();
    return (simulated ? tr("This run was simulated, not measured: %1 per step (%4). Its own plan, "
                           "simulated again on a machine calibrated from it: %2 (%3%5). ")
                      : tr("The run's own plan: %1 per step measured (%4), %2 simulated on the "
                           "run's machine; simulator error %3%5. "))
               .arg(durationText(baseline->measured), durationText(baseline->simulated),
                    baselineText(baseline), measuredSteps(*baseline),
                    parts.isEmpty() ? QString() : QStringLiteral(": ") + parts) +
           memory;
  }
  return session().why().isEmpty()
             ? tr("There is no measurement to compare with. ")
             : tr("No machine could be calibrated from the run: %1 ")
                   .arg(with_breaks(in_window(session().why())).toHtmlEscaped());
}

void WhatIfPanel::showVersions() {
  versions_.reset(session().versions().size());
  if (session().isObserving()) {
    note_->setText(tr("%1 <a href='#stop'>Stop</a>").arg(learning_.toHtmlEscaped()));
    return;
  }
  if (!session().isOpen()) {
    note_->setText(session().wasCancelled()
                       ? tr("%1 <a href='#again'>Calibrate</a>")
                             .arg(with_breaks(in_window(session().why())).toHtmlEscaped())
                       : with_breaks(in_window(session().why())).toHtmlEscaped());
    return;
  }
  QString text = baselineNote();
  const PlanVersion* now = session().current();
  if (session().isSimulating() || now == nullptr) {
    text += session().wasCancelled() ? tr("Not simulated. <a href='#again'>Simulate</a>")
                                     : tr("Simulating … <a href='#stop'>Stop</a>");
  } else if (!now->error.isEmpty()) {
    text += tr("This plan cannot be simulated: %1")
                .arg(with_breaks(in_window(now->error)).toHtmlEscaped());
  } else if (!now->hasStep()) {
    text += tr("This plan %1, so it has no step.")
                .arg(in_error_colour(unfitText(now->prediction), *note_));
  } else if (!now->engine.isEmpty()) {
    text += tr("The engine cannot run this plan yet: %1")
                .arg(with_breaks(in_window(now->engine)).toHtmlEscaped());
  } else {
    const auto row = static_cast<size_t>(now - session().versions().data());
    if (row > 0 && now->prediction.change_interval) {
      text += tr("v%1: %2 of the step, 90 % interval %3. ")
                  .arg(row)
                  .arg(cell(row, kChangeOfStep), cell(row, kInterval));
    }
    const auto far =
        QString::fromStdString(sim::far_extrapolations_text(now->prediction.extrapolated));
    text += far.isEmpty() ? QString()
                          : tr("Priced beyond what was measured: %1.").arg(far.toHtmlEscaped());
  }
  note_->setText(text);
  fitVersions();
  if (now != nullptr) {
    table_->scrollTo(versions_.indexOf(static_cast<size_t>(now - session().versions().data())));
  }
}

}  // namespace

PanelPointer make_what_if_panel(const PanelContext& context) {
  return std::make_unique<WhatIfPanel>(context);
}

}  // namespace shardlens::gui
