#include "gui/model/what_if/edit_history.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <utility>

#include "core/base/error.h"
#include "core/model/model_file.h"
#include "core/plan/resolve.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_loader.h"
#include "gui/model/what_if/fit_text.h"
#include "profiler/analysis/analyzed_run.h"
#include "profiler/trace/bytes/progress.h"
#include "sim/hardware/stacks.h"

namespace shardlens::gui {
namespace {

constexpr int kProgressMilliseconds = 60;

class EditCommand : public QUndoCommand {
 public:
  EditCommand(PlanSession& session, const QString& title, PlanState before, PlanState after)
      : QUndoCommand(title),
        session_(session),
        before_(std::move(before)),
        after_(std::move(after)) {}
  void undo() override { session_.apply(before_, PlanSession::tr("undo: %1").arg(text())); }
  void redo() override { session_.apply(after_, text()); }

 private:
  PlanSession& session_;
  PlanState before_, after_;
};

}  // namespace

// The observation of a run on another thread.
struct PlanSession::Observing {
  RunPointer run;
  std::vector<std::filesystem::path> paths;
  trace::Progress progress;
  std::shared_ptr<const sim::RecordedRun> recorded;
  std::shared_ptr<const sim::Uncertainty> uncertainty;
  std::optional<sim::BaselineParts> parts;
  QString error;

  void work() {
    try {
      recorded = sim::RecordedRun::needs_arguments(run->run)
                     ? sim::RecordedRun::open(runs_of(paths).front(), &progress)
                     : sim::RecordedRun::of(analysis::AnalyzedRun(run->run, run->analysis.timelines,
                                                                  run->analysis.matching));
      uncertainty = std::make_shared<const sim::Uncertainty>(recorded);
      parts = sim::baseline_parts(recorded, run->analysis);
    } catch (const std::exception& what) {
      error = QString::fromStdString(what.what());
    }
  }
};

PlanSession::PlanSession(QObject* parent) : QObject(parent) {
  undo_.setUndoLimit(kUndoSteps);
  pause_.setSingleShot(true);
  pause_.setInterval(kPauseMilliseconds);
  connect(&pause_, &QTimer::timeout, this, &PlanSession::simulateNow);
  ticker_.setInterval(kProgressMilliseconds);
  connect(&ticker_, &QTimer::timeout, this, [this] {
    if (observing_ == nullptr) {
      return;
    }
    const uint64_t total = observing_->progress.total, read = observing_->progress.bytes;
    emit progress(total > 0 && read < total ? static_cast<int>(100 * read / total) : -1,
                  tr("Calibrating from the run"));
  });
}

PlanSession::~PlanSession() {
  if (observing_ != nullptr) {
    observing_->progress.stop = true;
  }
}

void PlanSession::stop() {
  if (observing_ != nullptr) {
    observing_->progress.stop = true;
    observing_.reset();
    ticker_.stop();
  }
  subject_ = {};
  baseline_parts_.reset();
  state_ = base_ = {};
  knobs_.clear();
  versions_.clear();
  undo_.clear();
  asked_.clear();
  pause_.stop();
  run_.reset();
  paths_.clear();
  why_.clear();
  to_restore_.reset();
  cancelled_ = false;
  ++session_;
  emit stateChanged();
}

void PlanSession::begin(PlanSubject subject, const PlanState& state) {
  subject_ = std::move(subject);
  state_ = base_ = state;
  title_ = tr("as it is");
  makeKnobs();
  emit stateChanged();
  simulateNow();
}

void PlanSession::start(const RunPointer& run, const std::vector<std::filesystem::path>& paths) {
  stop();
  if (run == nullptr) {
    why_ = tr("No run is open.");
    return;
  }
  run_ = run;
  paths_ = paths;
  observe();
}

void PlanSession::observe() {
  observing_ = std::make_shared<Observing>();
  observing_->run = run_;
  observing_->paths = paths_;
  ticker_.start();
  background_.run([job = observing_] { job->work(); }, [this, job = observing_] { finish(job); });
  emit stateChanged();
  emit progress(-1, tr("Calibrating from the run"));
}

void PlanSession::finish(const std::shared_ptr<Observing>& job) {
  if (job != observing_) {
    return;
  }
  observing_.reset();
  ticker_.stop();
  if (job->recorded != nullptr) {
    PlanSubject subject = PlanSubject::of(job->recorded);
    subject.uncertainty = job->uncertainty;
    baseline_parts_ = job->parts;
    begin(subject, own_state(subject));
  } else {
    why_ = job->error;
    const auto& planned = run_->run.planned;
    if (planned && planned->config) {
      // The plan can still be edited and simulated on a machine that the user chooses.
      begin(PlanSubject::of(*planned->config),
            {planned->plan.plan, {}, planned->plan.world_size, planned->settings});
    } else {
      emit stateChanged();
    }
  }
  if (const auto waiting = std::exchange(to_restore_, std::nullopt)) {
    restore(*waiting);
  }
  emit observed();
}

void PlanSession::start(const plan::ModelConfig& config, const QString& hardware) {
  stop();
  PlanSubject subject = PlanSubject::of(config);
  PlanState state;
  state.plan = plan::strategy_plan("full_shard", subject.tree());
  state.plan.mixed_precision = {DType::kBF16, DType::kF32, {}, {}, {}};
  state.machine = hardware;
  state.world_size = sim::load_hardware(hardware.toStdString()).ranks();
  state.step.seq = config.max_positions > 0 ? std::min<int64_t>(config.max_positions, 4096) : 4096;
  state.step = plan::default_step(config, state.step);
  if (config.file != nullptr) {  // exported from PyTorch
    state.step.program = plan::Program::kTransformers;
    state.step.optimizer_impl = sim::optimizer_by_default(state.step.program);
  }
  begin(std::move(subject), state);
}

const PlanVersion* PlanSession::current() const {
  const auto found = std::find_if(versions_.rbegin(), versions_.rend(),
                                  [this](const PlanVersion& v) { return v.state == state_; });
  return found == versions_.rend() || !found->isWhole() ? nullptr : &*found;
}

std::optional<sim::Baseline> PlanSession::baseline() const {
  return subject_.recorded == nullptr ? std::nullopt : std::optional(subject_.recorded->baseline());
}

void PlanSession::makeKnobs() {
  knobs_ = plan_knobs(tree(), state_.world_size);
  for (PlanKnob& each : software_knobs()) {
    knobs_.push_back(std::move(each));
  }
  knobs_.push_back(stack_knob());
}

bool PlanSession::isSimulating() const {
  return std::ranges::any_of(asked_, &Asked::running);
}

SavedPlans PlanSession::saved() const {
  if (to_restore_) {
    return *to_restore_;
  }
  std::vector<Asked> all;
  for (const PlanVersion& version : versions_) {
    all.push_back({version.state, version.title, version.order});
  }
  const auto add = [&all](const Asked& asked) {
    if (std::ranges::find(all, asked.state, &Asked::state) == all.end()) {
      all.push_back(asked);
    }
  };
  std::ranges::for_each(asked_, add);
  if (isOpen()) {
    add({state_, title_, state_ == base_ ? 0 : asked_count_ + 1});
  }
  std::ranges::stable_sort(all, {}, &Asked::order);
  SavedPlans out;
  for (Asked& asked : all) {
    if (asked.state == state_) {
      out.current = out.states.size();
    }
    out.states.push_back(std::move(asked.state));
    out.titles.push_back(std::move(asked.title));
  }
  return out;
}

void PlanSession::restore(const SavedPlans& saved) {
  if (saved.states.empty()) {
    return;
  }
  if (!isOpen()) {
    to_restore_ = saved;
    return;
  }
  restoring_ = true;
  const auto show = [&](size_t i) {
    PlanState state = saved.states[i];
    state.plan.source = base_.plan.source;  // plans that differ only in it are the same
    edit(saved.titles[i], state);
    simulateNow();
  };
  for (size_t i = 0; i < saved.states.size(); ++i) {
    show(i);
  }
  show(saved.current);
  restoring_ = false;
}

void PlanSession::cancel() {
  pause_.stop();
  ++session_;
  for (Asked& asked : asked_) {
    asked.running = false;
  }
  cancelled_ = true;
  if (observing_ != nullptr) {
    observing_->progress.stop = true;
    observing_.reset();
    ticker_.stop();
    why_ = tr("Calibrating from the run was stopped.");
    emit stateChanged();
    emit observed();
  }
  emit simulatedOne();
}

void PlanSession::resume() {
  cancelled_ = false;
  if (isOpen()) {
    simulateNow();
    for (Asked& asked : asked_) {
      simulate(asked);
    }
  } else if (run_ != nullptr && !isObserving()) {
    why_.clear();
    observe();
  }
}

void PlanSession::choose(size_t knob, size_t choice) {
  PlanState next = state_;
  knobs_[knob].choices[choice].apply(next);
  edit(QStringLiteral("%1: %2").arg(knobs_[knob].title, knobs_[knob].choices[choice].label), next);
}

void PlanSession::edit(const QString& title, const PlanState& next) {
  if (isOpen() && next != state_) {
    undo_.push(new EditCommand(*this, title, state_, next));
  }
}

void PlanSession::apply(const PlanState& state, const QString& title) {
  const bool other_ranks = state.world_size != state_.world_size;
  state_ = state;
  title_ = title;
  if (other_ranks) {
    makeKnobs();
  }
  for (PlanVersion& version : versions_) {
    version.used = version.state == state_ ? ++used_count_ : version.used;
  }
  emit stateChanged();
  if (current() != nullptr) {
    emit simulatedOne();  // already simulated, for example after undo
  } else {
    pause_.start();
  }
}

PlanVersion PlanSession::simulated(const PlanSubject& subject,
                                   const PlanState& state,
                                   const QString& title) {
  PlanVersion out;
  out.title = title;
  out.state = state;
  try {
    try {
      plan::require_engine_support(plan::resolve(state.plan, subject.tree(), state.world_size));
    } catch (const Error& error) {
      out.engine = QString::fromStdString(error.what());
    }
    const sim::Scenario scenario = scenario_of(subject, state);
    sim::Prediction predicted = sim::evaluate(
        scenario, {.timeline = true, .communication = true, .alive = true, .history = true});
    if (subject.uncertainty != nullptr) {
      subject.uncertainty->add_to(scenario, predicted);
    }
    out.memory = sim::memory_curve(predicted);
    out.work = sim::simulated_work(predicted);
    auto data = std::make_shared<RunData>(sim::predicted_run(predicted, 0));
    data->unfit = unfitText(predicted);
    out.run = std::move(data);
    predicted.memory.history = {};  // `memory` and `run` have the same
    predicted.memory.changes = {};
    predicted.memory.holders = {};
    predicted.step.ranks.clear();
    out.prediction = std::move(predicted);
  } catch (const std::exception& error) {
    out.error = QString::fromStdString(error.what());
  }
  return out;
}

void PlanSession::simulateNow() {
  pause_.stop();
  if (!isOpen() || current() != nullptr) {
    return;
  }
  auto asked = std::ranges::find(asked_, state_, &Asked::state);
  if (asked == asked_.end()) {
    asked = asked_.insert(asked_.end(), {state_, title_, state_ == base_ ? 0 : ++asked_count_});
  }
  simulate(*asked);
}

void PlanSession::simulate(Asked& asked) {
  if (asked.running) {
    return;
  }
  asked.running = true;
  cancelled_ = false;
  auto result = std::make_shared<PlanVersion>();
  const auto work = [result, subject = subject_, asked] {
    *result = simulated(subject, asked.state, asked.title);
    result->order = asked.order;
  };
  background_.run(work, [this, session = session_, result] {
    if (session != session_) {
      return;
    }
    std::erase_if(asked_, [&](const Asked& one) { return one.state == result->state; });
    keep(std::move(*result));
    dropOld();
    emit simulatedOne();
  });
}

void PlanSession::keep(PlanVersion version) {
  version.used = ++used_count_;
  const auto known = std::ranges::find(versions_, version.state, &PlanVersion::state);
  if (known != versions_.end()) {
    version.title = known->title;
    version.order = known->order;
    *known = std::move(version);
    return;
  }
  const auto at =
      std::upper_bound(versions_.begin(), versions_.end(), version.order,
                       [](int order, const PlanVersion& other) { return order < other.order; });
  versions_.insert(at, std::move(version));
}

// The first version is what the others are compared with.
void PlanSession::dropOld() {
  constexpr size_t kOthers = kWhole - 2;  // neither the first nor the current one
  std::vector<PlanVersion*> others;
  for (size_t i = 1; i < versions_.size(); ++i) {
    if (versions_[i].run != nullptr && versions_[i].state != state_) {
      others.push_back(&versions_[i]);
    }
  }
  std::ranges::sort(others, std::greater(), &PlanVersion::used);
  for (size_t i = kOthers; i < others.size(); ++i) {
    others[i]->run.reset();
    others[i]->memory = {};
    others[i]->work = {};
    others[i]->prediction.memory.alive = {};
    others[i]->prediction.priced = {};
  }
}

QString baselineText(const std::optional<sim::Baseline>& baseline) {
  if (!baseline) {
    return PlanSession::tr("not known");
  }
  return PlanSession::tr("%1 %").arg(signedPercent(baseline->error()));
}

QString baselinePartsText(const std::optional<sim::BaselineParts>& parts) {
  if (!parts) {
    return {};
  }
  const auto& [compute, exposed, rest] = parts->errors();
  return PlanSession::tr("compute %1 %, exposed communication %2 %, idle and copies %3 %")
      .arg(signedPercent(compute), signedPercent(exposed), signedPercent(rest));
}

}  // namespace shardlens::gui
