#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <QObject>
#include <QString>
#include <QTemporaryDir>

#include "core/base/step_figures.h"
#include "gui/model/base/background.h"
#include "gui/model/run/capture_job.h"
#include "gui/model/run/run_loader.h"
#include "gui/model/what_if/edit_history.h"

namespace shardlens::gui {

// A version of the plan that was run, or is running.
struct PlanRun {
  enum class Stage : uint8_t { kRunning, kReading, kMeasured, kFailed, kStopped };
  QString name, directory;
  QString version;  // "v1 forward prefetch 1"
  Stage stage = Stage::kRunning;
  QString message;          // why it failed; of a measured run: why a figure is missing
  int step = 0, steps = 0;  // done and wanted, while it runs

  StepFigures predicted;
  Bytes predicted_peak = 0;
  RunPointer prediction;  // the simulated timeline of one rank

  RunPointer run;                       // measured
  Nanoseconds duration = 0;             // the median step
  std::optional<StepFigures> measured;  // of this step
  std::optional<Bytes> peak;            // nullopt: no allocator was recorded

  // Predicted minus measured compute, exposed communication, exposed copies and idle, as shares of
  // the measured step; they sum to error(). Requires `measured`.
  [[nodiscard]] std::array<double, 4> errors() const;
  // Predicted minus measured step, as a share of the measured step. Requires kMeasured.
  [[nodiscard]] double error() const;
};

// Runs versions of a session's plan on this machine, one at a time, and keeps what was predicted
// and measured. A capture is a child process; ending it, by cancel() or with this object, never
// takes longer than CaptureJob says.
//
// Threads  all members on the object's own thread, where the signals are emitted.
class PlanRuns : public QObject {
  Q_OBJECT
 public:
  explicit PlanRuns(PlanSession& session, QObject* parent = nullptr);

  // Path of the shardlens executable; at first the one next to this program.
  void setProgram(const QString& program) { program_ = program; }
  // Why the current version cannot be run; "": it can.
  [[nodiscard]] QString why() const;
  // How the open run was captured, with the current version's model, ranks, batch and sequence;
  // `tokens`, `out` and `plan` are not set if nothing says what they are.
  [[nodiscard]] CaptureOptions options() const;
  // "v1 forward prefetch 1"; "": there is no version.
  [[nodiscard]] QString version() const;
  // The script that runs the current version on another machine. Requires an open session.
  [[nodiscard]] QString script(const CaptureOptions& options) const;

  // Runs the current version. No-op while another one runs. Requires why() to be "".
  void start(const QString& name, const CaptureOptions& options);
  void cancel();
  [[nodiscard]] bool isBusy() const { return job_.isRunning() || loader_.isLoading() || reading_; }
  [[nodiscard]] bool isRunning() const { return job_.isRunning(); }

  // In the order in which they were started. They are dropped when another run is opened.
  [[nodiscard]] const std::vector<PlanRun>& list() const { return list_; }

 signals:
  void changed();
  void line(const QString& text);  // that the capture printed
  void measured(size_t run);       // a run ended and was read
  void failed(const QString& message);

 private:
  struct Reading;
  void follow();
  void end(PlanRun::Stage stage, const QString& message);
  void read(const RunPointer& run);
  PlanSession& session_;
  QString program_;
  CaptureJob job_;
  RunLoader loader_;
  QTemporaryDir plans_;
  std::vector<PlanRun> list_;
  std::shared_ptr<const sim::ScenarioModel> model_;
  uint64_t subject_ = 0;  // results for an earlier subject are discarded
  bool reading_ = false;
  Background background_;
};

}  // namespace shardlens::gui
