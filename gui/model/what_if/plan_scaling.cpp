#include "gui/model/what_if/plan_scaling.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "sim/scenario/largest_step.h"
#include "sim/search/on_ranks.h"

namespace shardlens::gui {
namespace {

constexpr int64_t kMostBatch = 64, kLeastSeq = 512, kMostSeq = 131'072;

sim::Scenario scenario_at(const sim::Scenario& own, ScaleAxis axis, int64_t value) {
  if (axis == ScaleAxis::kRanks) {
    return value == own.world_size ? own : sim::on_ranks(own, value);
  }
  const bool batch = axis == ScaleAxis::kBatch;
  return sim::with_size(own, batch ? sim::StepSize::kBatch : sim::StepSize::kSequence, value);
}

}  // namespace

// Predictions that do not depend on the speeds, so that a slider only makes times again.
struct PlanScaling::Known {
  struct Entry {
    sim::Scenario scenario;
    std::optional<sim::Prediction> prediction;
    QString error;
  };
  std::optional<sim::Scenario> own;
  QString error;  // why there is no scenario
  std::map<std::pair<ScaleAxis, int64_t>, Entry> entries;
};

struct PlanScaling::Job {
  PlanSubject subject;
  PlanState state;
  ScaleAxis axis = ScaleAxis::kRanks;
  sim::Speeds speeds;
  bool all = false;  // the points too, not only the plan itself
  std::shared_ptr<Known> known;
  std::atomic<bool> stop = false;
  std::optional<ScalePoint> now;
  std::vector<ScalePoint> points;

  [[nodiscard]] int64_t value_now() const {
    return axis == ScaleAxis::kRanks   ? state.world_size
           : axis == ScaleAxis::kBatch ? state.step.batch
                                       : state.step.seq.value_or(1);
  }

  void work() {
    try {
      if (!known->own) {
        known->own = scenario_of(subject, state);
      }
    } catch (const std::exception& error) {
      known->error = QString::fromStdString(error.what());
    }
    now = point(value_now());
    for (const int64_t value : all ? values_of(axis, subject, state) : std::vector<int64_t>()) {
      if (stop) {
        return;
      }
      points.push_back(value == now->value ? *now : point(value));
    }
  }

  const Known::Entry& entry(int64_t value) {
    Known::Entry& of = known->entries[{axis, value}];
    if (of.prediction || !of.error.isEmpty()) {
      return of;
    }
    if (!known->own) {
      of.error = known->error;
      return of;
    }
    try {
      of.scenario = scenario_at(*known->own, axis, value);
      of.prediction = sim::evaluate(of.scenario);
      of.prediction->step.ranks.clear();
    } catch (const std::exception& error) {
      of.error = QString::fromStdString(error.what());
    }
    return of;
  }

  ScalePoint point(int64_t value) {
    ScalePoint out;
    out.value = value;
    out.now = value == value_now();
    const Known::Entry& of = entry(value);
    out.error = of.error;
    if (!of.prediction) {
      return out;
    }
    out.ranks = of.scenario.world_size;
    out.peak = of.prediction->memory.peak_allocated;
    out.reserved = of.prediction->memory.peak_reserved;
    out.available = of.prediction->available;
    out.fits = of.prediction->memory.fits;
    if (!out.fits) {
      return out;
    }
    out.figures = of.prediction->figures;
    out.tokens_per_s = of.prediction->tokens_per_s;
    if (speeds != sim::Speeds{}) {
      try {
        const sim::StepPrediction step = sim::at_speeds(of.scenario, *of.prediction, speeds);
        out.figures = step.figures;
        out.tokens_per_s = step.tokens_per_s;
      } catch (const std::exception& error) {
        out.error = QString::fromStdString(error.what());  // no collective of one byte was measured
      }
    }
    out.limits = sim::limits_of(out.figures);
    return out;
  }
};

PlanScaling::PlanScaling(PlanSession& session, QObject* parent)
    : QObject(parent), session_(session) {}

PlanScaling::~PlanScaling() {
  if (job_ != nullptr) {
    job_->stop = true;
  }
}

std::vector<int64_t> PlanScaling::values_of(ScaleAxis axis,
                                            const PlanSubject& subject,
                                            const PlanState& state) {
  std::vector<int64_t> out;
  const auto powers = [&out](int64_t from, int64_t to) {
    for (int64_t value = from; value <= to; value *= 2) {
      out.push_back(value);
    }
  };
  int64_t now = 0;
  if (axis == ScaleAxis::kRanks) {
    powers(1, kMostScaled);
    now = state.world_size;
  } else if (axis == ScaleAxis::kBatch) {
    powers(1, kMostBatch);
    now = state.step.batch;
  } else {
    const plan::ModelConfig* config =
        subject.of_config != nullptr ? subject.of_config->config() : nullptr;
    const int64_t most =
        config != nullptr && config->max_positions > 0 ? config->max_positions : kMostSeq;
    now = state.step.seq.value_or(1);
    if (state.step.seq) {
      powers(std::min({kLeastSeq, most, std::max<int64_t>(1, now / 4)}), std::min(most, kMostSeq));
    }
  }
  if (std::ranges::find(out, now) == out.end()) {
    out.push_back(now);
    std::ranges::sort(out);
  }
  return out;
}

void PlanScaling::follow(bool shown) {
  shown_ = shown;
  refresh();
}

void PlanScaling::setAxis(ScaleAxis axis) {
  if (std::exchange(axis_, axis) != axis) {
    points_.clear();
    stale_ = true;
    emit changed();  // tables refer to the points by index
    refresh();
  }
}

void PlanScaling::setSpeeds(const sim::Speeds& speeds) {
  if (std::exchange(speeds_, speeds) != speeds) {
    stale_ = true;
    refresh();
  }
}

void PlanScaling::clear() {
  now_.reset();
  points_.clear();
  stale_ = true;
  emit changed();
}

void PlanScaling::refresh() {
  if (!session_.isOpen()) {
    if (job_ != nullptr) {
      job_->stop = true;
    }
    again_ = false;
    state_.reset();
    known_.reset();
    clear();
    return;
  }
  if (!shown_) {
    return;
  }
  const auto& model = session_.subject().of_run != nullptr ? session_.subject().of_run
                                                           : session_.subject().of_config;
  if (state_ != session_.state() || model_ != model) {
    state_ = session_.state();
    model_ = model;
    known_ = std::make_shared<Known>();
    clear();
  }
  if (!std::exchange(stale_, false)) {
    return;
  }
  if (job_ != nullptr) {
    job_->stop = true;
    again_ = true;
    return;
  }
  begin(false);
}

void PlanScaling::begin(bool all) {
  again_ = false;
  job_ = std::make_shared<Job>();
  job_->subject = session_.subject();
  job_->state = *state_;
  job_->axis = axis_;
  job_->speeds = speeds_;
  job_->all = all;
  job_->known = known_;
  background_.run([job = job_] { job->work(); }, [this, job = job_] { finish(job); });
}

void PlanScaling::finish(const std::shared_ptr<Job>& job) {
  job_.reset();
  if (known_ == nullptr) {
    return;
  }
  const bool wanted = job->known == known_ && job->axis == axis_ && job->speeds == speeds_;
  if (wanted) {
    now_ = job->now;
    if (job->all && !job->stop) {
      points_ = std::move(job->points);
    }
  }
  if (again_ || !wanted) {
    begin(false);
  } else if (!job->all) {
    begin(true);
  }
  emit changed();
}

}  // namespace shardlens::gui
