#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include <QComboBox>
#include <QCoreApplication>
#include <QGridLayout>
#include <QHBoxLayout>
#include <QLabel>
#include <QLocale>
#include <QScrollArea>
#include <QSlider>
#include <QTableView>
#include <QToolButton>
#include <QVBoxLayout>

#include "gui/model/base/in_window.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/what_if/fit_text.h"
#include "gui/model/what_if/plan_scaling.h"
#include "gui/view/panel_parts/part_bars.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {
namespace {

constexpr int kNotches = 10, kMostNotches = 40;  // notches for a factor of two; to 1/16 and 16

double factor_of(int notches) {
  return std::exp2(static_cast<double>(notches) / kNotches);
}

// "×0.5", "×2.14"
QString factor_text(double factor) {
  return QStringLiteral("×%1").arg(QString::number(factor, 'g', 3));
}

QString limits_text(const std::vector<sim::StepLimit>& limits) {
  QStringList out;
  for (const sim::StepLimit limit : limits) {
    const std::string_view name = sim::name_of(limit);
    out.append(QString::fromUtf8(name.data(), static_cast<qsizetype>(name.size())));
  }
  return out.join(QStringLiteral(", "));
}

// A digit after the point where there are few before it.
QString rate_text(double per_second) {
  return QLocale().toString(per_second, 'f', per_second < 1000 ? 1 : 0);
}

// "153.6 µs"
QString cost_text(double ns) {
  return QObject::tr("%1 µs").arg(rate_text(ns / 1e3));
}

// GPU time of a token, in nanoseconds.
double cost_of(const ScalePoint& point) {
  return static_cast<double>(point.ranks) / point.tokens_per_s * 1e9;
}

std::vector<ColumnTable::Column> scale_columns(const PlanScaling& scaling) {
  const auto of = [&scaling](size_t r) -> const ScalePoint& { return scaling.points()[r]; };
  const auto if_step = [of](auto&& text) {
    return [of, text](size_t r) { return of(r).hasStep() ? text(of(r)) : QStringLiteral("–"); };
  };
  const auto key = [of](auto&& value) {
    return [of, value](size_t r) { return of(r).hasStep() ? value(of(r)) : 1e300; };
  };
  return {
      {QObject::tr("Size"), [of](size_t r) { return QLocale().toString(qlonglong{of(r).value}); },
       [of](size_t r) { return static_cast<double>(of(r).value); }, true,
       QObject::tr("Ranks, samples of a microbatch, or tokens of a sample")},
      {QObject::tr("Step"),
       if_step([](const ScalePoint& p) { return durationText(p.figures.duration()); }),
       key([](const ScalePoint& p) { return static_cast<double>(p.figures.duration()); }), true,
       QObject::tr("Predicted, at the chosen speeds")},
      {QObject::tr("Tokens/s"),
       if_step([](const ScalePoint& p) { return rate_text(p.tokens_per_s); }),
       key([](const ScalePoint& p) { return p.tokens_per_s; }), true,
       QObject::tr("Of all ranks; samples where the model takes no tokens")},
      {QObject::tr("Efficiency"), if_step([&scaling](const ScalePoint& p) {
         double best = 0;
         for (const ScalePoint& other : scaling.points()) {
           best = other.hasStep() ? std::max(best, 1 / cost_of(other)) : best;
         }
         return QObject::tr("%1 %").arg(100 / cost_of(p) / best, 0, 'f', 1);
       }),
       nullptr, true, QObject::tr("Tokens/s of a rank, of those of the best row")},
      {QObject::tr("Bound by"),
       [of](size_t r) {
         return !of(r).error.isEmpty() ? in_window(of(r).error)
                : !of(r).fits          ? QObject::tr("memory")
                                       : limits_text(of(r).limits);
       },
       nullptr, false, QObject::tr("Parts of at least a tenth of the step, the largest first")},
      {QObject::tr("Peak"),
       [of](size_t r) {
         const ScalePoint& p = of(r);
         return !p.error.isEmpty() ? QStringLiteral("–")
                : p.fits           ? bytesText(p.peak)
                                   : needText(p.peak, p.reserved, p.available);
       },
       [of](size_t r) { return static_cast<double>(of(r).peak); }, true,
       QObject::tr("Allocated on the rank that needs the most"), ColumnTable::Scale::kNone, true}};
}

struct SpeedRow {
  const char* title;
  const char* help;
  double sim::Speeds::*speed;
};
constexpr SpeedRow kSpeeds[] = {
    {QT_TRANSLATE_NOOP("Scaling", "Bandwidth"),
     QT_TRANSLATE_NOOP("Scaling", "Of links and network, in times of the machine's"),
     &sim::Speeds::bandwidth},
    {QT_TRANSLATE_NOOP("Scaling", "Latency"),
     QT_TRANSLATE_NOOP("Scaling", "Of a collective of one byte, in times of the machine's"),
     &sim::Speeds::latency},
    {QT_TRANSLATE_NOOP("Scaling", "Compute"),
     QT_TRANSLATE_NOOP("Scaling", "Speed of kernels and of the device's memory"),
     &sim::Speeds::compute},
    {QT_TRANSLATE_NOOP("Scaling", "Host"),
     QT_TRANSLATE_NOOP("Scaling", "Speed of what issues the work"), &sim::Speeds::host}};

// The plan over other numbers of ranks, batches and sequences, on its machine at other speeds.
class ScalingPanel final : public Panel {
 public:
  explicit ScalingPanel(const PanelContext& context);
  void setTheme(const Theme& theme) override { bars_->setTheme(theme); }
  [[nodiscard]] bool isBusy() const override { return scaling_.isBusy(); }
  void becameVisible() override { scaling_.follow(true); }

 protected:
  void fitColumns() override { elided_ = fit_columns(*table_); }
  void widthChanged() override { share_width(*table_, elided_); }

 private:
  QWidget* makeSliders();
  void show();
  void showAnswer();
  [[nodiscard]] PartBars::Bar bar_of(const ScalePoint& point) const;

  PlanScaling scaling_{session()};
  ColumnTable model_;
  QTableView* table_ = make_table(model_, tr("The plan at other sizes"));
  PartBars* bars_ =
      new PartBars(tr("Time of a token by part, at other sizes"), tr("GPU time a token"));
  QComboBox* axis_ = new QComboBox;
  std::array<QSlider*, std::size(kSpeeds)> sliders_{};
  std::array<QLabel*, std::size(kSpeeds)> factors_{};
  QLabel* answer_ = make_note();
  std::vector<int> elided_;
  size_t shown_ = 0;
};

ScalingPanel::ScalingPanel(const PanelContext& context)
    : Panel(context), model_(scale_columns(scaling_)) {
  model_.setEmphasis([this](size_t r) { return scaling_.points()[r].now; });
  model_.setErrors([this](size_t r) { return !scaling_.points()[r].fits; });
  model_.setTooltip([this](size_t r) { return in_window(scaling_.points()[r].error); });
  setView(*table_);
  watchWidth();
  connect(bars_, &PartBars::chosen, this,
          [this](size_t bar) { show_row(*table_, model_.indexOf(bar)); });
  auto* row = new QHBoxLayout(this);
  row->setContentsMargins(0, 0, 0, 0);
  row->setSpacing(0);
  row->addWidget(makeSliders(), 1);
  row->addWidget(bars_, 2);
  row->addWidget(table_, 2);
  connect(&scaling_, &PlanScaling::changed, this, &ScalingPanel::show);
  connect(&session(), &PlanSession::stateChanged, this, [this] { scaling_.follow(isSeen()); });
  connect(&session(), &PlanSession::observed, this, &ScalingPanel::show);
  show();
}

QWidget* ScalingPanel::makeSliders() {
  axis_->addItems({tr("over 1 to 1,024 ranks"), tr("over batches"), tr("over sequences")});
  axis_->setAccessibleName(tr("What is changed"));
  connect(axis_, &QComboBox::currentIndexChanged, this,
          [this](int axis) { scaling_.setAxis(static_cast<ScaleAxis>(axis)); });
  auto* inside = new QWidget;
  auto* column = new QVBoxLayout(inside);
  column->setContentsMargins(8, 4, 8, 4);
  column->setSpacing(3);
  column->addWidget(axis_);
  auto* grid = new QGridLayout;
  grid->setVerticalSpacing(1);
  for (size_t i = 0; i < std::size(kSpeeds); ++i) {
    const QString title = QCoreApplication::translate("Scaling", kSpeeds[i].title);
    auto* slider = new QSlider(Qt::Horizontal);
    slider->setRange(-kMostNotches, kMostNotches);
    slider->setPageStep(kNotches);
    slider->setTickPosition(QSlider::NoTicks);
    slider->setAccessibleName(title);
    slider->setToolTip(QCoreApplication::translate("Scaling", kSpeeds[i].help));
    auto* factor = new QLabel(factor_text(1));
    factor->setMinimumWidth(factor->fontMetrics().horizontalAdvance(QStringLiteral("×0.0625")));
    auto* label = new QLabel(title);
    label->setBuddy(slider);
    label->setToolTip(slider->toolTip());
    const int at = static_cast<int>(i);
    grid->addWidget(label, at, 0);
    grid->addWidget(slider, at, 1);
    grid->addWidget(factor, at, 2);
    connect(slider, &QSlider::valueChanged, this, [this, i, factor](int notches) {
      factor->setText(factor_text(factor_of(notches)));
      sim::Speeds speeds = scaling_.speeds();
      speeds.*kSpeeds[i].speed = factor_of(notches);
      scaling_.setSpeeds(speeds);
    });
    sliders_.at(i) = slider;
    factors_.at(i) = factor;
  }
  column->addLayout(grid);
  auto* reset = new QToolButton;
  reset->setText(tr("As the machine is"));
  reset->setToolTip(tr("All speeds as they are"));
  connect(reset, &QToolButton::clicked, this, [this] {
    for (QSlider* slider : sliders_) {
      slider->setValue(0);
    }
  });
  column->addWidget(reset, 0, Qt::AlignLeft);
  answer_->setContentsMargins(0, 2, 0, 0);
  column->addWidget(answer_);
  column->addStretch(1);
  auto* scroll = new QScrollArea;
  scroll->setWidget(inside);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setMinimumWidth(210);
  scroll->setMaximumWidth(340);
  scroll->setFocusPolicy(Qt::NoFocus);
  scroll->setAccessibleName(tr("Speeds of the machine"));
  return scroll;
}

PartBars::Bar ScalingPanel::bar_of(const ScalePoint& point) const {
  PartBars::Bar out;
  out.label = QLocale().toString(qlonglong{point.value});
  out.chosen = point.now;
  out.failed = !point.hasStep();
  if (out.failed) {
    out.text =
        point.error.isEmpty()
            ? tr("does not fit: %1").arg(needText(point.peak, point.reserved, point.available))
            : in_window(point.error);
    out.help = out.text;
    return out;
  }
  const double cost = cost_of(point);
  out.parts = parts_of(point.figures, static_cast<double>(point.figures.duration()) / cost);
  out.text = tr("%1 · %2").arg(cost_text(cost), limits_text(point.limits));
  out.help = tr("%1 of GPU time a token, %2 tokens/s, step %3\nbound by %4")
                 .arg(cost_text(cost), rate_text(point.tokens_per_s),
                      durationText(point.figures.duration()), limits_text(point.limits));
  return out;
}

void ScalingPanel::show() {
  const std::vector<ScalePoint>& points = scaling_.points();
  model_.reset(points.size());
  std::vector<PartBars::Bar> bars;
  for (const ScalePoint& point : points) {
    bars.push_back(bar_of(point));
  }
  bars_->show(std::move(bars));
  if (points.size() != shown_) {
    shown_ = points.size();
    fitColumns();
    widthChanged();
  }
  showAnswer();
}

void ScalingPanel::showAnswer() {
  if (!session().isOpen()) {
    answer_->setText(session().isObserving() ? tr("The machine is calibrated from the run …")
                                             : with_breaks(in_window(session().why())));
    return;
  }
  const std::optional<ScalePoint>& now = scaling_.now();
  if (!now) {
    answer_->setText(tr("The plan is predicted …"));
    return;
  }
  if (!now->hasStep()) {
    answer_->setText(with_breaks(now->error.isEmpty()
                                     ? tr("The plan does not fit: %1")
                                           .arg(needText(now->peak, now->reserved, now->available))
                                     : in_window(now->error)));
    return;
  }
  const PlanVersion* version = session().current();
  QString change;
  if (version != nullptr && version->hasStep() && scaling_.speeds() != sim::Speeds{}) {
    change = tr(" (%1)").arg(changeText(static_cast<double>(now->figures.duration()),
                                        static_cast<double>(version->step())));
  }
  answer_->setText(
      tr("Step %1%2, bound by %3")
          .arg(durationText(now->figures.duration()), change, limits_text(now->limits)));
}

}  // namespace

PanelPointer make_scaling_panel(const PanelContext& context) {
  return std::make_unique<ScalingPanel>(context);
}

}  // namespace shardlens::gui
