#include "gui/model/plan_session.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "sim/engine/simulated_run.h"
#include "sim/predict/predict.h"

namespace shardlens::gui {
namespace {

namespace fs = std::filesystem;

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

// The config.json beside the run's traces, else the one that run.json names.
fs::path model_beside(const trace::Run& run) {
  const fs::path directory = fs::path(run.traces.front().metadata.source).parent_path();
  if (fs::exists(directory / "config.json")) {
    return directory / "config.json";
  }
  const auto environment = nlohmann::json::parse(run.environment, nullptr, false);
  return environment.is_object() && environment.contains("options")
             ? fs::path(environment["options"].value("model", ""))
             : fs::path();
}

std::optional<Nanoseconds> median_step(const RankData& rank) {
  std::vector<Nanoseconds> steps;
  for (const analysis::StepFigures& step : rank.figures.steps) {
    steps.push_back(step.window.length());
  }
  if (steps.empty()) {
    return std::nullopt;
  }
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end());
  return *middle;
}

QString hardware_for(int64_t world_size) {
  return world_size <= 8 ? QStringLiteral("8xH100") : QString();
}

}  // namespace

PlanSession::PlanSession(QObject* parent) : QObject(parent) {
  pause_.setSingleShot(true);
  pause_.setInterval(kPauseMilliseconds);
  connect(&pause_, &QTimer::timeout, this, &PlanSession::simulateNow);
}

void PlanSession::stop() {
  config_.reset();
  knobs_.clear();
  versions_.clear();
  undo_.clear();
  asked_.clear();
  pause_.stop();
  measured_.reset();
  ++session_;
  emit stateChanged();
}

void PlanSession::begin(const plan::ModelConfig& config, const PlanState& state) {
  config_ = config;
  tree_ = plan::module_tree(config);
  state_ = base_ = state;
  title_ = tr("as it is");
  why_.clear();
  makeKnobs();
  emit stateChanged();
  simulateNow();
}

bool PlanSession::start(const RunPointer& run) {
  stop();
  if (run == nullptr) {
    why_ = tr("No run is open.");
    return false;
  }
  if (!run->run.planned) {
    why_ =
        tr("The run has no plan to start from: a capture directory has one; of PyTorch's traces, "
           "`shardlens plan --from-trace` recovers it.");
    return false;
  }
  try {
    const plan::ModelConfig config = plan::load_model_config(model_beside(run->run));
    const trace::PlannedInputs& planned = *run->run.planned;
    PlanState state;
    state.plan = planned.plan.plan;
    state.hardware = hardware_for(planned.plan.world_size);
    state.batch = planned.workload.batch;
    state.seq = planned.workload.seq;
    state.world_size = planned.plan.world_size;
    measured_ = median_step(*run->ranks.front());
    measured_on_device_ = run->ranks.front()->figures.device;
    begin(config, state);
  } catch (const Error& error) {
    why_ = tr("The run's model cannot be read: %1").arg(QString::fromStdString(error.what()));
    return false;
  }
  return true;
}

void PlanSession::start(const plan::ModelConfig& config, int64_t world_size) {
  stop();
  const plan::ModuleTree tree = plan::module_tree(config);
  PlanState state;
  state.plan = plan::strategy_plan("full_shard", tree);
  state.plan.mixed_precision = {DType::kBF16, DType::kF32, {}, {}, {}};
  state.hardware = hardware_for(world_size);
  state.seq = config.max_positions > 0 ? std::min<int64_t>(config.max_positions, 4096) : 4096;
  state.world_size = world_size;
  begin(config, state);
}

const PlanVersion* PlanSession::current() const {
  const auto found = std::find_if(versions_.rbegin(), versions_.rend(),
                                  [this](const PlanVersion& v) { return v.state == state_; });
  return found == versions_.rend() ? nullptr : &*found;
}

std::optional<PlanSession::Baseline> PlanSession::baseline() const {
  if (!measured_ || versions_.empty() || versions_.front().state != base_ ||
      !versions_.front().error.isEmpty()) {
    return std::nullopt;
  }
  return Baseline{*measured_, versions_.front().step, measured_on_device_};
}

void PlanSession::makeKnobs() {
  knobs_ = plan_knobs(tree_, state_.world_size);
}

void PlanSession::restore(const std::vector<PlanState>& states,
                          const std::vector<QString>& titles,
                          size_t current) {
  if (!config_ || states.empty()) {
    return;
  }
  const auto show = [&](size_t i) {
    PlanState state = states[i];
    state.plan.source = base_.plan.source;  // plans that are alike but for the file are the same
    edit(titles[i], state);
    simulateNow();
  };
  for (size_t i = 0; i < states.size(); ++i) {
    show(i);
  }
  show(current);
}

void PlanSession::cancel() {
  pause_.stop();
  ++session_;
  asked_.clear();
  cancelled_ = true;
  emit simulatedOne();
}

void PlanSession::choose(size_t knob, size_t choice) {
  PlanState next = state_;
  knobs_[knob].choices[choice].apply(next.plan);
  edit(QStringLiteral("%1: %2").arg(knobs_[knob].title, knobs_[knob].choices[choice].label), next);
}

void PlanSession::edit(const QString& title, const PlanState& next) {
  if (next != state_) {
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
  emit stateChanged();
  if (current() != nullptr) {
    emit simulatedOne();  // known already: undo comes back at once
  } else {
    pause_.start();
  }
}

PlanVersion PlanSession::simulated(const plan::ModelConfig& config,
                                   const PlanState& state,
                                   const QString& title) {
  PlanVersion out;
  out.title = title;
  out.state = state;
  try {
    const plan::ResolvedPlan plan =
        plan::resolve(state.plan, plan::module_tree(config), state.world_size);
    try {
      plan::require_engine_support(plan);
    } catch (const Error& error) {
      out.engine = QString::fromStdString(error.what());
    }
    const plan::Workload workload = plan::step_workload(config, plan, state.batch, state.seq);
    const sim::HardwareSpec hardware = sim::load_hardware(state.hardware.toStdString());
    sim::RunSettings settings;
    settings.list_alive = false;
    const sim::Prediction predicted = sim::predict(workload, plan, hardware, settings);
    out.step = predicted.step.duration;
    out.busy = predicted.busy;
    out.peak = predicted.memory.peak_allocated;
    out.fits = predicted.memory.fits;
    out.tokens_per_s = predicted.tokens_per_s;
    sim::SimulatedRunOptions traces;
    traces.device_name = hardware.gpu.name;
    std::vector<trace::Trace> one;
    one.push_back(
        sim::simulated_trace(workload, plan, predicted.planned, predicted.step, 0, traces));
    trace::Run run = trace::Run::of(std::move(one));
    run.planned = trace::PlannedInputs{plan, workload, 1, true};
    out.run = std::make_shared<const RunData>(std::move(run));
  } catch (const std::exception& error) {
    out.error = QString::fromStdString(error.what());
  }
  return out;
}

void PlanSession::simulateNow() {
  pause_.stop();
  if (!config_ || current() != nullptr || std::ranges::find(asked_, state_) != asked_.end()) {
    return;  // known, or on its way
  }
  asked_.push_back(state_);
  cancelled_ = false;
  const uint64_t session = session_;
  auto result = std::make_shared<PlanVersion>();
  const auto work = [result, config = *config_, state = state_, title = title_,
                     order = state_ == base_ ? 0 : ++asked_count_] {
    *result = simulated(config, state, title);
    result->order = order;
  };
  background_.run(work, [this, session, result] {
    if (session != session_) {
      return;
    }
    std::erase(asked_, result->state);
    const auto at = std::upper_bound(
        versions_.begin(), versions_.end(), result->order,
        [](int order, const PlanVersion& version) { return order < version.order; });
    versions_.insert(at, std::move(*result));
    emit simulatedOne();
  });
}

QString baselineText(const PlanSession& session) {
  const auto baseline = session.baseline();
  return baseline && baseline->device
             ? PlanSession::tr("%1%2 %")
                   .arg(baseline->error() >= 0 ? QStringLiteral("+") : QStringLiteral("−"))
                   .arg(100 * std::abs(baseline->error()), 0, 'f', 1)
             : PlanSession::tr("not known");
}

}  // namespace shardlens::gui
