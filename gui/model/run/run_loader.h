#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <QObject>
#include <QString>
#include <QStringList>
#include <QTimer>

#include "gui/model/base/background.h"
#include "gui/model/run/run_data.h"
#include "profiler/trace/model/part_sink.h"

namespace shardlens::gui {

[[nodiscard]] std::vector<std::filesystem::path> paths_of(const QStringList& paths);

// The paths of each run. All paths together are the traces of one run, unless some of them are
// directories of several runs (check::run_paths()): then only these runs are returned, one entry
// each. Errors: InputError.
[[nodiscard]] std::vector<std::vector<std::filesystem::path>> runs_of(
    const std::vector<std::filesystem::path>& paths);

// Reads and analyzes a run on another thread; of several runs, the first one. One load at a time: a
// new load cancels the previous one, and each load emits exactly one of loaded(), failed() and
// cancelled(). Before these there may be one preview().
//
// Threads  all members on the object's own thread; signals are emitted there.
class RunLoader : public QObject {
  Q_OBJECT
 public:
  explicit RunLoader(QObject* parent = nullptr);
  ~RunLoader() override;  // stops the load and waits for its thread

  void load(const std::vector<std::filesystem::path>& paths);
  void cancel();
  // Loads that begin after this emit preview() when so many events of a trace have been read, or a
  // whole trace of several, if the rest of the run is several times as much. Where these events are
  // only of the host, the preview is of as many in which the device works. 0, as at first: never.
  void setPreviewFrom(size_t events) { preview_from_ = events; }
  [[nodiscard]] bool isLoading() const { return job_ != nullptr; }

 signals:
  // percent: how much has been read, never decreasing; -1: unknown. `what`: the current activity as
  // text.
  void progress(int percent, const QString& what);
  // A part of one trace, without figures (RunData::preview).
  void preview(shardlens::gui::RunPointer run);
  void loaded(shardlens::gui::RunPointer run);
  void failed(const QString& message);
  void cancelled();

 private:
  struct Job : trace::PartSink {
    std::optional<size_t> wants(const trace::Trace& so_far, size_t host_only, bool whole) override;
    void take(trace::Trace read) override;
    // What to draw: a part, or a file of which the part with a device's work is still to be read.
    using Picture = std::variant<std::monostate, trace::Trace, std::filesystem::path>;
    Picture taken();  // since the last call; std::monostate: nothing

    std::vector<std::filesystem::path> paths;
    size_t preview_from = 0;
    std::atomic<bool> wanted{false};  // a picture was asked for
    std::mutex mutex;                 // guards `picture`
    Picture picture;
    RunPointer preview;
    trace::Progress progress;
    std::atomic<bool> analyzing{false};
    std::pair<bool, int> reported{false, -2};  // last (reading, percent) emitted; -2: none
    RunPointer run;
    QString error;
  };
  static void work(Job& job);
  void finish(const std::shared_ptr<Job>& job);
  void report();
  void makePreview();

  size_t preview_from_ = 0;
  std::shared_ptr<Job> job_;  // the current load; results of earlier ones are ignored
  QTimer ticker_;
  Background background_;
};

}  // namespace shardlens::gui
