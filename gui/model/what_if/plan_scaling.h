#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <QObject>
#include <QString>

#include "gui/model/base/background.h"
#include "gui/model/what_if/edit_history.h"
#include "sim/scenario/other_speeds.h"
#include "sim/search/mesh_report.h"

namespace shardlens::gui {

// The setting that changes; all others stay as in the plan.
enum class ScaleAxis : uint8_t { kRanks, kBatch, kSeq };

struct ScalePoint {  // the plan with another number of ranks, another batch or sequence
  int64_t value = 0;
  bool now = false;  // what the plan has
  QString error;     // why it is not predicted; "": it is
  StepFigures figures;
  double tokens_per_s = 0;  // of all ranks
  int64_t ranks = 1;
  Bytes peak = 0, reserved = 0, available = 0;
  bool fits = true;                    // otherwise it has no figures
  std::vector<sim::StepLimit> limits;  // what bounds the step

  [[nodiscard]] bool hasStep() const { return error.isEmpty() && fits; }
};

// Predicts the session's plan at other sizes, and on its machine at other speeds.
//
// Threads  all members on the object's own thread. The work is done on another one; while it is
//          busy, only the latest speeds and axis are kept. The answer for the plan itself comes
//          first, then the points.
class PlanScaling : public QObject {
  Q_OBJECT
 public:
  static constexpr int64_t kMostScaled = 1024;
  explicit PlanScaling(PlanSession& session, QObject* parent = nullptr);
  ~PlanScaling() override;

  // Takes the session's state if it changed. While nothing shows the answers, nothing is predicted.
  void follow(bool shown);
  void setAxis(ScaleAxis axis);
  void setSpeeds(const sim::Speeds& speeds);
  [[nodiscard]] ScaleAxis axis() const { return axis_; }
  [[nodiscard]] const sim::Speeds& speeds() const { return speeds_; }

  // The plan itself at the speeds; nullopt: not known yet.
  [[nodiscard]] const std::optional<ScalePoint>& now() const { return now_; }
  // By value; those of the last axis and speeds that were finished.
  [[nodiscard]] const std::vector<ScalePoint>& points() const { return points_; }
  [[nodiscard]] bool isBusy() const { return job_ != nullptr; }

  // The values of an axis: powers of two, with what the state has.
  [[nodiscard]] static std::vector<int64_t> values_of(ScaleAxis axis,
                                                      const PlanSubject& subject,
                                                      const PlanState& state);

 signals:
  void changed();

 private:
  struct Known;
  struct Job;
  void refresh();
  void clear();
  void begin(bool all);
  void finish(const std::shared_ptr<Job>& job);
  PlanSession& session_;
  bool shown_ = false;
  bool stale_ = true;   // what was asked for last was not begun
  bool again_ = false;  // begins when the job has ended
  ScaleAxis axis_ = ScaleAxis::kRanks;
  sim::Speeds speeds_;
  std::optional<PlanState> state_;  // that `known_` is of
  std::shared_ptr<const sim::ScenarioModel> model_;
  std::shared_ptr<Known> known_;  // predictions at the speeds 1; one job at a time uses it
  std::shared_ptr<Job> job_;
  std::optional<ScalePoint> now_;
  std::vector<ScalePoint> points_;
  Background background_;
};

}  // namespace shardlens::gui
