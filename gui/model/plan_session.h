#pragma once

#include <cstdint>
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
#include "gui/model/run_data.h"
#include "sim/engine/machine.h"

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

// What is simulated: a plan, on how many ranks of which hardware, with how many tokens a rank.
struct PlanState {
  plan::Plan plan;
  QString hardware;  // a spec's name
  int64_t batch = 1, seq = 1, world_size = 1;
  friend bool operator==(const PlanState&, const PlanState&) = default;
};

// What the simulator says of a state.
struct PlanVersion {
  QString title;  // of the edit that made it
  PlanState state;
  int order = 0;   // of asking for it
  QString error;   // why there are no figures; "" where there are
  QString engine;  // what the engine has against the plan; "" if it runs it
  Nanoseconds step = 0;
  sim::Busy busy;
  Bytes peak = 0;
  bool fits = true;
  double tokens_per_s = 0;
  RunPointer run;  // one rank's timeline
};

// The plan that is edited, each edit undoable, and every version that was simulated.
//
// Threads  the thread it lives on; simulates on another, kPause after the last edit, and tells
//          simulated() here.
class PlanSession : public QObject {
  Q_OBJECT
 public:
  static constexpr int kPauseMilliseconds = 30;
  explicit PlanSession(QObject* parent = nullptr);

  // Starts from the run's own plan; false, and why(), where the run does not have what it takes.
  bool start(const RunPointer& run);
  // From a model alone, fully sharded over `world_size` ranks. Errors: InputError.
  void start(const plan::ModelConfig& config, int64_t world_size);
  void stop();
  [[nodiscard]] bool isOpen() const { return config_.has_value(); }
  [[nodiscard]] QString why() const { return why_; }
  [[nodiscard]] const plan::ModuleTree& tree() const { return tree_; }

  [[nodiscard]] const PlanState& state() const { return state_; }
  [[nodiscard]] const std::vector<PlanKnob>& knobs() const { return knobs_; }
  [[nodiscard]] QUndoStack& undoStack() { return undo_; }
  [[nodiscard]] const std::vector<PlanVersion>& versions() const { return versions_; }
  // Of the state as it is; nullptr until it is simulated.
  [[nodiscard]] const PlanVersion* current() const;
  [[nodiscard]] bool isSimulating() const { return !asked_.empty(); }
  // Median duration of the run's steps and the simulator's of the plan that it ran under;
  // nullopt without a run, or where they cannot be compared.
  struct Baseline {
    Nanoseconds measured = 0, simulated = 0;
    bool device = true;  // false: measured on a CPU
    [[nodiscard]] double error() const {
      return static_cast<double>(simulated - measured) / static_cast<double>(measured);
    }
  };
  [[nodiscard]] std::optional<Baseline> baseline() const;

  void choose(size_t knob, size_t choice);
  void edit(const QString& title, const PlanState& next);  // nothing where nothing changes
  [[nodiscard]] std::string planJson() const { return plan::to_json(state_.plan); }
  // Versions kept in a project, simulated one after the other; the session shows states[current]
  // and can be edited on from there. Does nothing where none is open.
  void restore(const std::vector<PlanState>& states,
               const std::vector<QString>& titles,
               size_t current);
  void simulateNow();  // without the pause
  // Ends the simulation that is under way: its result is not heard.
  void cancel();
  [[nodiscard]] bool wasCancelled() const { return cancelled_; }

  // What edit() pushes calls back with.
  void apply(const PlanState& state, const QString& title);

  // Simulates a state; any thread. Errors are in the version.
  [[nodiscard]] static PlanVersion simulated(const plan::ModelConfig& config,
                                             const PlanState& state,
                                             const QString& title);

 signals:
  void stateChanged();
  void simulatedOne();

 private:
  void begin(const plan::ModelConfig& config, const PlanState& state);
  void makeKnobs();
  std::optional<plan::ModelConfig> config_;
  plan::ModuleTree tree_;
  QString why_, title_;
  PlanState state_;
  std::vector<PlanKnob> knobs_;
  std::vector<PlanVersion> versions_;
  QUndoStack undo_;
  QTimer pause_;
  uint64_t session_ = 0;  // results of an earlier one are not heard
  int asked_count_ = 0;
  bool cancelled_ = false;
  std::vector<PlanState> asked_;  // their simulations are under way
  PlanState base_;                // as the session began: its version stands first
  std::optional<Nanoseconds> measured_;
  bool measured_on_device_ = false;
  Background background_{this};
};

// "+2.3 %": how far the simulator is off on the plan as it ran; "not known" where nothing that can
// be compared was measured.
[[nodiscard]] QString baselineText(const PlanSession& session);

}  // namespace shardlens::gui
