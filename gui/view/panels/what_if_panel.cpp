#include "gui/view/panels/what_if_panel.h"

#include <algorithm>

#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLocale>
#include <QTableView>
#include <QVBoxLayout>

#include "core/base/format_bytes.h"
#include "gui/model/base/time_axis.h"
#include "gui/view/planning/pareto_plot.h"
#include "gui/view/planning/plan_form.h"
#include "gui/view/widgets/delegates.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

QString bytes_text(Bytes bytes) {
  return QString::fromStdString(format_bytes(bytes));
}

std::vector<ColumnTable::Column> version_columns(const PlanSession& session) {
  const auto of = [&session](size_t r) -> const PlanVersion& { return session.versions()[r]; };
  const auto figure = [of](auto&& text) {
    return
        [of, text](size_t r) { return of(r).error.isEmpty() ? text(of(r)) : QStringLiteral("–"); };
  };
  const auto base = [&session]() -> const PlanVersion& { return session.versions().front(); };
  // The most important columns first: without enough room, columns are hidden from the last one on.
  return {
      {QObject::tr("#"), [](size_t r) { return QStringLiteral("v%1").arg(r); },
       [](size_t r) { return static_cast<double>(r); }},
      {QObject::tr("Change"), [of](size_t r) { return of(r).title; }},
      {QObject::tr("Step"), figure([](const PlanVersion& v) { return durationText(v.step()); }),
       [of](size_t r) { return static_cast<double>(of(r).step()); }, true},
      {QObject::tr("Δ step"), figure([base](const PlanVersion& v) {
         return changeText(static_cast<double>(v.step()), static_cast<double>(base().step()));
       }),
       nullptr, true, QObject::tr("Change from v0, which is simulated too")},
      {QObject::tr("Off by"), figure([](const PlanVersion& v) {
         return v.prediction.baseline ? baselineText(v.prediction.baseline) : QStringLiteral("–");
       }),
       nullptr, true,
       QObject::tr(
           "The simulator's error for the run's own plan, whose step was measured; none for "
           "versions that use no measurement of the run")},
      {QObject::tr("Machine"), [of](size_t r) { return machineText(of(r).state.machine); }},
      {QObject::tr("Peak"), figure([](const PlanVersion& v) {
         return bytes_text(v.peak()) + (v.prediction.memory.fits ? QString() : QObject::tr(" ✗"));
       }),
       [of](size_t r) { return static_cast<double>(of(r).peak()); }, true,
       QObject::tr("Allocated on the rank that needs the most; ✗: more than the device has")},
      {QObject::tr("Δ peak"), figure([base](const PlanVersion& v) {
         return changeText(static_cast<double>(v.peak()), static_cast<double>(base().peak()));
       }),
       nullptr, true},
      {QObject::tr("Engine"),
       [of](size_t r) {
         return !of(r).error.isEmpty()   ? QObject::tr("refused: %1").arg(of(r).error)
                : of(r).engine.isEmpty() ? QObject::tr("runs it")
                                         : QObject::tr("cannot run it yet");
       }},
      {QObject::tr("Exposed"),
       figure([](const PlanVersion& v) { return durationText(v.prediction.figures.exposed_comm); }),
       [of](size_t r) { return static_cast<double>(of(r).prediction.figures.exposed_comm); }, true},
      {QObject::tr("Tokens/s"), figure([](const PlanVersion& v) {
         return QLocale().toString(v.prediction.tokens_per_s, 'f', 0);
       }),
       [of](size_t r) { return of(r).prediction.tokens_per_s; }, true}};
}

}  // namespace

WhatIfPanel::WhatIfPanel(PlanSession& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      form_(new PlanForm(session)),
      note_(new QLabel),
      versions_(version_columns(session)),
      table_(new QTableView),
      plot_(new ParetoPlot(session)) {
  note_->setWordWrap(true);
  note_->setContentsMargins(8, 4, 8, 4);
  note_->setTextFormat(Qt::RichText);
  note_->setAccessibleName(tr("Result of the simulation"));
  connect(note_, &QLabel::linkActivated, this, [this](const QString& link) {
    link == QStringLiteral("#stop") ? session_.cancel() : session_.resume();
  });
  table_->setModel(&versions_);
  table_->setAccessibleName(tr("Versions of the plan"));
  table_->setSelectionBehavior(QAbstractItemView::SelectRows);
  table_->setShowGrid(false);
  table_->setTabKeyNavigation(false);
  table_->setAlternatingRowColors(true);
  table_->verticalHeader()->hide();
  table_->verticalHeader()->setDefaultSectionSize(table_->fontMetrics().height() + 7);
  table_->horizontalHeader()->setStretchLastSection(true);
  table_->setItemDelegate(new EmphasisDelegate(table_));
  versions_.setEmphasis([this](size_t r) { return &session_.versions()[r] == session_.current(); });
  versions_.setTooltip([this](size_t r) {
    const PlanVersion& v = session_.versions()[r];
    QString text = !v.error.isEmpty() ? v.error : v.engine;
    for (int column = 0; column < versions_.columnCount(); ++column) {
      text += QStringLiteral("%1%2: %3")
                  .arg(text.isEmpty() ? QString() : QStringLiteral("\n"),
                       versions_.headerData(column, Qt::Horizontal, Qt::DisplayRole).toString(),
                       versions_.index(versions_.indexOf(r).row(), column).data().toString());
    }
    return text;
  });
  connect(table_, &QTableView::activated, this, [this](const QModelIndex& index) {
    const PlanVersion& v = session_.versions()[versions_.rowAt(index)];
    session_.edit(tr("back to v%1").arg(versions_.rowAt(index)), v.state);
  });
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
  plot_->setMinimumWidth(120);
  plot_->setMaximumWidth(200);
  connect(&session_, &PlanSession::stateChanged, this, &WhatIfPanel::update);
  connect(&session_, &PlanSession::simulatedOne, this, &WhatIfPanel::update);
  connect(&session_, &PlanSession::progress, this, [this](int percent, const QString& what) {
    learning_ = percent < 0 ? tr("%1 …").arg(what) : tr("%1 … %2 %").arg(what).arg(percent);
    update();
  });
  connect(&session_, &PlanSession::observed, this, &WhatIfPanel::update);
  update();
}

void WhatIfPanel::setTheme(const Theme& theme) {
  plot_->setTheme(theme);
}

QComboBox& WhatIfPanel::knob(size_t index) {
  return form_->knob(index);
}

void WhatIfPanel::resizeEvent(QResizeEvent* event) {
  QWidget::resizeEvent(event);
  fitColumns();
}

// Hidden columns are in the rows' tooltips.
void WhatIfPanel::fitColumns() {
  constexpr int kChange = 1, kAlways = 8, kWidestChange = 180;
  for (int column = kAlways; column < versions_.columnCount(); ++column) {
    table_->setColumnHidden(column, false);
  }
  table_->resizeColumnsToContents();
  table_->setColumnWidth(kChange, std::min(kWidestChange, table_->columnWidth(kChange)));
  int width = 0;
  for (int column = 0; column < versions_.columnCount(); ++column) {
    width += table_->columnWidth(column);
  }
  for (int column = versions_.columnCount() - 1;
       column >= kAlways && width > table_->viewport()->width(); --column) {
    width -= table_->columnWidth(column);
    table_->setColumnHidden(column, true);
  }
}

QString WhatIfPanel::note() const {
  return note_->text();
}

// The simulator's error for the run's own plan, or why it is unknown.
QString WhatIfPanel::baselineNote() const {
  if (const auto baseline = session_.baseline()) {
    return tr("The run's own plan: %1 per step measured, %2 simulated on the run's machine; "
              "simulator error %3. ")
        .arg(durationText(baseline->measured), durationText(baseline->simulated),
             baselineText(baseline));
  }
  return session_.why().isEmpty() ? tr("There is no measurement to compare with. ")
                                  : tr("No machine could be calibrated from the run: %1 ")
                                        .arg(session_.why().toHtmlEscaped());
}

void WhatIfPanel::update() {
  versions_.reset(session_.versions().size());
  if (session_.isObserving()) {
    note_->setText(tr("%1 <a href='#stop'>Stop</a>").arg(learning_.toHtmlEscaped()));
    return;
  }
  if (!session_.isOpen()) {
    note_->setText(session_.wasCancelled()
                       ? tr("%1 <a href='#again'>Calibrate</a>").arg(session_.why())
                       : session_.why().toHtmlEscaped());
    return;
  }
  QString text = baselineNote();
  const PlanVersion* now = session_.current();
  if (session_.isSimulating() || now == nullptr) {
    text += session_.wasCancelled() ? tr("Not simulated. <a href='#again'>Simulate</a>")
                                    : tr("Simulating … <a href='#stop'>Stop</a>");
  } else if (!now->error.isEmpty()) {
    text += tr("This plan cannot be simulated: %1").arg(now->error.toHtmlEscaped());
  } else if (!now->engine.isEmpty()) {
    text += tr("The engine cannot run this plan yet: %1").arg(now->engine.toHtmlEscaped());
  }
  note_->setText(text);
  fitColumns();
  if (now != nullptr) {
    table_->scrollTo(versions_.indexOf(static_cast<size_t>(now - session_.versions().data())));
  }
}

}  // namespace shardlens::gui
