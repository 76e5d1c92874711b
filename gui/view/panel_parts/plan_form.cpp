#include "gui/view/panel_parts/plan_form.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <QAbstractItemView>
#include <QComboBox>
#include <QEvent>
#include <QFormLayout>
#include <QKeyEvent>
#include <QLabel>
#include <QScrollBar>
#include <QSignalBlocker>
#include <QSpinBox>
#include <QStyleOptionComboBox>
#include <QStylePainter>

#include "gui/model/what_if/module_edits.h"
#include "gui/view/widgets/spec_file.h"

namespace shardlens::gui {
namespace {

// Calls `about_to_show` before its list opens. The list is as wide as its text; the box may be
// narrower.
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

// Undo and redo are those of the plan, unless a number is being typed: a line of text has its own
// and would take these keys otherwise.
class NumberBox : public QSpinBox {
 protected:
  bool event(QEvent* event) override {
    if (event->type() == QEvent::ShortcutOverride && valueFromText(text()) == value()) {
      const auto* key = static_cast<QKeyEvent*>(event);
      if (key->matches(QKeySequence::Undo) || key->matches(QKeySequence::Redo) ||
          (key->key() == Qt::Key_Y && key->modifiers() == Qt::ControlModifier)) {
        event->ignore();
        return true;
      }
    }
    return QSpinBox::event(event);
  }
};

// As wide as its texts, but not wider than kWidestText; the rest of a longer one is elided. Marks
// that are later added after the texts do not widen it.
void fitList(QComboBox* box) {
  constexpr int kWidestText = 150, kArrow = 34;  // pixels
  int widest = 0;
  for (int i = 0; i < box->count(); ++i) {
    widest = std::max(widest, box->fontMetrics().horizontalAdvance(box->itemText(i)));
  }
  box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  box->setMinimumContentsLength(8);
  box->setMinimumWidth(std::min(widest, kWidestText) + kArrow);
}

// Index in the list of optimizers: AdamW, SGD with momentum, SGD.
int indexOf(const plan::StepSettings& step) {
  return step.optimizer == plan::Optimizer::kAdamW ? 0 : step.momentum > 0 ? 1 : 2;
}

void setOptimizer(plan::StepSettings& step, int index) {
  const plan::StepSettings usual;
  step.optimizer = index == 0 ? plan::Optimizer::kAdamW : plan::Optimizer::kSgd;
  step.momentum = index == 2 ? 0 : step.momentum > 0 ? step.momentum : usual.momentum;
}

}  // namespace

PlanForm::PlanForm(PlanSession& session, QWidget* parent)
    : QScrollArea(parent), session_(session), box_(new QWidget), form_(new QFormLayout(box_)) {
  setWidget(box_);
  setWidgetResizable(true);
  setFrameShape(QFrame::NoFrame);
  setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  setFocusPolicy(Qt::NoFocus);
  form_->setContentsMargins(8, 6, 8, 6);
  box_->installEventFilter(this);
  connect(&session_, &PlanSession::stateChanged, this, &PlanForm::update);
  connect(&session_, &PlanSession::simulatedOne, this, &PlanForm::update);
  update();
}

void PlanForm::addField(const QString& title, QWidget* box) {
  box->installEventFilter(this);
  box->setFocusPolicy(Qt::StrongFocus);  // the wheel does not give it the focus
  form_->addRow(title, box);
}

// The form scrolls only vertically, so it must be as wide as its content. The wheel scrolls it,
// also over a box: there it would edit the plan unnoticed.
bool PlanForm::eventFilter(QObject* object, QEvent* event) {
  if (event->type() == QEvent::Wheel && box_->isAncestorOf(qobject_cast<QWidget*>(object))) {
    event->ignore();
    return true;
  }
  if (object == box_ && event->type() == QEvent::LayoutRequest) {
    fitWidth();
  }
  return QScrollArea::eventFilter(object, event);
}

void PlanForm::fitWidth() {
  setMinimumWidth(box_->minimumSizeHint().width() + verticalScrollBar()->sizeHint().width());
}

void PlanForm::rebuild() {
  while (form_->rowCount() > 0) {
    form_->removeRow(0);
  }
  knobs_.clear();
  machine_ = nullptr;
  if (session_.isOpen()) {
    // The mesh next to the number of ranks; what is changed less often comes last.
    using enum PlanKnob::Section;
    addKnobs(kPlan, {});
    addKnobs(kMesh, tr("Mesh"));
    addHeading(tr("Machine and step"));
    addMachine();
    addKnobs(kMachine, {});
    addPower();
    addStep();
    addKnobs(kMemory, tr("Memory"));
    addKnobs(kSoftware, tr("Software"));
    addKnobs(kCommunication, tr("Communication"));
    addKnobs(kPrecision, tr("Precision of units"));
    addKnobs(kReplicated, tr("Replicated units"));
  }
  fitWidth();  // a panel that is not shown yet gets no request to lay out its form
}

void PlanForm::addHeading(const QString& title) {
  auto* label = new QLabel(title);
  QFont bold = label->font();
  bold.setBold(true);
  label->setFont(bold);
  label->setContentsMargins(0, 8, 0, 0);
  form_->addRow(label);
}

void PlanForm::addKnobs(PlanKnob::Section section, const QString& title) {
  if (!title.isEmpty()) {
    addHeading(title);
  }
  knobs_.resize(session_.knobs().size());
  for (size_t i = 0; i < session_.knobs().size(); ++i) {
    const PlanKnob& knob = session_.knobs()[i];
    if (knob.section != section) {
      continue;
    }
    auto* box = new KnobBox([this, i] { markChoices(i); });
    box->setAccessibleName(knob.title);
    box->setToolTip(knob.help);
    for (const PlanKnob::Choice& choice : knob.choices) {
      box->addItem(choice.label);
    }
    fitList(box);
    connect(box, &QComboBox::activated, this, [this, i](int choice) {
      if (choice < static_cast<int>(session_.knobs()[i].choices.size())) {
        session_.choose(i, static_cast<size_t>(choice));
      }
    });
    addField(knob.title, box);
    knobs_[i] = box;
  }
}

void PlanForm::addMachine() {
  machines_ = machine_choices(session_.subject());
  own_machines_ = machines_.size();
  auto* box = new KnobBox([this] {
    for (size_t i = 0; i < machines_.size(); ++i) {
      PlanState next = session_.state();
      next.machine = machines_[i].name;
      const auto [why, suffix, possible] = standing_of(session_, next);
      const int item = static_cast<int>(i);
      machine_->setItemText(item, machines_[i].label + suffix);
      machine_->setItemData(item, why.isEmpty() ? machines_[i].help : why, Qt::ToolTipRole);
    }
  });
  box->setAccessibleName(tr("Machine"));
  for (const MachineChoice& each : machines_) {
    box->addItem(each.label);
    box->setItemData(box->count() - 1, each.help, Qt::ToolTipRole);
  }
  if (session_.subject().of_config != nullptr) {
    box->addItem(tr("a spec file …"));
    box->setItemData(box->count() - 1,
                     tr("Simulate on a machine of your own: a file of its GPUs, links and number "
                        "of nodes"),
                     Qt::ToolTipRole);
  }
  fitList(box);
  box->setPlaceholderText(tr("choose one"));
  connect(box, &QComboBox::activated, this, [this](int index) {
    const auto chosen = static_cast<size_t>(index);
    if (chosen < machines_.size()) {
      chooseMachine(machines_[chosen].name);
    } else {
      update();  // the list shows the machine of the plan
      choose_spec_file(*this, [this](const QString& path) { chooseMachine(path); });
    }
  });
  machine_ = box;
  addField(tr("Machine"), box);
}

void PlanForm::chooseMachine(const QString& name) {
  PlanState next = session_.state();
  next.machine = name;
  session_.edit(tr("Machine: %1").arg(machineText(name)), next);
}

QSpinBox* PlanForm::addNumber(const QString& title,
                              int most,
                              std::function<void(PlanState&, int)> set) {
  auto* box = new NumberBox;
  box->setRange(1, most);
  box->setAccessibleName(title);
  box->setKeyboardTracking(false);
  connect(box, &QSpinBox::valueChanged, this, [this, box, title, set = std::move(set)](int value) {
    PlanState next = session_.state();
    set(next, value);
    session_.edit(QStringLiteral("%1: %2").arg(
                      title, value == box->minimum() && !box->specialValueText().isEmpty()
                                 ? box->specialValueText()
                                 : QString::number(value)),
                  next);
  });
  addField(title, box);
  return box;
}

QComboBox* PlanForm::addList(const QString& title,
                             const QString& help,
                             const std::vector<QString>& labels,
                             std::function<void(PlanState&, int)> set) {
  auto* box = new QComboBox;
  box->setAccessibleName(title);
  box->setToolTip(help);
  for (const QString& label : labels) {
    box->addItem(label);
  }
  fitList(box);
  connect(box, &QComboBox::activated, this, [this, title, labels, set = std::move(set)](int index) {
    PlanState next = session_.state();
    set(next, index);
    session_.edit(QStringLiteral("%1: %2").arg(title, labels[static_cast<size_t>(index)]), next);
  });
  addField(title, box);
  return box;
}

void PlanForm::addPower() {
  constexpr int kMostWatts = 5000, kWattsAStep = 50;
  power_ = addNumber(tr("Power limit"), kMostWatts, [](PlanState& s, int v) {
    s.power_watts = v > 0 ? std::optional<double>(v) : std::nullopt;
  });
  const QSignalBlocker quiet(power_);
  power_->setMinimum(0);
  power_->setSingleStep(kWattsAStep);
  power_->setSpecialValueText(tr("the vendor's"));
  power_->setSuffix(tr(" W"));
  power_->setToolTip(tr("Of each GPU, below its vendor's: products and attention become slower"));
}

void PlanForm::addStep() {
  ranks_ = addNumber(tr("Ranks"), 1024, [](PlanState& s, int v) { s.world_size = v; });
  batch_ = addNumber(tr("Batch"), 4096, [](PlanState& s, int v) { s.step.batch = v; });
  seq_ = addNumber(tr("Sequence"), 1 << 20, [](PlanState& s, int v) { s.step.seq = v; });
  seq_->setSuffix(tr(" tokens"));
  accumulate_ =
      addNumber(tr("Microbatches"), 4096, [](PlanState& s, int v) { s.step.accumulate = v; });
  sync_ = addList(tr("Reduced"), tr("Which microbatches reduce gradients"),
                  {tr("every microbatch"), tr("the last microbatch")},
                  [](PlanState& s, int v) { s.step.sync_every_microbatch = v == 0; });
  optimizer_ = addList(tr("Optimizer"), tr("Its reads, writes and state count in time and memory"),
                       {tr("AdamW"), tr("SGD with momentum"), tr("SGD")},
                       [](PlanState& s, int v) { setOptimizer(s.step, v); });
  const bool known = session_.subject().of_config != nullptr;
  const QString why =
      known
          ? QString()
          : tr("As recorded: the traces do not contain the model's configuration, so other values "
               "cannot be simulated");
  for (QWidget* box : {static_cast<QWidget*>(batch_), static_cast<QWidget*>(seq_),
                       static_cast<QWidget*>(optimizer_)}) {
    box->setEnabled(known);
    box->setToolTip(why);
  }
}

void PlanForm::markChoices(size_t knob) {
  const std::vector<PlanKnob::Choice>& choices = session_.knobs()[knob].choices;
  for (size_t c = 0; c < choices.size(); ++c) {
    PlanState next = session_.state();
    choices[c].apply(next);
    const auto [why, suffix, possible] = standing_of(session_, next);
    const int item = static_cast<int>(c);
    knobs_[knob]->setItemText(item, choices[c].label + suffix);
    knobs_[knob]->setItemData(item, why.isEmpty() ? QVariant() : QVariant(why), Qt::ToolTipRole);
  }
}

void PlanForm::update() {
  std::vector<QString> titles;
  for (const PlanKnob& knob : session_.knobs()) {
    titles.push_back(knob.title);
  }
  const bool other_machines = session_.isOpen() && machine_ != nullptr &&
                              machine_choices(session_.subject()).size() != own_machines_;
  if (titles != titles_ || other_machines || session_.versions().empty()) {
    rebuild();
    titles_ = titles;
  }
  if (!session_.isOpen()) {
    return;
  }
  const PlanState& state = session_.state();
  for (size_t i = 0; i < knobs_.size(); ++i) {
    const QSignalBlocker quiet(knobs_[i]);
    const auto& choices = session_.knobs()[i].choices;
    while (knobs_[i]->count() > static_cast<int>(choices.size())) {  // they depend on the ranks
      knobs_[i]->removeItem(knobs_[i]->count() - 1);
    }
    for (int c = 0; c < static_cast<int>(choices.size()); ++c) {
      const QString& label = choices[static_cast<size_t>(c)].label;
      c < knobs_[i]->count() ? knobs_[i]->setItemText(c, label) : knobs_[i]->addItem(label);
    }
    const auto held = std::find_if(choices.begin(), choices.end(),
                                   [&](const PlanKnob::Choice& c) { return c.holds(state); });
    knobs_[i]->setCurrentIndex(held == choices.end() ? -1
                                                     : static_cast<int>(held - choices.begin()));
    knobs_[i]->setPlaceholderText(tr("as in the plan file"));
    knobs_[i]->setToolTip(tr("%1: %2").arg(
        session_.knobs()[i].help, held == choices.end() ? tr("as in the plan file") : held->label));
  }
  const QSignalBlocker quiet_machine(machine_), quiet_batch(batch_), quiet_seq(seq_),
      quiet_ranks(ranks_), quiet_accumulate(accumulate_), quiet_sync(sync_),
      quiet_optimizer(optimizer_), quiet_power(power_);
  // A file stays in the list, so that one can return to it.
  const auto choices = machine_choices(session_.subject(), state.machine);
  if (choices.size() > own_machines_ &&
      std::ranges::find(machines_, choices.back()) == machines_.end()) {
    machine_->insertItem(static_cast<int>(machines_.size()), choices.back().label);
    machine_->setItemData(static_cast<int>(machines_.size()), choices.back().help, Qt::ToolTipRole);
    machines_.push_back(choices.back());
  }
  int machine = -1;
  for (size_t i = 0; i < machines_.size(); ++i) {
    machine_->setItemText(static_cast<int>(i), machines_[i].label);
    machine = machines_[i].name == state.machine ? static_cast<int>(i) : machine;
  }
  machine_->setCurrentIndex(machine);
  machine_->setToolTip(machineText(state.machine));
  power_->setValue(static_cast<int>(std::lround(state.power_watts.value_or(0))));
  ranks_->setValue(static_cast<int>(state.world_size));
  batch_->setValue(static_cast<int>(state.step.batch));
  seq_->setValue(static_cast<int>(state.step.seq.value_or(1)));
  accumulate_->setValue(static_cast<int>(state.step.accumulate));
  sync_->setCurrentIndex(state.step.sync_every_microbatch ? 0 : 1);
  sync_->setEnabled(state.step.accumulate > 1);
  optimizer_->setCurrentIndex(indexOf(state.step));
}

}  // namespace shardlens::gui
