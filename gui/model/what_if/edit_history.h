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

#include "core/edits/plan_edit.h"
#include "core/model/model_config.h"
#include "core/plan/plan.h"
#include "core/tree/module_tree.h"
#include "gui/model/base/background.h"
#include "gui/model/run/run_data.h"
#include "gui/model/what_if/plan_state.h"
#include "sim/scenario/baseline_parts.h"
#include "sim/scenario/memory_curve.h"
#include "sim/scenario/operator_work.h"
#include "sim/scenario/scenario.h"

namespace shardlens::gui {

// A part of the state whose value is chosen from a list.
struct PlanKnob {
  struct Choice {
    QString label;
    std::function<void(PlanState&)> apply;
    std::function<bool(const PlanState&)> holds;
  };
  // The title of the form under which it is listed.
  enum class Section : uint8_t {
    kPlan,
    kMesh,
    kMachine,
    kMemory,
    kSoftware,
    kCommunication,
    kPrecision,
    kReplicated
  };
  QString title, help;
  std::vector<Choice> choices;
  Section section = Section::kPlan;
};
// A key of a plan (core/edits/plan_key.h).
[[nodiscard]] PlanKnob knob_of(plan::PlanKey key, std::vector<plan::PlanEdit> edits);
// By section.
[[nodiscard]] std::vector<PlanKnob> plan_knobs(const plan::ModuleTree& tree, int64_t world_size);
// The software of a step (core/workload/software.h), how its optimizer runs, and the transport.
[[nodiscard]] std::vector<PlanKnob> software_knobs();
// The stack whose constants a machine has that is only a specification, with what its program runs
// under by default.
[[nodiscard]] PlanKnob stack_knob();

// A state and its simulation result.
struct PlanVersion {
  QString title;  // of the edit that created it
  PlanState state;
  int order = 0;   // position in the order of requests
  int used = 0;    // counts up; the version with the highest number was chosen last
  QString error;   // why the simulation failed; "": it succeeded
  QString engine;  // why the engine cannot run the plan; "": it can
  // Without the times of each item and the history of memory: `run` and `memory` have them. After
  // an error all figures are 0.
  sim::Prediction prediction;
  sim::MemoryCurve memory;              // of one rank; empty after an error
  std::vector<sim::OperatorWork> work;  // of one rank
  RunPointer run;                       // the simulated timeline of one rank

  // Whether it has all results of its simulation. Otherwise those that take most memory were
  // dropped: `run`, `memory`, `work`, prediction.memory.alive and prediction.priced.
  [[nodiscard]] bool isWhole() const { return run != nullptr || !error.isEmpty(); }
  // Whether it has a step. A plan that does not fit runs out of memory before its step ends.
  [[nodiscard]] bool hasStep() const { return error.isEmpty() && prediction.memory.fits; }
  [[nodiscard]] Nanoseconds step() const { return prediction.figures.duration(); }
  [[nodiscard]] Bytes peak() const { return prediction.memory.peak_allocated; }
};

// What a project keeps of a session.
struct SavedPlans {
  std::vector<PlanState> states;  // the first is the session's first one
  std::vector<QString> titles;    // of the states
  size_t current = 0;             // into states
};

// The plan being edited, with undo, and all versions that were simulated. Each version is simulated
// as a Scenario (sim/scenario/scenario.h).
//
// Every version keeps its state and its figures. At most kWhole versions keep all results: the
// first, the current one, and those that were chosen last. Another one is simulated again when the
// user returns to it. Until then current() is nullptr, as for a new version.
//
// With a run open, the run is first observed in the background: its traces are analyzed and its
// machine is calibrated from them. progress() reports how far this is, observed() when it ended. No
// plan is simulated before that.
//
// Threads  all members on the object's own thread, where observed() and simulatedOne() are emitted.
//          It observes and simulates on other threads; a simulation starts kPauseMilliseconds after
//          the last edit.
class PlanSession : public QObject {
  Q_OBJECT
 public:
  static constexpr int kPauseMilliseconds = 30;
  static constexpr size_t kWhole = 16;
  static constexpr int kUndoSteps = 200;
  explicit PlanSession(QObject* parent = nullptr);
  ~PlanSession() override;

  // Observes the run and starts from its own plan on its own machine; why() has the reason if this
  // is not possible. `paths`: what was opened; the run is the first of runs_of() them. Traces
  // without a plan are read again, for the arguments of their events.
  void start(const RunPointer& run, const std::vector<std::filesystem::path>& paths);
  // Starts from a model without a run, fully sharded over all GPUs of `hardware` (a spec's name or
  // file). Errors: InputError.
  void start(const plan::ModelConfig& config, const QString& hardware);
  void stop();
  // Whether there is a plan to edit.
  [[nodiscard]] bool isOpen() const { return !subject_.empty(); }
  [[nodiscard]] bool isObserving() const { return observing_ != nullptr; }
  // Why there is no plan to edit, or why the run cannot be simulated on its own machine; "" if
  // neither is the case.
  [[nodiscard]] QString why() const { return why_; }
  [[nodiscard]] const plan::ModuleTree& tree() const { return subject_.tree(); }
  // The observed run; nullptr without a run, or if observing it failed.
  [[nodiscard]] const std::shared_ptr<const sim::RecordedRun>& recorded() const {
    return subject_.recorded;
  }
  [[nodiscard]] const PlanSubject& subject() const { return subject_; }
  // The run of start(); nullptr: none.
  [[nodiscard]] const RunPointer& run() const { return run_; }
  // The plan recovered from the traces of `run`; nullptr if the session has another run or no plan
  // was recovered.
  [[nodiscard]] PlanPointer recovered(const RunPointer& run) const {
    return recorded() == nullptr || run != run_
               ? nullptr
               : PlanPointer(recorded(), &recorded()->observation().plan);
  }

  [[nodiscard]] const PlanState& state() const { return state_; }
  [[nodiscard]] const std::vector<PlanKnob>& knobs() const { return knobs_; }
  [[nodiscard]] QUndoStack& undoStack() { return undo_; }
  [[nodiscard]] const std::vector<PlanVersion>& versions() const { return versions_; }
  // The version of the current state, which is whole; nullptr until it is simulated.
  [[nodiscard]] const PlanVersion* current() const;
  // Whether an observation or a simulation is in progress.
  [[nodiscard]] bool isBusy() const { return isObserving() || isSimulating(); }
  [[nodiscard]] bool isSimulating() const;
  // Measured and simulated step of the run's own plan on its own machine; nullopt if no run was
  // observed.
  [[nodiscard]] std::optional<sim::Baseline> baseline() const;
  // Its parts; nullopt also where the recorded steps are not those that the run's analysis has.
  [[nodiscard]] const std::optional<sim::BaselineParts>& baselineParts() const {
    return baseline_parts_;
  }

  void choose(size_t knob, size_t choice);
  void edit(const QString& title, const PlanState& next);  // no-op if nothing changes
  [[nodiscard]] std::string planJson() const { return plan::to_json(state_.plan); }
  // All versions, and those that are not simulated yet. What restore() postpones belongs to them.
  [[nodiscard]] SavedPlans saved() const;
  // Restores the versions of a project: simulates them one after the other, then shows the current
  // one, from which editing can continue. Without an open session this is postponed until the run
  // is observed.
  void restore(const SavedPlans& saved);
  void simulateNow();  // without the pause
  // Stops observing and simulating; results in progress are discarded. resume() starts both again.
  void cancel();
  void resume();
  [[nodiscard]] bool wasCancelled() const { return cancelled_; }
  [[nodiscard]] bool isRestoring() const { return restoring_; }

  // Called by the undo commands that edit() pushes.
  void apply(const PlanState& state, const QString& title);

  // Simulates a state; any thread. Errors are returned in PlanVersion::error.
  [[nodiscard]] static PlanVersion simulated(const PlanSubject& subject,
                                             const PlanState& state,
                                             const QString& title);

 signals:
  void stateChanged();
  void simulatedOne();
  // percent: how much has been read; -1: unknown. `what`: the current activity as text.
  void progress(int percent, const QString& what);
  // Observing the run ended, with or without success (why()).
  void observed();

 private:
  struct Observing;
  // A state without a result.
  struct Asked {
    PlanState state;
    QString title;
    int order = 0;         // PlanVersion::order
    bool running = false;  // false: its simulation was cancelled
  };
  void observe();
  void finish(const std::shared_ptr<Observing>& job);
  void begin(PlanSubject subject, const PlanState& state);
  void makeKnobs();
  void simulate(Asked& asked);
  void keep(PlanVersion version);
  void dropOld();

  PlanSubject subject_;
  std::optional<sim::BaselineParts> baseline_parts_;
  QString why_, title_;
  PlanState state_;
  std::vector<PlanKnob> knobs_;
  std::vector<PlanVersion> versions_;
  QUndoStack undo_;
  QTimer pause_, ticker_;
  uint64_t session_ = 0;  // results of an earlier session are discarded
  int asked_count_ = 0, used_count_ = 0;
  bool cancelled_ = false;
  std::vector<Asked> asked_;
  PlanState base_;  // the state at the start of the session; its version is the first one
  RunPointer run_;
  std::vector<std::filesystem::path> paths_;
  std::shared_ptr<Observing> observing_;
  std::optional<SavedPlans> to_restore_;  // once there is a plan to edit
  bool restoring_ = false;
  Background background_;
};

// "+2.3 %": the simulator's error for the run's own plan; "not known" without an observed run.
[[nodiscard]] QString baselineText(const std::optional<sim::Baseline>& baseline);
// "compute +0.2 %, exposed communication −0.5 %, idle and copies +2.6 %": what the error consists
// of, in percent of the measured step; "": not known.
[[nodiscard]] QString baselinePartsText(const std::optional<sim::BaselineParts>& parts);

}  // namespace shardlens::gui
