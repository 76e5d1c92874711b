#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <QObject>
#include <QString>
#include <QStringList>
#include <QTimer>
#include <QUndoStack>

#include "core/plan/module_tree.h"
#include "core/plan/plan.h"
#include "gui/model/background.h"
#include "gui/model/plan_state.h"
#include "gui/model/run_data.h"
#include "sim/scenario/scenario.h"

namespace shardlens::gui {

// One thing about a plan that can be chosen from a list. New ones go into plan_knobs() alone.
struct PlanKnob {
  struct Choice {
    QString label;
    std::function<void(plan::Plan&)> apply;
    std::function<bool(const plan::Plan&)> holds;
  };
  QString title, help;
  std::vector<Choice> choices;
};
[[nodiscard]] std::vector<PlanKnob> plan_knobs(const plan::ModuleTree& tree, int64_t world_size);

// What the simulator says of a state.
struct PlanVersion {
  QString title;  // of the edit that made it
  PlanState state;
  int order = 0;   // of asking for it
  QString error;   // why there are no figures; "" where there are
  QString engine;  // what the engine has against the plan; "" if it runs it
  // Without timeline and workload, which `run` shows; the figures of an error are all 0.
  sim::Prediction prediction;
  RunPointer run;  // one rank's timeline

  [[nodiscard]] Nanoseconds step() const { return prediction.figures.duration(); }
  [[nodiscard]] Bytes peak() const { return prediction.memory.peak_allocated; }
};

// The plan that is edited, each edit undoable, and every version that was simulated: as a Scenario
// (sim/scenario/scenario.h), like everything that asks the simulator.
//
// With a run open, the machine of that run is learnt first, in the background: progress() tells how
// far that is, and observed() that it ended. Until then no plan is simulated.
//
// Threads  the thread it lives on; observes and simulates on others, kPause after the last edit,
//          and tells observed() and simulatedOne() here.
class PlanSession : public QObject {
  Q_OBJECT
 public:
  static constexpr int kPauseMilliseconds = 30;
  explicit PlanSession(QObject* parent = nullptr);
  ~PlanSession() override;

  // Learns from the run and starts from its own plan on its own machine, or says in why() what it
  // lacks. `paths`: where a run was read from whose traces must be read again (those without a
  // plan, for the arguments of their events).
  void start(const RunPointer& run, const std::vector<std::filesystem::path>& paths);
  // From a model alone, fully sharded over as many ranks as `hardware`, a spec's name or file, has.
  // Errors: InputError.
  void start(const plan::ModelConfig& config, const QString& hardware);
  void stop();
  // Whether there is a plan to edit.
  [[nodiscard]] bool isOpen() const { return !subject_.empty(); }
  [[nodiscard]] bool isObserving() const { return observing_ != nullptr; }
  // Why there is nothing to edit, or why the run cannot be simulated on its own machine; "" where
  // nothing is missing.
  [[nodiscard]] QString why() const { return why_; }
  [[nodiscard]] const plan::ModuleTree& tree() const { return subject_.tree(); }
  // What was learnt; nullptr without a run, or where it taught nothing.
  [[nodiscard]] const std::shared_ptr<const sim::RecordedRun>& recorded() const {
    return subject_.recorded;
  }
  [[nodiscard]] const PlanSubject& subject() const { return subject_; }
  // What the traces of `run` tell of its plan; nullptr: another run, or nothing.
  [[nodiscard]] PlanPointer recovered(const RunPointer& run) const {
    return recorded() == nullptr || run != run_
               ? nullptr
               : PlanPointer(recorded(), &recorded()->observation().plan);
  }

  [[nodiscard]] const PlanState& state() const { return state_; }
  [[nodiscard]] const std::vector<PlanKnob>& knobs() const { return knobs_; }
  [[nodiscard]] QUndoStack& undoStack() { return undo_; }
  [[nodiscard]] const std::vector<PlanVersion>& versions() const { return versions_; }
  // Of the state as it is; nullptr until it is simulated.
  [[nodiscard]] const PlanVersion* current() const;
  // Something is observed or simulated.
  [[nodiscard]] bool isBusy() const { return isObserving() || !asked_.empty(); }
  [[nodiscard]] bool isSimulating() const { return !asked_.empty(); }
  // How well the run's own plan is simulated on its own machine; nullopt where nothing was learnt.
  [[nodiscard]] std::optional<sim::Baseline> baseline() const;

  void choose(size_t knob, size_t choice);
  void edit(const QString& title, const PlanState& next);  // nothing where nothing changes
  [[nodiscard]] std::string planJson() const { return plan::to_json(state_.plan); }
  // Versions kept in a project, simulated one after the other; the session shows states[current]
  // and can be edited on from there. While the run is observed that waits; where none is open
  // nothing happens.
  void restore(const std::vector<PlanState>& states,
               const std::vector<QString>& titles,
               size_t current);
  void simulateNow();  // without the pause
  // Ends what is observed or simulated: its result is not heard. resume() begins it again.
  void cancel();
  void resume();
  [[nodiscard]] bool wasCancelled() const { return cancelled_; }
  [[nodiscard]] bool isRestoring() const { return restoring_; }

  // What edit() pushes calls back with.
  void apply(const PlanState& state, const QString& title);

  // Simulates a state; any thread. Errors are in the version.
  [[nodiscard]] static PlanVersion simulated(const PlanSubject& subject,
                                             const PlanState& state,
                                             const QString& title);

 signals:
  void stateChanged();
  void simulatedOne();
  // percent of what is read; -1: not known. `what` says in words what is done.
  void progress(int percent, const QString& what);
  // The run was observed, or cannot be (why()).
  void observed();

 private:
  struct Observing;
  void observe();
  void finish(const std::shared_ptr<Observing>& job);
  void begin(PlanSubject subject, const PlanState& state);
  void makeKnobs();

  PlanSubject subject_;
  QString why_, title_;
  PlanState state_;
  std::vector<PlanKnob> knobs_;
  std::vector<PlanVersion> versions_;
  QUndoStack undo_;
  QTimer pause_, ticker_;
  uint64_t session_ = 0;  // results of an earlier one are not heard
  int asked_count_ = 0;
  bool cancelled_ = false;
  std::vector<PlanState> asked_;  // their simulations are under way
  PlanState base_;                // as the session began: its version comes first
  RunPointer run_;
  std::vector<std::filesystem::path> paths_;
  std::shared_ptr<Observing> observing_;
  struct Restored {
    std::vector<PlanState> states;
    std::vector<QString> titles;
    size_t current = 0;
  };
  std::optional<Restored> to_restore_;  // when the run is observed
  bool restoring_ = false;
  Background background_{this};
};

// "+2.3 %": how far the simulator is off on the plan as it ran; "not known" where nothing was
// learnt from a run.
[[nodiscard]] QString baselineText(const std::optional<sim::Baseline>& baseline);

}  // namespace shardlens::gui
