#include "gui/model/what_if/plan_proposals.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string_view>
#include <utility>

#include "gui/model/base/time_axis.h"
#include "sim/search/search.h"

namespace shardlens::gui {
namespace {

constexpr int kUpdatedMilliseconds = 100;

Proposal proposal_of(const sim::AdvisedChange& change, const PlanState& own) {
  Proposal out;
  out.title = QString::fromStdString(change.title);
  out.state = own;
  out.state.plan = change.plan;
  out.state.step = change.step;
  out.step = change.duration;
  out.change = change.change;
  out.interval = change.interval;
  out.bound = change.bound;
  out.peak = change.peak_allocated;
  out.reserved = change.peak_reserved;
  out.fits = change.fits;
  out.odds = change.odds;
  out.pays = change.pays();
  out.hides = change.hides;
  return out;
}

}  // namespace

// A task on another thread. `done` and `all` are for the other thread to write; what follows them
// is read when the task has ended.
struct PlanProposals::Job {
  bool searches = false;
  PlanSubject subject;
  PlanState state;
  RunPointer run;
  std::atomic<bool> cancelled = false;
  std::atomic<size_t> done = 0, all = 0;

  bool every_mesh = false;
  std::vector<Proposal> list;
  std::vector<sim::FoundWaste> waste;
  PlanSpace space;
  QString result, error;

  void work() {
    try {
      searches ? search() : advise();
    } catch (const std::exception& what) {
      error = QString::fromStdString(what.what());
    }
  }

  void advise() {
    sim::AdviseOptions options;
    options.cancelled = &cancelled;
    options.on_progress = [this](size_t now, size_t of) {
      all = of;
      done = now;
    };
    sim::Advice advice = sim::advise(subject.recorded, run->analysis, options);
    const PlanState own = own_state(subject);
    for (const std::vector<sim::AdvisedChange>* part : {&advice.changes, &advice.others}) {
      for (const sim::AdvisedChange& change : *part) {
        list.push_back(proposal_of(change, own));
        list.back().available = advice.available;
        list.back().compared = advice.fits;
      }
    }
    waste = std::move(advice.waste);
    const size_t pay = advice.changes.size();
    result =
        pay == 0
            ? tr("No change of the plan is predicted to pay.")
            : tr("%1 predicted to pay.")
                  .arg(countText(static_cast<int64_t>(pay), tr("change is"), tr("changes are")));
    if (advice.is_uncertain()) {
      result += tr(" The simulator's error for the run's own plan, %1, is larger than the largest "
                   "gain: measure a change before you rely on it.")
                    .arg(baselineText(advice.baseline));
    }
  }

  // The prediction with its intervals. A change has an interval only if it is from the run's own
  // plan.
  [[nodiscard]] sim::Prediction withIntervals(const sim::Uncertainty& uncertainty,
                                              const sim::Scenario& scenario,
                                              const PlanState& changed) const {
    sim::Scenario of = scenario;
    of.plan = changed.plan;
    of.step = changed.step;
    sim::Prediction prediction = sim::evaluate(of);
    uncertainty.add_to(of, prediction);
    if (subject.uncertainty == nullptr || state != own_state(subject)) {
      prediction.change_interval.reset();
    }
    return prediction;
  }

  void search() {
    const sim::Scenario scenario = scenario_of(subject, state);
    const sim::Prediction now = sim::evaluate(scenario);
    sim::SearchOptions options;
    options.threads = 1;  // the window stays responsive
    options.cancelled = &cancelled;
    if (every_mesh) {
      options.meshes = sim::MeshSpace::all();
    }
    options.on_progress = [this](const sim::Found& each, size_t of_done, size_t of_all) {
      all = of_all;
      done = of_done;
      space.points.push_back({each.candidate,
                              each.outcome.figures,
                              each.outcome.peak_allocated,
                              each.outcome.peak_reserved,
                              each.outcome.fits,
                              false,
                              {}});
    };
    const sim::SearchResult found = sim::search(scenario, options);
    const std::vector<sim::Found> front = front_of(found.pareto);
    space.base = state;
    space.available = scenario.machine->target().available();
    const bool measured = state.machine == QLatin1String(kMachineOfRun);
    const auto uncertainty = measured && subject.uncertainty != nullptr
                                 ? subject.uncertainty
                                 : std::make_shared<const sim::Uncertainty>(scenario.machine);
    for (const sim::Found& each : front) {
      Proposal proposal;
      proposal.title = QString::fromStdString(sim::name_of(each.candidate, state.world_size));
      proposal.state = state;
      proposal.state.plan =
          sim::plan_of(each.candidate, state.plan, subject.tree(), state.world_size);
      proposal.state.step.batch = each.candidate.batch;
      proposal.state.step.accumulate = each.candidate.accumulate;
      proposal.step = each.outcome.figures.duration();
      proposal.change = proposal.step - now.figures.duration();
      proposal.compared = now.memory.fits;
      proposal.peak = each.outcome.peak_allocated;
      proposal.reserved = each.outcome.peak_reserved;
      proposal.available = scenario.machine->target().available();
      proposal.fits = each.outcome.fits;
      proposal.found = true;
      const sim::Prediction prediction = withIntervals(*uncertainty, scenario, proposal.state);
      proposal.interval = prediction.change_interval;
      const auto point = std::ranges::find(space.points, each.candidate, &SpacePoint::candidate);
      if (point != space.points.end()) {
        point->front = true;
        point->interval = prediction.interval;
      }
      list.push_back(std::move(proposal));
    }
    result = front.empty() ? tr("None of %1 plans fits into the memory.").arg(found.all)
                           : tr("%1 of %2 plans are the best for their memory. %3")
                                 .arg(front.size())
                                 .arg(found.all)
                                 .arg(QString::fromStdString(found.why));
    if (found.refused > 0) {
      result += tr(" %1 could not be predicted: %2")
                    .arg(found.refused)
                    .arg(QString::fromStdString(found.refusal));
    }
  }
};

std::vector<sim::Found> front_of(const std::vector<sim::Found>& found) {
  std::vector<sim::Found> out;
  for (const sim::Found& each : found) {
    const bool beaten = std::ranges::any_of(found, [&](const sim::Found& other) {
      const std::pair a(other.outcome.figures.duration(), other.outcome.peak_allocated);
      const std::pair b(each.outcome.figures.duration(), each.outcome.peak_allocated);
      const bool first = &other < &each;  // of equal ones the first stays
      return a.first <= b.first && a.second <= b.second && (a != b || first);
    });
    if (!beaten) {
      out.push_back(each);
    }
  }
  return out;
}

PlanProposals::PlanProposals(PlanSession& session, QObject* parent)
    : QObject(parent), session_(session) {
  ticker_.setInterval(kUpdatedMilliseconds);
  connect(&ticker_, &QTimer::timeout, this, &PlanProposals::changed);
  connect(&session_, &PlanSession::stateChanged, this, &PlanProposals::follow);
}

PlanProposals::~PlanProposals() {
  if (job_ != nullptr) {
    job_->cancelled = true;
  }
}

QString PlanProposals::note() const {
  if (job_ == nullptr) {
    return result_;
  }
  const QString what = job_->searches ? tr("Searching") : tr("Predicting changes of the plan");
  const size_t all = job_->all;
  return all == 0 ? tr("%1 …").arg(what)
                  : tr("%1: %2 of %3 …").arg(what).arg(job_->done.load()).arg(all);
}

void PlanProposals::follow() {
  const std::shared_ptr<const sim::ScenarioModel>& model = session_.subject().of_run != nullptr
                                                               ? session_.subject().of_run
                                                               : session_.subject().of_config;
  if (model == model_) {
    return;
  }
  cancel();
  model_ = model;
  list_.clear();
  waste_.clear();
  space_ = {};
  result_.clear();
  advised_ = false;
  emit changed();
}

void PlanProposals::start(std::shared_ptr<Job> job) {
  cancel();
  job->subject = session_.subject();
  job->state = session_.state();
  job->run = session_.run();
  job_ = std::move(job);
  ticker_.start();
  background_.run([job = job_] { job->work(); }, [this, job = job_] { finish(job); });
  emit changed();
}

void PlanProposals::advise() {
  start(std::make_shared<Job>());
}

void PlanProposals::search() {
  auto job = std::make_shared<Job>();
  job->searches = true;
  job->every_mesh = every_mesh_ && canTryEveryMesh();
  start(std::move(job));
}

bool PlanProposals::isSearching() const {
  return job_ != nullptr && job_->searches;
}

void PlanProposals::cancel() {
  if (job_ != nullptr) {
    job_->cancelled = true;
    result_ = tr("Stopped.");
    job_.reset();
    to_try_.reset();
    ticker_.stop();
    emit changed();
  }
}

void PlanProposals::finish(const std::shared_ptr<Job>& job) {
  if (job != job_) {
    return;
  }
  job_.reset();
  ticker_.stop();
  result_ = job->error.isEmpty() ? job->result : job->error;
  if (job->error.isEmpty()) {
    std::erase_if(list_, [&job](const Proposal& each) { return each.found == job->searches; });
    list_.insert(job->searches ? list_.end() : list_.begin(), job->list.begin(), job->list.end());
    if (job->searches) {
      space_ = std::move(job->space);
    } else {
      waste_ = std::move(job->waste);
      advised_ = true;
    }
  }
  emit changed();
  tryNow();
}

void PlanProposals::take(size_t proposal) {
  const Proposal& taken = list_.at(proposal);
  session_.edit(taken.title, taken.state);
}

void PlanProposals::takePoint(size_t point) {
  session_.edit(space_.title_of(point), space_.state_of(point, session_.tree()));
}

void PlanProposals::tryFor(const std::string& unit, analysis::UnitPart part) {
  to_try_ = Tried{unit, part};
  if (advised_) {
    tryNow();
  } else if (job_ == nullptr || job_->searches) {
    const auto wanted = to_try_;
    advise();
    to_try_ = wanted;
  }
}

// The change that hides most of it. If no change names the unit, because only the longest hidden
// parts are listed, the one that hides most of such collectives of another unit.
std::optional<size_t> PlanProposals::hiding(const std::string& unit,
                                            analysis::UnitPart part) const {
  std::optional<size_t> best;
  std::pair<bool, Nanoseconds> most;  // of this unit, time
  for (size_t i = 0; i < list_.size(); ++i) {
    for (const sim::HiddenTime& hidden : list_[i].hides) {
      const std::pair<bool, Nanoseconds> here{hidden.unit == unit, hidden.time};
      if (list_[i].pays && hidden.collective == analysis::name_of(part) && here > most) {
        best = i;
        most = here;
      }
    }
  }
  return best;
}

void PlanProposals::tryNow() {
  const auto wanted = std::exchange(to_try_, std::nullopt);
  if (!wanted) {
    return;
  }
  const std::optional<size_t> best = hiding(wanted->unit, wanted->part);
  if (!best) {
    emit tried(advised_ ? tr("No change of the plan that is predicted to pay hides such "
                             "collectives.")
                        : result_);
    return;
  }
  const Proposal taken = list_[*best];
  take(*best);
  emit tried(tr("%1: predicted %2 of the step")
                 .arg(taken.title, changeText(static_cast<double>(taken.step),
                                              static_cast<double>(taken.step - taken.change))));
}

}  // namespace shardlens::gui
