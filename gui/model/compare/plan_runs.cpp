#include "gui/model/compare/plan_runs.h"

#include <exception>

#include <nlohmann/json.hpp>

#include <QCoreApplication>
#include <QFileInfo>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "core/json/json_reader.h"
#include "gui/model/memory/measured_memory.h"
#include "gui/model/what_if/run_script.h"
#include "sim/scenario/baseline_parts.h"
#include "sim/scenario/recorded_run.h"

namespace shardlens::gui {
namespace {

constexpr int kRanksPerNode = 8;  // of a machine of which nothing else is known

// The options of the capture that a run's run.json describes; null: another program recorded it.
nlohmann::json recorded_options(const RunPointer& run) {
  if (run == nullptr || run->run.environment.empty()) {
    return nullptr;
  }
  try {
    const nlohmann::json root = plan::parse_json(run->run.environment, "run.json");
    return root.is_object() && root.contains("options") && root["options"].is_object()
               ? root["options"]
               : nlohmann::json(nullptr);
  } catch (const Error&) {
    return nullptr;
  }
}

QString text_of(const nlohmann::json& options, const char* key) {
  return options.is_object() && options.contains(key) && options[key].is_string()
             ? QString::fromStdString(options[key].get<std::string>())
             : QString();
}

}  // namespace

// The figures of a run that are read on another thread.
struct PlanRuns::Reading {
  RunPointer run;
  Nanoseconds duration = 0;
  std::optional<StepFigures> measured;
  std::optional<Bytes> peak;
  QString error;

  void work() {
    peak = measured_peak(*run);
    try {
      const auto recorded = sim::RecordedRun::of(
          analysis::AnalyzedRun(run->run, run->analysis.timelines, run->analysis.matching));
      duration = recorded->baseline().measured;
      if (const auto parts = sim::baseline_parts(recorded, run->analysis)) {
        measured = parts->measured;
      }
    } catch (const std::exception& what) {
      error = QString::fromStdString(what.what());
    }
  }
};

std::array<double, 4> PlanRun::errors() const {
  const auto share = [this](Nanoseconds StepFigures::*part) {
    return static_cast<double>(predicted.*part - (*measured).*part) / static_cast<double>(duration);
  };
  return {share(&StepFigures::compute), share(&StepFigures::exposed_comm),
          share(&StepFigures::exposed_copy), share(&StepFigures::idle)};
}

double PlanRun::error() const {
  return static_cast<double>(predicted.duration()) / static_cast<double>(duration) - 1;
}

PlanRuns::PlanRuns(PlanSession& session, QObject* parent)
    : QObject(parent),
      session_(session),
      program_(QCoreApplication::applicationDirPath() + QStringLiteral("/shardlens")) {
  connect(&session_, &PlanSession::stateChanged, this, &PlanRuns::follow);
  connect(&job_, &CaptureJob::line, this, &PlanRuns::line);
  connect(&job_, &CaptureJob::progress, this, [this](int step, int steps) {
    list_.back().step = step;
    list_.back().steps = steps;
    emit changed();
  });
  connect(&job_, &CaptureJob::failed, this,
          [this](const QString& message) { end(PlanRun::Stage::kFailed, message); });
  connect(&job_, &CaptureJob::cancelled, this,
          [this] { end(PlanRun::Stage::kStopped, tr("Stopped.")); });
  connect(&job_, &CaptureJob::finished, this, [this](const QString& out) {
    list_.back().stage = PlanRun::Stage::kReading;
    loader_.load(paths_of({out}));
    emit changed();
  });
  connect(&loader_, &RunLoader::loaded, this, &PlanRuns::read);
  connect(&loader_, &RunLoader::failed, this,
          [this](const QString& message) { end(PlanRun::Stage::kFailed, message); });
  connect(&loader_, &RunLoader::cancelled, this,
          [this] { end(PlanRun::Stage::kStopped, tr("Stopped.")); });
}

// Runs of another model's plan say nothing about this one.
void PlanRuns::follow() {
  const auto& model = session_.subject().of_run != nullptr ? session_.subject().of_run
                                                           : session_.subject().of_config;
  if (model == model_) {
    return;
  }
  model_ = model;
  ++subject_;
  cancel();
  reading_ = false;
  // The capture that is being stopped still reports its end.
  const bool ending = job_.isRunning();
  std::optional<PlanRun> last = ending ? std::optional(list_.back()) : std::nullopt;
  list_.clear();
  if (last) {
    list_.push_back(std::move(*last));
  }
  emit changed();
}

QString PlanRuns::version() const {
  const PlanVersion* now = session_.current();
  return now == nullptr
             ? QString()
             : QStringLiteral("v%1 %2").arg(now - session_.versions().data()).arg(now->title);
}

QString PlanRuns::why() const {
  if (!session_.isOpen()) {
    return session_.isObserving()     ? tr("The machine is calibrated from the run …")
           : session_.why().isEmpty() ? tr("There is no plan: open a run, or a model.")
                                      : session_.why();
  }
  const PlanVersion* now = session_.current();
  if (now == nullptr) {
    return tr("The plan is being simulated …");
  }
  if (!now->engine.isEmpty()) {
    return tr("The engine cannot run this plan yet: %1").arg(now->engine);
  }
  if (!now->error.isEmpty()) {
    return tr("This plan cannot be simulated: %1").arg(now->error);
  }
  return options().model.isEmpty()
             ? tr("There is no config.json of the model, from which the engine makes it. Open a "
                  "capture directory, or a plan for a model's config.json.")
             : QString();
}

CaptureOptions PlanRuns::options() const {
  const PlanState& state = session_.state();
  const nlohmann::json recorded = recorded_options(session_.run());
  CaptureOptions out;
  out.tokens = text_of(recorded, "tokens");
  if (!QFileInfo(out.tokens).isFile()) {
    out.tokens.clear();
  }
  for (const auto& [key, value] :
       {std::pair("device", &out.device), std::pair("backend", &out.backend)}) {
    if (const QString text = text_of(recorded, key); !text.isEmpty()) {
      *value = text;
    }
  }
  out.nproc = static_cast<int>(state.world_size);
  out.batch = static_cast<int>(state.step.batch);
  out.seq = static_cast<int>(state.step.seq.value_or(1));
  out.more = step_flags(state.step);
  if (out.backend == QStringLiteral("emulated")) {
    if (const QString hardware = text_of(recorded, "hardware"); !hardware.isEmpty()) {
      out.more << QStringLiteral("--hardware") << hardware;
    }
  }
  const auto& model = session_.subject().of_config;
  if (model != nullptr && model->config()->file == nullptr) {
    const QString config = QString::fromStdString(model->config()->source);
    out.model = QFileInfo(config).isFile() ? config : QString();
  }
  return out;
}

QString PlanRuns::script(const CaptureOptions& options) const {
  std::optional<sim::HardwareSpec> spec;
  try {
    spec = spec_of(session_.state().machine);
  } catch (const Error&) {
    spec = std::nullopt;  // its file was removed
  }
  CaptureOptions there = options;
  if (spec) {  // of GPUs
    there.device = QStringLiteral("cuda");
    there.backend = QStringLiteral("nccl");
  }
  return run_script(there, version(), session_.planJson(), session_.state().world_size,
                    spec ? spec->gpus : kRanksPerNode);
}

void PlanRuns::start(const QString& name, const CaptureOptions& options) {
  const PlanVersion* now = session_.current();
  if (isBusy() || now == nullptr) {
    return;
  }
  PlanRun run;
  run.name = name;
  run.directory = options.out;
  run.version = version();
  run.steps = options.steps;
  run.predicted = now->prediction.figures;
  run.predicted_peak = now->peak();
  run.prediction = now->run;
  list_.push_back(std::move(run));
  CaptureOptions with_plan = options;
  with_plan.plan = plans_.filePath(QStringLiteral("plan.json"));
  try {
    write_file_atomically(with_plan.plan.toStdString(), session_.planJson());
  } catch (const Error& error) {
    end(PlanRun::Stage::kFailed, QString::fromStdString(error.what()));
    return;
  }
  job_.start(program_, with_plan);
  emit changed();
}

void PlanRuns::cancel() {
  if (job_.isRunning()) {
    job_.cancel();
  } else {
    loader_.cancel();
  }
}

void PlanRuns::end(PlanRun::Stage stage, const QString& message) {
  if (list_.empty()) {
    return;
  }
  list_.back().stage = stage;
  list_.back().message = message;
  emit changed();
  if (stage == PlanRun::Stage::kFailed) {
    emit failed(message);
  }
}

void PlanRuns::read(const RunPointer& run) {
  auto reading = std::make_shared<Reading>();
  reading->run = run;
  reading_ = true;
  background_.run([reading] { reading->work(); },
                  [this, reading, subject = subject_] {
                    if (subject != subject_) {
                      return;
                    }
                    reading_ = false;
                    PlanRun& of = list_.back();
                    of.run = reading->run;
                    of.duration = reading->duration;
                    of.measured = reading->measured;
                    of.peak = reading->peak;
                    end(reading->duration > 0 ? PlanRun::Stage::kMeasured : PlanRun::Stage::kFailed,
                        reading->error);
                    if (of.stage == PlanRun::Stage::kMeasured) {
                      emit measured(list_.size() - 1);
                    }
                  });
}

}  // namespace shardlens::gui
