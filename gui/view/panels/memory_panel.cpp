#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <QBoxLayout>
#include <QComboBox>
#include <QLabel>
#include <QStackedWidget>
#include <QTableView>

#include "gui/model/base/in_window.h"
#include "gui/model/base/shown_text.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/details/missing_data.h"
#include "gui/model/memory/measured_memory.h"
#include "gui/model/tables/peak_table.h"
#include "gui/model/what_if/fit_text.h"
#include "gui/view/panel_parts/memory_plot.h"
#include "gui/view/panel_parts/memory_treemap.h"
#include "gui/view/panel_parts/peak_bars.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {
namespace {

// The memory of a plan through its step, measured if the run recorded it, and simulated, and what
// it consists of: at the peak as a table, and at any time as a treemap.
class MemoryPanel final : public Panel {
 public:
  explicit MemoryPanel(const PanelContext& context) : Panel(context) {
    setView(*view_);
    note_->setTextFormat(Qt::RichText);
    auto* at_peak = new QWidget;
    auto* column = new QVBoxLayout(at_peak);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addWidget(bars_);
    column->addWidget(view_);
    auto* both = new QWidget;
    auto* row = new QHBoxLayout(both);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(0);
    parts_->addWidget(at_peak);
    parts_->addWidget(treemap_);
    as_->addItems({tr("At the peak, as a table"), tr("At the pointer's time, by unit"),
                   tr("At the pointer's time, by category")});
    as_->setAccessibleName(tr("How the parts of the memory are shown"));
    as_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    as_->setMinimumContentsLength(10);
    auto* right = new QWidget;
    auto* stacked = new QVBoxLayout(right);
    stacked->setContentsMargins(0, 0, 0, 0);
    stacked->setSpacing(0);
    stacked->addWidget(as_);
    stacked->addWidget(parts_, 1);
    row->addWidget(plot_, 1);
    row->addWidget(right, 1);
    stack({note_, both});
    static_cast<QBoxLayout*>(layout())->setStretchFactor(both, 1);
    watchWidth();
    connect(as_, &QComboBox::currentIndexChanged, this, [this](int index) {
      parts_->setCurrentIndex(std::min(index, 1));
      treemap_->setOrder(index == 2 ? MemoryMap::Order::kByCategory : MemoryMap::Order::kByUnit);
      showTime();
    });
    connect(treemap_, &MemoryTreemap::unitChosen, this,
            [this](const std::string& unit) { selection().selectUnit(unit); });
    connect(plot_, &MemoryPlot::pointed, this, [this](std::optional<Nanoseconds> time) {
      pointed_ = time;
      showTime();
    });
    connect(&session(), &PlanSession::stateChanged, this, &MemoryPanel::showPeak);
    connect(&session(), &PlanSession::simulatedOne, this, &MemoryPanel::showPeak);
    showPeak();
  }
  void setTheme(const Theme& theme) override {
    bars_->setTheme(theme);
    plot_->setTheme(theme);
    treemap_->setTheme(theme);
    note_->setText(text());
  }

  // The curve begins with the step that the pointer is in.
  void showCursor(std::optional<Nanoseconds> time) override {
    cursor_ = sinceStep(time);
    plot_->setCursorTime(cursor_);
    showTime();
  }

 protected:
  void selectionChanged() override {
    note_->setText(text());
    plot_->show(shown());
    treemap_->setChosen(selection().current().unit);
    showTime();
  }
  void fitColumns() override { elided_ = fit_columns(*view_); }
  void widthChanged() override { share_width(*view_, elided_); }

 private:
  // From the start of the step that the time is in; nullopt: it is in no step.
  [[nodiscard]] std::optional<Nanoseconds> sinceStep(std::optional<Nanoseconds> time) const {
    const RankData* rank = selection().rank();
    if (!time || rank == nullptr) {
      return std::nullopt;
    }
    const Nanoseconds own = selection().run()->own(*rank, {*time, *time}).start;
    const auto step = rank->step_at(own);
    return step ? std::optional(own - rank->figures.steps[*step].window.start) : std::nullopt;
  }
  // The treemap is of the time under the pointer, here or in the timeline, else of the start of the
  // selected item, else of the peak.
  void showTime() {
    const auto item = selection().itemInterval();
    treemap_->setTime(pointed_  ? pointed_
                      : cursor_ ? cursor_
                                : sinceStep(item ? std::optional(item->start) : std::nullopt));
  }
  void showPeak() {
    constexpr int kThisPlan = 4, kChange = 5;  // columns
    const bool empty = table_.rowCount() == 0, alone = view_->isColumnHidden(kChange);
    table_.show(session());
    const bool now_alone = table_.peaks().size() < 2;  // there is no other plan than v0
    view_->setColumnHidden(kThisPlan, now_alone);
    view_->setColumnHidden(kChange, now_alone);
    bars_->show(table_.peaks());
    const MemoryPlot::Shown all = shown();
    plot_->show(all);
    treemap_->show(all.now, all.title,
                   all.unfit.isEmpty() ? tr("The plan is not simulated.") : all.unfit);
    note_->setText(text());
    if ((empty || alone != now_alone) && table_.rowCount() > 0) {
      fitColumns();
      widthChanged();
    }
  }
  [[nodiscard]] QString text() const {
    QString out;
    if (const RankData* rank = selection().rank()) {
      for (const analysis::MemoryFigures& device : rank->figures.memory) {
        out += (device.from_driver
                    ? tr("Measured on %1: up to %2 more from the driver since recording began")
                    : tr("Measured on %1: %2 allocated"))
                   .arg(shown_text(device.device).toHtmlEscaped(),
                        bytesText(device.peak.allocated)) +
               (device.peak_reserved > 0  // the allocator of a CPU reserves nothing
                    ? tr(", %1 reserved. ").arg(bytesText(device.peak_reserved))
                    : QStringLiteral(". "));
      }
    }
    const QString unmeasured =
        selection().run() == nullptr ? QString() : why_no_memory(*selection().run());
    out += unmeasured.isEmpty() ? QString() : unmeasured + u' ';
    if (table_.peaks().empty()) {
      return out + (session().isOpen() ? tr("The plan is not simulated.")
                                       : with_breaks(in_window(session().why())).toHtmlEscaped());
    }
    for (const PeakTable::Peak& peak : table_.peaks()) {
      const QString of =
          peak.available > 0 ? tr(" of %1").arg(bytesText(peak.available)) : QString();
      const auto measured = session().run() == nullptr || &peak != &table_.peaks().front()
                                ? std::nullopt
                                : measured_peak(*session().run());
      const QString words =
          peak.need.isEmpty()
              ? measured
                    ? tr("Peak of %1, as it ran: %2%3.")
                          .arg(peak.title, peaksText(peak.sum(), *measured), of)
                    : tr("Simulated peak of %1: %2%3.").arg(peak.title, bytesText(peak.sum()), of)
              : tr("%1 does not fit: it needs %2.").arg(peak.title, peak.need);
      out += (peak.need.isEmpty() ? words : in_error_colour(words, *note_)) + u' ';
    }
    const sim::MemoryCurve& curve = session().current()->memory;
    if (!curve.empty() && session().current()->hasStep()) {
      out += tr("%1 has it %2 after the step's start, in %3.")
                 .arg(table_.peaks().back().title, durationText(curve.points[curve.peak].time),
                      shown_text(curve.at_peak).toHtmlEscaped());
    }
    if (session().subject().of_config == nullptr) {
      out +=
          tr(" The simulated memory lacks the activations that backward needs: a trace does not "
             "have them.");
    }
    return out.trimmed();
  }
  [[nodiscard]] MemoryPlot::Shown shown() const {
    MemoryPlot::Shown out;
    if (table_.peaks().empty()) {
      return out;
    }
    const PlanVersion* now = session().current();
    const PlanVersion& first = session().versions().front();
    out.title = table_.peaks().back().title;
    if (now->hasStep()) {
      out.now = now->memory;
      out.run = now->run;
    } else {
      out.unfit = tr("%1 %2").arg(out.title, unfitText(now->prediction));
    }
    out.limit = now->prediction.available;
    if (now != &first && first.hasStep()) {
      out.before_title = table_.peaks().front().title;
      out.before = first.memory;
    }
    for (const MeasuredMemory& each : measured_memory(selection())) {
      out.measured.push_back({each.time, each.allocated});
    }
    return out;
  }
  PeakTable table_;
  QTableView* view_ = make_table(table_, tr("Memory at the peak"));
  QLabel* note_ = make_note();
  MemoryPlot* plot_ = new MemoryPlot;
  PeakBars* bars_ = new PeakBars;
  MemoryTreemap* treemap_ = new MemoryTreemap;
  QComboBox* as_ = new QComboBox;
  QStackedWidget* parts_ = new QStackedWidget;
  std::optional<Nanoseconds> pointed_, cursor_;  // by the plot's pointer, by the timeline's
  std::vector<int> elided_;
};

}  // namespace

PanelPointer make_memory_panel(const PanelContext& context) {
  return std::make_unique<MemoryPanel>(context);
}

}  // namespace shardlens::gui
