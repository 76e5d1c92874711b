#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <QObject>
#include <QString>
#include <QTimer>

#include "gui/model/base/background.h"
#include "gui/model/what_if/edit_history.h"
#include "gui/model/what_if/plan_space.h"
#include "profiler/analysis/timeline/timeline.h"
#include "sim/advise/advise.h"
#include "sim/search/search.h"

namespace shardlens::gui {

// A plan that was predicted but is not a version yet.
struct Proposal {
  QString title;
  PlanState state;
  Nanoseconds step = 0;
  Nanoseconds change = 0;  // against the simulated step of the plan that it was made from
  std::optional<sim::PredictedInterval> interval;  // of `change`, 90 %; nullopt: not estimated
  std::optional<Nanoseconds> bound;                // sim::AdvisedChange::bound; only of advice
  Bytes peak = 0, reserved = 0;  // allocated and reserved by the rank that needs most
  Bytes available = 0;           // that its allocator can reserve; 0: unknown
  bool fits = true;
  bool compared = true;                // false: the plan that `change` is against does not fit
  sim::Odds odds;                      // of advice
  std::vector<sim::HiddenTime> hides;  // only of advice that pays
  bool found = false;                  // by the search; otherwise from sim::advise()

  bool pays = false;  // of advice, certainly or probably
};

// The plans that no other one beats or equals in step time and allocated memory, in their order.
[[nodiscard]] std::vector<sim::Found> front_of(const std::vector<sim::Found>& found);

// Plans proposed for the session's run: the changes of its own plan that sim::advise() predicts,
// and the Pareto front of a search in the machine's memory. A proposal becomes a version of the
// session when it is taken.
//
// Threads  all members on the object's own thread, where the signals are emitted. The work is done
//          on other threads, one task at a time.
class PlanProposals : public QObject {
  Q_OBJECT
 public:
  explicit PlanProposals(PlanSession& session, QObject* parent = nullptr);
  ~PlanProposals() override;

  // Predicts changes of the recorded run's own plan. Requires canAdvise().
  void advise();
  [[nodiscard]] bool canAdvise() const { return session_.recorded() != nullptr; }
  // Searches for better plans on the machine of the session's current state. Requires an open
  // session.
  void search();
  // Whether a search tries meshes of every axis, as the command does, and not those of data
  // parallelism only. A recorded run's operators cannot be divided.
  void setEveryMesh(bool every) { every_mesh_ = every; }
  [[nodiscard]] bool canTryEveryMesh() const { return session_.recorded() == nullptr; }
  void cancel();
  [[nodiscard]] bool isBusy() const { return job_ != nullptr; }
  [[nodiscard]] bool isSearching() const;  // busy with search()
  // What is being done, or what the last task found or why it failed; "": no task was started.
  [[nodiscard]] QString note() const;

  // Advice first, the largest gain first; then the search's front, the fastest first.
  [[nodiscard]] const std::vector<Proposal>& list() const { return list_; }
  // All plans that the last search predicted; empty before it has ended.
  [[nodiscard]] const PlanSpace& space() const { return space_; }
  void takePoint(size_t point);  // edits the session's plan
  // Waste in the run as it is; known after advise().
  [[nodiscard]] const std::vector<sim::FoundWaste>& waste() const { return waste_; }
  void take(size_t proposal);  // edits the session's plan
  // Takes the advice that pays and hides the most of this unit's collectives of this kind, after
  // advise() if nothing was advised yet. tried() tells the result.
  void tryFor(const std::string& unit, analysis::UnitPart part);

 signals:
  void changed();
  void tried(const QString& result);

 private:
  struct Job;
  void start(std::shared_ptr<Job> job);
  void finish(const std::shared_ptr<Job>& job);
  void follow();  // the session: proposals of another run are dropped
  void tryNow();
  [[nodiscard]] std::optional<size_t> hiding(const std::string& unit,
                                             analysis::UnitPart part) const;

  PlanSession& session_;
  std::shared_ptr<Job> job_;  // nullptr: none in progress
  std::shared_ptr<const sim::RecordedRun> run_;
  std::shared_ptr<const sim::ScenarioModel> model_;
  std::vector<Proposal> list_;
  std::vector<sim::FoundWaste> waste_;
  PlanSpace space_;
  bool every_mesh_ = false;
  QString result_;
  bool advised_ = false;
  struct Tried {
    std::string unit;
    analysis::UnitPart part;
  };
  std::optional<Tried> to_try_;
  QTimer ticker_;
  Background background_;
};

}  // namespace shardlens::gui
