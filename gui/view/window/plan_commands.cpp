#include <QFileDialog>
#include <QFileInfo>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/command_adder.h"
#include "gui/view/window/commands.h"

namespace shardlens::gui {
namespace {

void choose_plan(const WindowParts& parts) {
  auto* dialog = new QFileDialog(&parts.window, QObject::tr("Apply a plan file"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setNameFilters({QObject::tr("Plans (*.json)")});
  QObject::connect(dialog, &QFileDialog::fileSelected, &parts.window, [parts](const QString& path) {
    if (!apply_plan(parts, path)) {
      parts.messages.tell(QObject::tr("Apply a plan file"), parts.messages.lastError());
    }
  });
  dialog->open();
}

void save_plan(const WindowParts& parts) {
  auto* dialog = new QFileDialog(&parts.window, QObject::tr("Save the plan"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setAcceptMode(QFileDialog::AcceptSave);
  dialog->setNameFilters({QObject::tr("Plans (*.json)")});
  dialog->setDefaultSuffix(QStringLiteral("json"));
  QObject::connect(dialog, &QFileDialog::fileSelected, &parts.window, [parts](const QString& path) {
    try {
      write_file_atomically(path.toStdString(), parts.session.planJson());
    } catch (const Error& error) {
      parts.messages.tell(QObject::tr("Save the plan"), QString::fromStdString(error.what()));
    }
  });
  dialog->open();
}

void add_undo(CommandAdder& plan, QUndoStack& undo) {
  plan.add(
      QStringLiteral("plan.undo"), QObject::tr("Undo the last edit of the plan"),
      {QStringLiteral("Ctrl+Z")}, [&undo] { undo.undo(); }, [&undo] { return undo.canUndo(); },
      QObject::tr("The plan was not edited"));
  plan.add(
      QStringLiteral("plan.redo"), QObject::tr("Redo"),
      {QStringLiteral("Ctrl+Y"), QStringLiteral("Ctrl+Shift+Z")}, [&undo] { undo.redo(); },
      [&undo] { return undo.canRedo(); }, QObject::tr("Nothing was undone"));
}

void add_lanes(CommandAdder& plan, const WindowParts& parts, GhostLanes& ghosts) {
  const QString no_other = QObject::tr("Simulate a plan or compare with another run first");
  plan.separate();
  plan.add(QStringLiteral("plan.simulate"), QObject::tr("Show the run's own plan, simulated"),
           {QStringLiteral("Shift+G")}, [&ghosts] { ghosts.toggleOwnPlan(); });
  plan.add(
      QStringLiteral("plan.ghosts"), QObject::tr("Show or hide the lanes of the other run"),
      {QStringLiteral("G")}, [&ghosts] { ghosts.toggle(); },
      [parts] { return parts.session.isOpen() || parts.compare.isOpen(); }, no_other);
  plan.add(
      QStringLiteral("plan.fit"), QObject::tr("Fit the lanes of the other run"),
      {QStringLiteral("Shift+F")}, [parts] { parts.timeline().fitGhost(); },
      [parts] { return parts.timeline().scene().ghost().run != nullptr; }, no_other);
}

// Goes on to the knob's next choice; after the last one to the first.
void turn(PlanSession& session, size_t knob) {
  const PlanKnob& of = session.knobs()[knob];
  size_t next = 0;
  for (size_t i = 0; i < of.choices.size(); ++i) {
    next = of.choices[i].holds(session.state()) ? i + 1 : next;
  }
  session.choose(knob, next % of.choices.size());
}

// The first knobs are the most used ones.
void add_knobs(CommandAdder& plan, const WindowParts& parts) {
  const QString titles[] = {QObject::tr("Next kind of sharding"),
                            QObject::tr("Next grouping into units"),
                            QObject::tr("Prefetch one unit further in forward")};
  plan.separate();
  for (size_t knob = 0; knob < std::size(titles); ++knob) {
    plan.add(QStringLiteral("plan.knob%1").arg(knob), titles[knob], {}, [parts, knob] {
      parts.actions.trigger(QStringLiteral("panel.whatif"));
      parts.timeline().setFocus();  // keys remain commands
      turn(parts.session, knob);
    });
  }
}

// The chosen item, if it is an exposed collective.
std::optional<uint32_t> chosen_collective(const WindowParts& parts) {
  const auto& item = parts.context.current().item;
  return item && is_collective(*item) ? std::optional(item->ref) : std::nullopt;
}

void try_chosen(const WindowParts& parts) {
  const RankData& rank = *parts.context.run()->ranks[parts.context.current().item->rank];
  const uint32_t collective = *chosen_collective(parts);
  parts.actions.trigger(QStringLiteral("panel.whatif"));
  parts.proposals.tryFor(rank.owner_of(collective), rank.timeline.collectives[collective].part);
}

void add_proposals(CommandAdder& plan, const WindowParts& parts) {
  plan.separate();
  plan.add(
      QStringLiteral("plan.advise"), QObject::tr("Advise: which changes of the plan would pay"), {},
      [parts] {
        parts.actions.trigger(QStringLiteral("panel.advice"));
        parts.proposals.advise();
      },
      [parts] { return parts.proposals.canAdvise() && !parts.proposals.isBusy(); },
      QObject::tr("Needs a recorded run that can be simulated, and no other search in progress"));
  plan.add(
      QStringLiteral("plan.search"), QObject::tr("Find the best plan"), {},
      [parts] {
        parts.actions.trigger(QStringLiteral("panel.advice"));
        parts.proposals.search();
      },
      [parts] { return parts.session.isOpen() && !parts.proposals.isBusy(); },
      QObject::tr("Needs a plan that can be simulated, and no other search in progress"));
  plan.add(
      QStringLiteral("plan.searchSpace"),
      QObject::tr("Search the plans, and show all of them by step and memory"), {},
      [parts] {
        parts.actions.trigger(QStringLiteral("panel.space"));
        parts.proposals.search();
      },
      [parts] { return parts.session.isOpen() && !parts.proposals.isBusy(); },
      QObject::tr("Needs a plan that can be simulated, and no other search in progress"));
  plan.add(
      QStringLiteral("plan.stop"), QObject::tr("Stop searching"), {},
      [parts] { parts.proposals.cancel(); }, [parts] { return parts.proposals.isBusy(); },
      QObject::tr("Nothing is being searched"));
  plan.add(
      QStringLiteral("plan.try"), QObject::tr("Try what hides the chosen collective"),
      {QStringLiteral("T")}, [parts] { try_chosen(parts); },
      [parts] { return parts.proposals.canAdvise() && chosen_collective(parts).has_value(); },
      QObject::tr("Choose a collective of a recorded run"));
}

}  // namespace

bool apply_plan(const WindowParts& parts, const QString& path) {
  PlanSession& session = parts.session;
  try {
    if (!session.isOpen()) {
      throw InputError(path.toStdString(), session.why().toStdString());
    }
    PlanState next = session.state();
    next.plan = plan::load_plan(path.toStdString());
    session.edit(QFileInfo(path).fileName(), next);
    return true;
  } catch (const Error& error) {
    parts.messages.setError(QString::fromStdString(error.what()));
    return false;
  }
}

void add_plan_commands(const WindowParts& parts, GhostLanes& ghosts) {
  CommandAdder plan(
      parts.actions, QObject::tr("&Plan"), [parts] { return parts.session.isOpen(); },
      QObject::tr("The run has no plan: the panel What if shows why"));
  add_undo(plan, parts.session.undoStack());
  add_lanes(plan, parts, ghosts);
  add_knobs(plan, parts);
  add_proposals(plan, parts);
  plan.separate();
  plan.add(QStringLiteral("plan.run"), QObject::tr("Run this plan …"), {QStringLiteral("Ctrl+R")},
           [parts] { parts.actions.trigger(QStringLiteral("panel.run")); });
  plan.add(QStringLiteral("plan.apply"), QObject::tr("Apply a plan file …"), {},
           [parts] { choose_plan(parts); });
  plan.add(QStringLiteral("plan.save"), QObject::tr("Save the plan …"), {},
           [parts] { save_plan(parts); });
}

}  // namespace shardlens::gui
