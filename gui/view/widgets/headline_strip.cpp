#include "gui/view/widgets/headline_strip.h"

#include <QComboBox>
#include <QHBoxLayout>
#include <QLabel>
#include <QPainter>
#include <QSignalBlocker>

#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_notes.h"
#include "gui/view/widgets/painter_canvas.h"
#include "profiler/report/table.h"

namespace shardlens::gui {

HeadlineBar::HeadlineBar(QWidget* parent) : QWidget(parent), theme_(&Theme::light()) {
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Fixed);
  setAccessibleName(tr("Headline"));
}

void HeadlineBar::setTheme(const Theme& theme) {
  theme_ = &theme;
  update();
}

QSize HeadlineBar::minimumSizeHint() const {
  return {400, fontMetrics().height() + 26};
}

std::vector<HeadlineBar::Part> HeadlineBar::parts() const {
  return {{tr("compute"), tr("compute"), Ink::kCompute, figures_.compute},
          {tr("exposed communication"), tr("exposed comm"), Ink::kExposed, figures_.exposed_comm},
          {tr("exposed copies"), tr("copies"), Ink::kCopy, figures_.exposed_copy},
          {tr("idle"), tr("idle"), Ink::kIdle, figures_.idle}};
}

QString HeadlineBar::text() const {
  if (!problem_.isEmpty()) {
    return problem_;
  }
  QStringList terms;
  for (const Part& part : parts()) {
    terms.append(QStringLiteral("%1 %2").arg(
        part.name, QString::fromStdString(report::format_duration(part.time))));
  }
  return tr("%1 %2 = %3")
      .arg(title_, QString::fromStdString(report::format_duration(figures_.duration())),
           terms.join(QStringLiteral(" + ")));
}

void HeadlineBar::show(const QString& title,
                       const analysis::WindowFigures& figures,
                       const QString& note) {
  title_ = title;
  figures_ = figures;
  note_ = note;
  problem_.clear();
  setAccessibleDescription(text());
  update();
}

void HeadlineBar::showProblem(const QString& text) {
  show({}, {}, {});
  problem_ = text;
  setAccessibleDescription(text);
  setToolTip(text);
}

// The headline as one line, written from left to right: first only measured, then drawn.
class HeadlineBar::Line {
 public:
  // 0: full names and shares; 1: short names and shares; 2: short names; 3: no names (they are in
  // the tooltip); 4: only the total.
  static constexpr int kShares = 2, kNames = 3, kShortest = 4;

  Line(const HeadlineBar& bar, Canvas& canvas)
      : bar_(bar), canvas_(canvas), parts_(bar.parts()), plain_(bar.font()), strong_(bold(bar)) {}
  [[nodiscard]] double height() const { return plain_.height() + 4; }
  [[nodiscard]] double advance(const QString& text) const { return plain_.horizontalAdvance(text); }

  // Returns where the line ends.
  double write(int terse, bool drawn) {
    x_ = 4;
    drawn_ = drawn;
    say(bar_.title_ + u' ', Ink::kFaintText, false);
    say(QString::fromStdString(report::format_duration(bar_.figures_.duration())), Ink::kText,
        true);
    if (terse == kShortest) {
      return x_;
    }
    say(QStringLiteral(" = "), Ink::kFaintText, false);
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (i > 0) {
        say(QStringLiteral(" + "), Ink::kFaintText, false);
      }
      writePart(parts_[i], terse);
    }
    return x_;
  }

 private:
  static QFont bold(const HeadlineBar& bar) {
    QFont font = bar.font();
    font.setBold(true);
    return font;
  }
  void say(const QString& text, Ink ink, bool heavy) {
    const double wide = (heavy ? strong_ : plain_).horizontalAdvance(text);
    if (drawn_) {
      canvas_.text({x_, 2, wide + 2, height()}, text, ink, Qt::AlignLeft | Qt::AlignVCenter, heavy);
    }
    x_ += wide;
  }
  void writePart(const Part& part, int terse) {
    const QRectF key(x_, 2 + height() / 2 - 5, 10, 10);
    if (drawn_) {
      canvas_.fill(key, part.ink, part.ink == Ink::kExposed ? 0.45 : 1);
      if (part.ink == Ink::kExposed) {
        canvas_.hatch(key, Ink::kExposed);
      }
    }
    x_ += 14;
    if (terse < kNames) {
      say((terse > 0 ? part.brief : part.name) + u' ', Ink::kFaintText, false);
    }
    say(QString::fromStdString(report::format_duration(part.time)), Ink::kText, true);
    if (terse < kShares) {
      const double share =
          static_cast<double>(part.time) / static_cast<double>(bar_.figures_.duration());
      say(QStringLiteral(" (%1)").arg(QString::fromStdString(report::format_percent(share))),
          Ink::kFaintText, false);
    }
  }
  const HeadlineBar& bar_;
  Canvas& canvas_;
  std::vector<Part> parts_;
  QFontMetricsF plain_, strong_;
  double x_ = 0;
  bool drawn_ = false;
};

void HeadlineBar::drawBar(Canvas& canvas, const QRectF& bar) const {
  double at = bar.left();
  for (const Part& part : parts()) {
    const double wide =
        bar.width() * static_cast<double>(part.time) / static_cast<double>(figures_.duration());
    const QRectF area(at, bar.top(), wide, bar.height());
    canvas.fill(area, part.ink, part.ink == Ink::kExposed ? 0.45 : 1);
    if (part.ink == Ink::kExposed && wide > 1) {
      canvas.hatch(area, Ink::kExposed);
    }
    at += wide;
  }
}

void HeadlineBar::paintEvent(QPaintEvent* /*event*/) {
  QPainter painter(this);
  painter.setFont(font());
  PainterCanvas canvas(painter, *theme_);
  canvas.fill(rect(), Ink::kPanel, 1);
  if (!problem_.isEmpty()) {
    canvas.text(rect().adjusted(4, 0, 0, 0), problem_, Ink::kWarning,
                Qt::AlignLeft | Qt::AlignVCenter, true);
    return;
  }
  if (figures_.duration() == 0) {
    canvas.text(rect().adjusted(4, 0, 0, 0), title_, Ink::kFaintText,
                Qt::AlignLeft | Qt::AlignVCenter, false);
    return;
  }
  Line line(*this, canvas);
  int terse = 0;
  for (; terse < Line::kShortest; ++terse) {  // the note is dropped before the names are
    const double room = terse < Line::kShares ? 12 + line.advance(note_) : 4;
    if (line.write(terse, false) + room < width()) {
      break;
    }
  }
  const double end = line.write(terse, true);
  setToolTip(text() + u'\n' + note_);
  const double left = width() - end - 12;
  if (line.advance(note_) < left) {
    canvas.text({end, 2, left, line.height()}, note_, Ink::kText, Qt::AlignRight | Qt::AlignVCenter,
                false);
  }
  drawBar(canvas, {4, line.height() + 5, width() - 12.0, 10});
}

HeadlineStrip::HeadlineStrip(SelectionContext& context, QWidget* parent)
    : QWidget(parent),
      context_(context),
      ranks_(new QComboBox(this)),
      steps_(new QComboBox(this)),
      bar_(new HeadlineBar(this)) {
  auto* row = new QHBoxLayout(this);
  row->setContentsMargins(8, 4, 4, 4);
  row->addWidget(ranks_);
  row->addWidget(steps_);
  row->addWidget(bar_, 1);
  ranks_->setAccessibleName(tr("Rank"));
  steps_->setAccessibleName(tr("Step"));
  ranks_->setSizeAdjustPolicy(QComboBox::AdjustToContents);
  steps_->setSizeAdjustPolicy(QComboBox::AdjustToContents);
  connect(&context_, &SelectionContext::runChanged, this, &HeadlineStrip::fill);
  connect(&context_, &SelectionContext::changed, this, &HeadlineStrip::update);
  connect(ranks_, &QComboBox::activated, this,
          [this](int index) { context_.selectRank(static_cast<size_t>(index)); });
  connect(steps_, &QComboBox::activated, this, [this](int index) {
    context_.selectStep(index == 0 ? std::nullopt : std::optional(static_cast<size_t>(index - 1)));
  });
  fill();
}

void HeadlineStrip::fill() {
  const QSignalBlocker quiet_ranks(ranks_), quiet_steps(steps_);
  ranks_->clear();
  steps_->clear();
  if (context_.run() != nullptr) {
    for (const auto& rank : context_.run()->ranks) {
      ranks_->addItem(tr("rank %1").arg(rank->figures.rank));
    }
  }
  update();
}

void HeadlineStrip::update() {
  const RankData* rank = context_.rank();
  if (rank == nullptr) {
    bar_->show(tr("No run is open"), {}, {});
    return;
  }
  const QSignalBlocker quiet_ranks(ranks_), quiet_steps(steps_);
  ranks_->setCurrentIndex(static_cast<int>(context_.current().rank));
  steps_->clear();
  steps_->addItem(rank->figures.steps.empty()
                      ? tr("whole trace")
                      : tr("all steps: %1").arg(rank->figures.steps.size()));
  for (const analysis::StepAnalysis& step : rank->figures.steps) {
    steps_->addItem(tr("step %1").arg(step.step));
  }
  steps_->setCurrentIndex(context_.current().step ? static_cast<int>(*context_.current().step) + 1
                                                  : 0);
  showRange(std::nullopt);
}

void HeadlineStrip::showRange(std::optional<analysis::Interval> range) {
  const RankData* rank = context_.rank();
  if (rank == nullptr) {
    return;
  }
  if (!context_.run()->unfit.isEmpty()) {
    bar_->showProblem(tr("The simulated plan %1. It has no step.").arg(context_.run()->unfit));
    return;
  }
  const bool dragged = range.has_value();
  const auto chosen = dragged ? range : context_.current().range;
  analysis::WindowFigures figures;
  QString title = rank->figures.steps.empty() ? tr("trace") : tr("steps");
  if (dragged) {
    figures = rank->live.within(context_.run()->own(*rank, *range));
  } else {
    figures = rank->partition.figures(context_.window());
  }
  if (chosen) {
    title = tr("range");
  } else if (context_.current().step) {
    title = tr("step");
  }
  QString note = tr("communication hidden %1")
                     .arg(QString::fromStdString(report::format_percent(figures.overlap_ratio())));
  for (const analysis::MemoryFigures& memory : rank->figures.memory) {
    if (memory.device.starts_with("cuda") && !memory.from_driver) {
      note += tr("  │  peak %1").arg(bytesText(memory.peak.allocated));
    }
  }
  bar_->show(is_simulated(*context_.run()) ? tr("simulated %1").arg(title) : title, figures, note);
}

}  // namespace shardlens::gui
