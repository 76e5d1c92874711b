#include "gui/view/what_if_panel.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <QComboBox>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLocale>
#include <QPainter>
#include <QScrollArea>
#include <QScrollBar>
#include <QSignalBlocker>
#include <QSpinBox>
#include <QStyleOptionComboBox>
#include <QStylePainter>
#include <QTableView>
#include <QVBoxLayout>

#include "core/base/format_bytes.h"
#include "gui/model/module_edits.h"
#include "gui/model/time_axis.h"
#include "gui/view/delegates.h"
#include "gui/view/painter_canvas.h"
#include "profiler/report/table.h"
#include "sim/hardware/hardware_spec.h"

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
  // The most important first: those that find no room are hidden from the last on.
  return {{QObject::tr("#"), [](size_t r) { return QStringLiteral("v%1").arg(r); },
           [](size_t r) { return static_cast<double>(r); }},
          {QObject::tr("Change"), [of](size_t r) { return of(r).title; }},
          {QObject::tr("Step"), figure([](const PlanVersion& v) { return durationText(v.step); }),
           [of](size_t r) { return static_cast<double>(of(r).step); }, true},
          {QObject::tr("Δ step"), figure([base](const PlanVersion& v) {
             return changeText(static_cast<double>(v.step), static_cast<double>(base().step));
           }),
           nullptr, true, QObject::tr("Against v0, simulated as well")},
          {QObject::tr("Off by"), figure([&session](const PlanVersion&) {
             return session.baseline() && session.baseline()->device ? baselineText(session)
                                                                     : QStringLiteral("–");
           }),
           nullptr, true,
           QObject::tr("The simulator's error on v0, the plan as it ran, whose step was measured")},
          {QObject::tr("Peak"), figure([](const PlanVersion& v) {
             return bytes_text(v.peak) + (v.fits ? QString() : QObject::tr(" ✗"));
           }),
           [of](size_t r) { return static_cast<double>(of(r).peak); }, true,
           QObject::tr("Allocated on the rank that needs most; ✗: more than the device has")},
          {QObject::tr("Δ peak"), figure([base](const PlanVersion& v) {
             return changeText(static_cast<double>(v.peak), static_cast<double>(base().peak));
           }),
           nullptr, true},
          {QObject::tr("Engine"),
           [of](size_t r) {
             return !of(r).error.isEmpty()   ? QObject::tr("refused: %1").arg(of(r).error)
                    : of(r).engine.isEmpty() ? QObject::tr("runs it")
                                             : QObject::tr("cannot run it yet");
           }},
          {QObject::tr("Exposed"),
           figure([](const PlanVersion& v) { return durationText(v.busy.exposed_comm); }),
           [of](size_t r) { return static_cast<double>(of(r).busy.exposed_comm); }, true},
          {QObject::tr("Tokens/s"),
           figure([](const PlanVersion& v) { return QLocale().toString(v.tokens_per_s, 'f', 0); }),
           [of](size_t r) { return of(r).tokens_per_s; }, true},
          {QObject::tr("Hardware"), [of](size_t r) { return of(r).state.hardware; }}};
}

// Scrolls up and down alone: as wide as what it holds.
class TallArea : public QScrollArea {
 protected:
  bool eventFilter(QObject* object, QEvent* event) override {
    if (object == widget() && event->type() == QEvent::LayoutRequest) {
      setMinimumWidth(widget()->minimumSizeHint().width() +
                      verticalScrollBar()->sizeHint().width());
    }
    return QScrollArea::eventFilter(object, event);
  }
};

// Tells before its list opens, which is as wide as what it says; the box itself may be narrower.
class KnobBox : public QComboBox {
 public:
  explicit KnobBox(std::function<void()> about_to_show) : tell_(std::move(about_to_show)) {}
  void showPopup() override {
    tell_();
    view()->setMinimumWidth(view()->sizeHintForColumn(0) + 2 * view()->frameWidth() + 12);
    QComboBox::showPopup();
  }

 protected:
  void paintEvent(QPaintEvent* /*event*/) override {
    QStylePainter painter(this);
    QStyleOptionComboBox option;
    initStyleOption(&option);
    if (currentIndex() < 0) {
      option.currentText = placeholderText();
      option.palette.setBrush(QPalette::ButtonText, palette().placeholderText());
    }
    painter.drawComplexControl(QStyle::CC_ComboBox, option);
    const int room =
        style()
            ->subControlRect(QStyle::CC_ComboBox, &option, QStyle::SC_ComboBoxEditField, this)
            .width();
    option.currentText = fontMetrics().elidedText(option.currentText, Qt::ElideRight, room - 4);
    painter.drawControl(QStyle::CE_ComboBoxLabel, option);
  }

 private:
  std::function<void()> tell_;
};

}  // namespace

std::vector<size_t> pareto(const std::vector<PlanVersion>& versions) {
  std::vector<size_t> order;
  for (size_t i = 0; i < versions.size(); ++i) {
    if (versions[i].error.isEmpty()) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(versions[a].step, versions[a].peak) <
           std::pair(versions[b].step, versions[b].peak);
  });
  std::vector<size_t> out;
  for (const size_t i : order) {
    if (out.empty() || versions[i].peak < versions[out.back()].peak) {
      out.push_back(i);
    }
  }
  return out;
}

ParetoPlot::ParetoPlot(PlanSession& session, QWidget* parent)
    : QWidget(parent), session_(session), theme_(&Theme::light()) {
  setAccessibleName(tr("Step time against peak memory"));
  connect(&session_, &PlanSession::simulatedOne, this, qOverload<>(&QWidget::update));
  connect(&session_, &PlanSession::stateChanged, this, qOverload<>(&QWidget::update));
}

void ParetoPlot::setTheme(const Theme& theme) {
  theme_ = &theme;
  update();
}

void ParetoPlot::paintEvent(QPaintEvent* /*event*/) {
  QPainter painter(this);
  painter.setFont(font());
  PainterCanvas canvas(painter, *theme_);
  const QRectF area = QRectF(rect()).adjusted(10, 24, -14, -24);
  canvas.fill(rect(), Ink::kBackground, 1);
  canvas.text({6, 2, width() - 12.0, 18}, tr("↑ peak   → step"), Ink::kFaintText,
              Qt::AlignLeft | Qt::AlignVCenter, false);
  const std::vector<PlanVersion>& versions = session_.versions();
  const std::vector<size_t> front = pareto(versions);
  if (front.empty()) {
    return;
  }
  double low_x = 1e300, high_x = 0, low_y = 1e300, high_y = 0;
  for (const PlanVersion& v : versions) {
    if (v.error.isEmpty()) {
      low_x = std::min(low_x, static_cast<double>(v.step));
      high_x = std::max(high_x, static_cast<double>(v.step));
      low_y = std::min(low_y, static_cast<double>(v.peak));
      high_y = std::max(high_y, static_cast<double>(v.peak));
    }
  }
  const auto at = [&](const PlanVersion& v) {
    const double x =
        high_x > low_x ? (static_cast<double>(v.step) - low_x) / (high_x - low_x) : 0.5;
    const double y =
        high_y > low_y ? (static_cast<double>(v.peak) - low_y) / (high_y - low_y) : 0.5;
    return QPointF(area.left() + 12 + x * (area.width() - 24),
                   area.bottom() - 10 - y * (area.height() - 20));
  };
  canvas.line(area.bottomLeft(), area.bottomRight(), Ink::kGrid, false);
  canvas.line(area.bottomLeft(), area.topLeft(), Ink::kGrid, false);
  for (size_t i = 1; i < front.size(); ++i) {
    canvas.line(at(versions[front[i - 1]]), at(versions[front[i]]), Ink::kAccent, true);
  }
  // Versions whose marks lie on one another share a name: "v0 v1".
  struct Mark {
    QPointF at;
    QString name;
    bool chosen = false;
  };
  constexpr double kApart = 9;
  std::vector<Mark> marks;
  for (size_t i = 0; i < versions.size(); ++i) {
    if (!versions[i].error.isEmpty()) {
      continue;
    }
    const QPointF p = at(versions[i]);
    const bool chosen = &versions[i] == session_.current();
    const QRectF mark(p.x() - 4, p.y() - 4, 8, 8);
    canvas.fill(mark, chosen ? Ink::kAccent : Ink::kFaintText, 1);
    if (!versions[i].fits) {
      canvas.frame(mark.adjusted(-3, -3, 3, 3), Ink::kWarning, 1.5);
    }
    const QString name = QStringLiteral("v%1").arg(i);
    const auto near = std::find_if(marks.begin(), marks.end(), [&](const Mark& m) {
      return QPointF(m.at - p).manhattanLength() < kApart;
    });
    if (near == marks.end()) {
      marks.push_back({p, name, chosen});
    } else {
      near->name += u' ' + name;
      near->chosen = near->chosen || chosen;
    }
  }
  std::vector<QRectF> names;
  for (const Mark& mark : marks) {
    QFont bold = font();
    bold.setBold(true);
    const QSizeF size(QFontMetricsF(bold).horizontalAdvance(mark.name) + 2, 16);
    // Beside its mark, within the plot, where no other name stands: versions often lie close.
    const QPointF places[] = {
        {7, -8}, {-7 - size.width(), -8}, {-size.width() / 2, -22}, {-size.width() / 2, 6}};
    QRectF place(mark.at + places[0], size);
    for (const QPointF& offset : places) {
      const QRectF tried(mark.at + offset, size);
      if (tried.right() <= width() && tried.left() >= 0 &&
          std::none_of(names.begin(), names.end(),
                       [&](const QRectF& other) { return other.intersects(tried); })) {
        place = tried;
        break;
      }
    }
    names.push_back(place);
    canvas.text(place, mark.name, Ink::kText, Qt::AlignLeft | Qt::AlignVCenter, mark.chosen);
  }
  const QRectF ends(4, area.bottom() + 3, width() - 8.0, 18);
  canvas.text(ends, durationText(static_cast<Nanoseconds>(low_x)), Ink::kFaintText,
              Qt::AlignLeft | Qt::AlignVCenter, false);
  if (high_x > low_x) {
    canvas.text(ends, durationText(static_cast<Nanoseconds>(high_x)), Ink::kFaintText,
                Qt::AlignRight | Qt::AlignVCenter, false);
  }
}

WhatIfPanel::WhatIfPanel(PlanSession& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      form_box_(new QWidget),
      note_(new QLabel),
      versions_(version_columns(session)),
      table_(new QTableView),
      plot_(new ParetoPlot(session)) {
  auto* scroll = new TallArea;
  scroll->setWidget(form_box_);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  scroll->setFocusPolicy(Qt::NoFocus);
  form_ = new QFormLayout(form_box_);
  form_->setContentsMargins(8, 6, 8, 6);
  note_->setWordWrap(true);
  note_->setContentsMargins(8, 4, 8, 4);
  note_->setTextFormat(Qt::RichText);
  note_->setAccessibleName(tr("What the simulator says"));
  connect(note_, &QLabel::linkActivated, this, [this](const QString& link) {
    link == QStringLiteral("#stop") ? session_.cancel() : session_.simulateNow();
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
  row->addWidget(scroll, 2);
  row->addLayout(right, 6);
  row->addWidget(plot_, 1);
  plot_->setMinimumWidth(120);
  plot_->setMaximumWidth(200);
  connect(&session_, &PlanSession::stateChanged, this, &WhatIfPanel::update);
  connect(&session_, &PlanSession::simulatedOne, this, &WhatIfPanel::update);
  update();
}

void WhatIfPanel::rebuild() {
  while (form_->rowCount() > 0) {
    form_->removeRow(0);
  }
  knobs_.clear();
  hardware_ = nullptr;
  titles_.clear();
  if (!session_.isOpen()) {
    return;
  }
  for (size_t i = 0; i < session_.knobs().size(); ++i) {
    const PlanKnob& knob = session_.knobs()[i];
    auto* box = new KnobBox([this, i] { markChoices(i); });
    box->setAccessibleName(knob.title);
    box->setToolTip(knob.help);
    box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    box->setMinimumContentsLength(8);
    for (const PlanKnob::Choice& choice : knob.choices) {
      box->addItem(choice.label);
    }
    connect(box, &QComboBox::activated, this, [this, i](int choice) {
      if (choice < static_cast<int>(session_.knobs()[i].choices.size())) {
        session_.choose(i, static_cast<size_t>(choice));
      }
    });
    form_->addRow(knob.title, box);
    knobs_.push_back(box);
    titles_.push_back(knob.title);
  }
  hardware_ = new QComboBox;
  hardware_->setAccessibleName(tr("Hardware"));
  for (const std::string& name : sim::hardware_names()) {
    hardware_->addItem(QString::fromStdString(name));
  }
  connect(hardware_, &QComboBox::textActivated, this, [this](const QString& name) {
    PlanState next = session_.state();
    next.hardware = name;
    session_.edit(tr("Hardware: %1").arg(name), next);
  });
  form_->addRow(tr("Hardware"), hardware_);
  const auto spin = [this](const QString& title, int most, auto set) {
    auto* box = new QSpinBox;
    box->setRange(1, most);
    box->setAccessibleName(title);
    box->setKeyboardTracking(false);
    connect(box, &QSpinBox::valueChanged, this, [this, title, set](int value) {
      PlanState next = session_.state();
      set(next, value);
      session_.edit(QStringLiteral("%1: %2").arg(title).arg(value), next);
    });
    form_->addRow(title, box);
    return box;
  };
  ranks_ = spin(tr("Ranks"), 1024, [](PlanState& s, int v) { s.world_size = v; });
  batch_ = spin(tr("Batch"), 4096, [](PlanState& s, int v) { s.batch = v; });
  seq_ = spin(tr("Sequence"), 1 << 20, [](PlanState& s, int v) { s.seq = v; });
  seq_->setSuffix(tr(" tokens"));
}

// What the engine cannot run is still simulated, and says so.
void WhatIfPanel::markChoices(size_t knob) {
  const PlanState& state = session_.state();
  const std::vector<PlanKnob::Choice>& choices = session_.knobs()[knob].choices;
  for (size_t c = 0; c < choices.size(); ++c) {
    plan::Plan plan = state.plan;
    choices[c].apply(plan);
    const PlanStanding standing = standing_of(plan, session_.tree(), state.world_size);
    const int item = static_cast<int>(c);
    knobs_[knob]->setItemText(item, standing.why.isEmpty() ? choices[c].label
                                    : standing.resolves
                                        ? tr("%1   (the engine cannot yet)").arg(choices[c].label)
                                        : tr("%1   (refused)").arg(choices[c].label));
    knobs_[knob]->setItemData(item, standing.why.isEmpty() ? QVariant() : QVariant(standing.why),
                              Qt::ToolTipRole);
  }
}

void WhatIfPanel::resizeEvent(QResizeEvent* event) {
  QWidget::resizeEvent(event);
  fitColumns();
}

// What finds no room is in the rows' tooltips.
void WhatIfPanel::fitColumns() {
  constexpr int kChange = 1, kAlways = 7, kWidestChange = 180;
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

void WhatIfPanel::update() {
  std::vector<QString> titles;
  for (const PlanKnob& knob : session_.knobs()) {
    titles.push_back(knob.title);
  }
  if (titles != titles_ || session_.versions().empty()) {
    rebuild();
  }
  versions_.reset(session_.versions().size());
  if (!session_.isOpen()) {
    note_->setText(session_.why());
    return;
  }
  const PlanState& state = session_.state();
  for (size_t i = 0; i < knobs_.size(); ++i) {
    const QSignalBlocker quiet(knobs_[i]);
    const auto& choices = session_.knobs()[i].choices;
    while (knobs_[i]->count() > static_cast<int>(choices.size())) {  // other ranks, other choices
      knobs_[i]->removeItem(knobs_[i]->count() - 1);
    }
    for (int c = 0; c < static_cast<int>(choices.size()); ++c) {
      const QString& label = choices[static_cast<size_t>(c)].label;
      c < knobs_[i]->count() ? knobs_[i]->setItemText(c, label) : knobs_[i]->addItem(label);
    }
    const auto held = std::find_if(choices.begin(), choices.end(),
                                   [&](const PlanKnob::Choice& c) { return c.holds(state.plan); });
    knobs_[i]->setCurrentIndex(held == choices.end() ? -1
                                                     : static_cast<int>(held - choices.begin()));
    knobs_[i]->setPlaceholderText(tr("as in the plan file"));
    knobs_[i]->setToolTip(tr("%1: %2").arg(
        session_.knobs()[i].help, held == choices.end() ? tr("as in the plan file") : held->label));
  }
  const QSignalBlocker quiet_hardware(hardware_), quiet_batch(batch_), quiet_seq(seq_),
      quiet_ranks(ranks_);
  hardware_->setCurrentText(state.hardware);
  ranks_->setValue(static_cast<int>(state.world_size));
  batch_->setValue(static_cast<int>(state.batch));
  seq_->setValue(static_cast<int>(state.seq));
  QString text;
  if (const auto baseline = session_.baseline()) {
    text = baseline->device
               ? tr("As run: measured %1 a step, simulated %2: the simulator is off by %3 %. ")
                     .arg(durationText(baseline->measured), durationText(baseline->simulated))
                     .arg(100 * baseline->error(), 0, 'f', 1)
               : tr("As run: measured %1 a step on a CPU, simulated %2 on %3: compare versions "
                    "with each other, not with the measurement. ")
                     .arg(durationText(baseline->measured), durationText(baseline->simulated),
                          session_.versions().front().state.hardware);
  } else {
    text = tr("Nothing measured to compare with. ");
  }
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
