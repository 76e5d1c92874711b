#include "gui/view/panel_parts/module_bar.h"

#include <algorithm>

#include <QHBoxLayout>
#include <QMenu>
#include <QToolButton>

#include "gui/model/base/in_window.h"
#include "gui/model/what_if/module_edits.h"

namespace shardlens::gui {
namespace {

constexpr size_t kButtons = 5;  // the most used keys; the others are in a menu of one more

QString name_of(const std::vector<std::string>& modules) {
  const QString first = QString::fromStdString(unit_label(modules.front()));
  return modules.size() == 1 ? first
                             : QObject::tr("%1 and %2 more").arg(first).arg(modules.size() - 1);
}

}  // namespace

ModuleBar::ModuleBar(PlanSession& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* row = new QHBoxLayout(this);
  row->setContentsMargins(6, 3, 6, 3);
  row->setSpacing(4);
  const std::vector<PlanKnob> knobs = module_knobs({}, 1, {});
  for (size_t knob = 0; knob < std::min(kButtons, knobs.size()); ++knob) {
    row->addWidget(addButton(knobs[knob].title, knobs[knob].help));
    menus_.push_back(buttons_.back()->menu());
  }
  QToolButton* more = addButton(tr("More"), tr("Checkpoints, frozen parameters and further keys"));
  row->addWidget(more);
  for (size_t knob = menus_.size(); knob < knobs.size(); ++knob) {
    menus_.push_back(more->menu()->addMenu(knobs[knob].title));
    menus_.back()->setToolTipsVisible(true);
  }
  for (size_t knob = 0; knob < menus_.size(); ++knob) {
    connect(menus_[knob], &QMenu::aboutToShow, this, [this, knob] { fill(knob); });
  }
  row->addStretch(1);
  connect(&session_, &PlanSession::stateChanged, this, &ModuleBar::update);
  update();
}

QToolButton* ModuleBar::addButton(const QString& title, const QString& help) {
  auto* button = new QToolButton;
  button->setText(title.section(" in ", 0, 0));  // the tooltip says when
  button->setAccessibleName(tr("Edit the plan: %1").arg(title));
  button->setAccessibleDescription(help);
  button->setPopupMode(QToolButton::InstantPopup);
  button->setFocusPolicy(Qt::StrongFocus);
  auto* menu = new QMenu(button);
  menu->setToolTipsVisible(true);
  button->setMenu(menu);
  buttons_.push_back(button);
  return button;
}

void ModuleBar::setModules(const std::vector<std::string>& modules) {
  modules_ = modules;
  update();
}

// Why nothing can be edited; "": editing is possible.
QString ModuleBar::refusal() const {
  if (session_.isOpen()) {
    return modules_.empty() ? tr("Choose a module first") : QString();
  }
  if (session_.isObserving()) {
    return tr("Calibrating from the run");
  }
  return session_.why().isEmpty() ? tr("No run is open") : in_window(session_.why());
}

void ModuleBar::update() {
  const QString why = refusal();
  for (QToolButton* button : buttons_) {
    button->setEnabled(why.isEmpty());
    button->setToolTip(
        why.isEmpty() ? tr("%1: %2").arg(name_of(modules_), button->accessibleDescription()) : why);
  }
}

QMenu& ModuleBar::menu(size_t knob) {
  fill(knob);
  return *menus_[knob];
}

void ModuleBar::fill(size_t knob) {
  QMenu* menu = menus_[knob];
  menu->clear();
  if (!session_.isOpen() || modules_.empty()) {
    return;
  }
  const PlanState& state = session_.state();
  const PlanKnob of = module_knobs(session_.tree(), state.world_size, modules_)[knob];
  for (const PlanKnob::Choice& choice : of.choices) {
    PlanState next = state;
    const bool held = choice.holds(state);
    QString refusal;
    try {
      choice.apply(next);
    } catch (const std::exception& error) {
      refusal = QString::fromStdString(error.what());
    }
    if (!held && refusal.isEmpty() && next == state) {
      refusal = tr("The module is not a unit: make it one first.");
    }
    const PlanStanding standing = standing_of(next.plan, session_.tree(), state.world_size);
    if (refusal.isEmpty() && !standing.resolves) {
      refusal = standing.why;
    }
    QString text = choice.label;
    if (refusal.isEmpty() && !standing.why.isEmpty()) {
      text = tr("%1   (not supported by the engine yet)").arg(choice.label);
    }
    QAction* action = menu->addAction(text);
    action->setCheckable(true);
    action->setChecked(held);
    action->setEnabled(held || refusal.isEmpty());
    action->setToolTip(!refusal.isEmpty()        ? refusal
                       : !standing.why.isEmpty() ? standing.why
                                                 : of.help);
    connect(action, &QAction::triggered, this, [this, next, title = of.title, choice] {
      session_.edit(QStringLiteral("%1 %2: %3").arg(name_of(modules_), title, choice.label), next);
    });
  }
}

}  // namespace shardlens::gui
