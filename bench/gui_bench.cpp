// Time and memory of the desktop app, offscreen. `gui_bench TRACE`, for a large run: the time from
// file to painted window compared with the analyzer's, the memory per event in addition to the
// trace's when What if has read the run too, frame times of zooming and panning at 1920x1080, and
// the time until a cancelled load ends. `gui_bench`: the time from an edit of the plan of a 70B
// model with 80 layers on 8 GPUs until its new timeline is painted. `gui_bench --views TRACE...`,
// for one trace of each rank: frame times of all views: one rank with all lanes (gathered units,
// host, queue, idle), a unit selected, all ranks unfolded, all folded. `gui_bench --first
// TRACE...`: the time from opening the traces of one run until the first picture is painted and
// until everything is shown, compared with reading alone. `gui_bench --start RUN`: the time from
// the start of a process until its window shows the run. Exit code 1 if a limit is exceeded.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <malloc.h>

#include <QApplication>
#include <QEvent>
#include <QProcess>
#include <QSettings>
#include <QTemporaryDir>

#include "core/base/error.h"
#include "core/base/heap.h"
#include "core/tree/module_tree.h"
#include "gui/model/base/qt_messages.h"
#include "gui/model/base/wait.h"
#include "gui/model/run/run_data.h"
#include "gui/model/run/run_loader.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/event_groups.h"
#include "gui/model/what_if/edit_history.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/main_window.h"
#include "profiler/analysis/analysis.h"

namespace {

using namespace shardlens;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::minutes kLongest{10};  // longest wait
constexpr int kRounds = 3;  // analyzer and window run alternately, since other programs may run

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Wall time, and CPU time of all threads, which is more reliable on a busy machine.
struct Stopwatch {
  Clock::time_point begin = Clock::now();
  std::clock_t cpu_begin = std::clock();
  double wall = 0, cpu = 0;
  void stop() {
    wall = seconds_since(begin);
    cpu = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  }
};

// "VmRSS:" is now, "VmHWM:" was the most so far.
double resident_bytes(const char* which = "VmRSS:") {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == which) {
      double kib = 0;
      status >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

// CPU time of this thread.
double cpu_milliseconds() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

struct Frames {
  std::vector<double> milliseconds, cpu;
  void add(gui::TimelineView& view) {
    const double before = cpu_milliseconds();
    view.viewport()->repaint();
    cpu.push_back(cpu_milliseconds() - before);
    milliseconds.push_back(static_cast<double>(view.lastFrame()) / 1e6);
  }
  double part(double p) { return part_of(milliseconds, p); }
  double cpu_part(double p) { return part_of(cpu, p); }

 private:
  static double part_of(std::vector<double>& all, double p) {
    std::sort(all.begin(), all.end());
    return all[static_cast<size_t>(p * static_cast<double>(all.size() - 1))];
  }
};

// Frames of a view as the user sees it: `name`, and the frames of zooming and panning in it.
struct SeenFrames {
  const char* name;
  Frames frames;
};

void show(gui::TimelineView& view, gui::SelectionContext& context, const gui::RunPointer& run) {
  view.resize(1920, 1080);
  view.show();
  QApplication::processEvents();
  context.setRun(run);
}

// At several places, zooms in from the whole run to single events, and pans at every tenth depth.
Frames move(gui::TimelineView& view) {
  Frames frames;
  constexpr int kWholeRun = 1 << 20;  // pixels: the top
  for (const double place : {0.1, 0.5, 0.83}) {
    view.fitAll();
    view.scrollBy(-kWholeRun);
    view.scrollBy(place > 0.1 ? static_cast<int>(place * view.scene().layout().height) - 500 : 0);
    frames.add(view);
    for (int i = 0; i < 60; ++i) {
      view.scene().axis.zoom(0.8, place * view.scene().axis.width());
      frames.add(view);
      if (i % 10 == 9) {
        for (int pan = 0; pan < 10; ++pan) {
          view.panBy(pan < 5 ? 0.07 : -0.07);
          frames.add(view);
        }
      }
    }
  }
  return frames;
}

// What PyTorch's FSDP would have issued for the collectives of the trace, which has no record of
// it: a unit is gathered until the next all-gather but one has ended.
void add_actions(trace::Trace& trace) {
  const analysis::Timeline timeline = analysis::make_timeline(trace);
  std::vector<std::pair<std::string, const analysis::Collective*>> gathers;
  for (const analysis::Collective& each : timeline.collectives) {
    if (each.kind == CollectiveKind::kAllGather && each.unit) {
      gathers.emplace_back(timeline.units[*each.unit], &each);
    }
  }
  const auto add = [&trace](schedule::Op op, const std::string& unit, Nanoseconds when) {
    trace::RecordedAction action;
    action.op = op;
    action.unit = unit;
    action.start = action.end = when;
    trace.recorded_actions.push_back(action);
  };
  for (size_t i = 0; i < gathers.size(); ++i) {
    const auto& [unit, gather] = gathers[i];
    add(schedule::Op::kAllGather, unit, gather->issued.value_or(gather->when.start));
    add(schedule::Op::kUseFull, unit, gather->when.end);
    add(schedule::Op::kUseShard, unit,
        gathers[std::min(i + 2, gathers.size() - 1)].second->when.end);
  }
}

// All views of a run of the same file, read as `ranks` ranks: one rank unfolded, with a unit
// selected and without, all ranks unfolded, all folded.
std::vector<SeenFrames> all_views(const std::vector<std::filesystem::path>& files) {
  trace::Run run = trace::Run::open(files);
  for (trace::Trace& trace : run.traces) {
    add_actions(trace);
  }
  const auto data = std::make_shared<const gui::RunData>(std::move(run));
  gui::SelectionContext context;
  gui::TimelineView view(context);
  show(view, context, data);
  const gui::RankData& rank = *data->ranks.front();
  std::printf("all views: %lld events, %zu ranks, %zu gathered units, %zu idle stretches\n",
              static_cast<long long>(data->event_count), data->ranks.size(),
              rank.residencies.size(), rank.idle().size());
  std::vector<SeenFrames> out;
  out.push_back({"one rank", move(view)});
  gui::LaneArrangement nested;
  nested.nested = true;
  const double before = cpu_milliseconds();
  view.arrange(nested);
  std::printf("nested operators           %12.0f ms of CPU, once\n", cpu_milliseconds() - before);
  out.push_back({"nested operators", move(view)});
  view.arrange({});
  context.selectUnit(rank.figures.units.back().fqn);
  out.push_back({"a unit selected", move(view)});
  context.clear();
  view.setAllCollapsed(false);
  out.push_back({"all ranks unfolded", move(view)});
  view.setAllCollapsed(true);
  out.push_back({"all ranks folded", move(view)});
  return out;
}

// CPU time of the sums that the panel Events makes when it is shown, by how it groups.
void time_sums(const gui::RunPointer& run) {
  gui::SelectionContext context;
  context.setRun(run);
  gui::EventGroups groups;
  for (const auto& [name, by] : {std::pair("name", gui::EventGrouping::kName),
                                 std::pair("thread or stream", gui::EventGrouping::kTrack),
                                 std::pair("unit", gui::EventGrouping::kUnit)}) {
    const double before = cpu_milliseconds();
    groups.show(context, {{}, by, false});
    std::printf("events by %-16s %12.0f ms of CPU, %d rows\n", name, cpu_milliseconds() - before,
                groups.rowCount());
  }
}

// Prints the frames of each view; true if all are within the limits.
bool frames_of_all_views(const std::vector<std::filesystem::path>& files) {
  constexpr double kMedian = 8, kP99 = 25;
  bool held = true;
  for (SeenFrames& seen : all_views(files)) {
    const double median = seen.frames.part(0.5), p99 = seen.frames.part(0.99);
    std::printf(
        "frames, %-19s%11zu, median %.2f ms (limit %.0f), p99 %.2f ms (limit %.0f); CPU %.2f, %.2f "
        "ms\n",
        seen.name, seen.frames.milliseconds.size(), median, kMedian, p99, kP99,
        seen.frames.cpu_part(0.5), seen.frames.cpu_part(0.99));
    held = held && median <= kMedian && p99 <= kP99;
  }
  std::printf("%s\n", held ? "all limits held" : "a limit was exceeded");
  return held;
}

// Seconds from cancelling a load until its thread has ended. The load is cancelled when its
// progress message begins with `what`.
double cancel_while(const char* path, const char* what) {
  auto loader = std::make_unique<gui::RunLoader>();
  bool there = false;
  QObject::connect(loader.get(), &gui::RunLoader::progress, [&](int percent, const QString& doing) {
    there = there || (doing.startsWith(what) && percent != 0);
  });
  loader->load({path});
  gui::wait_until([&] { return there || !loader->isLoading(); }, kLongest);
  const auto begin = Clock::now();
  loader->cancel();
  loader.reset();  // waits for the thread
  return seconds_since(begin);
}

struct Round {
  Stopwatch reading, analyzer, opening;
  // Per event; the window's in addition to the trace's, at rest and at most.
  double trace_bytes = 0, window_bytes = 0, most_bytes = 0;
  gui::RunPointer run;
  [[nodiscard]] double excess() const { return opening.wall - analyzer.wall; }
};

void analyze_alone(const char* path, Round& round) {
  ::malloc_trim(0);
  const double empty = resident_bytes();
  round.reading = round.analyzer = {};
  const trace::Run run = trace::Run::open(path);
  round.reading.stop();
  round.trace_bytes =
      (resident_bytes() - empty) / static_cast<double>(run.traces.front().events.size());
  (void)analysis::analyze(run);
  round.analyzer.stop();
}

// A shown window, with settings of its own.
struct BenchWindow {
  QTemporaryDir folder;
  QSettings settings{folder.filePath("bench.ini"), QSettings::IniFormat};
  gui::MainWindow window{settings};

  BenchWindow() {
    window.setUnattended();
    window.resize(1920, 1080);
    window.show();
  }
  // Returns when the window has settled.
  void open(const QStringList& paths) {
    bool settled = false;
    const auto connection =
        QObject::connect(&window, &gui::MainWindow::settled, [&settled] { settled = true; });
    window.open(paths);
    gui::wait_until([&settled] { return settled; }, kLongest);
    QObject::disconnect(connection);
  }
};

void open_window(const char* path, Round& round) {
  ::malloc_trim(0);
  BenchWindow bench;
  gui::MainWindow& window = bench.window;
  QApplication::processEvents();  // a window that is not exposed yet paints nothing
  const double before = resident_bytes();
  round.opening = {};
  bench.open({path});
  QApplication::processEvents();
  window.repaint();
  round.opening.stop();
  round.run = window.context().run();
  if (round.run == nullptr) {
    throw InputError(path, window.lastError().toStdString());
  }
  // What if reads the traces again and frees them; at which moment it does is chance.
  gui::wait_until([&window] { return !window.session().isObserving(); }, kLongest);
  const auto in_addition = [&](double bytes) {
    return (bytes - before) / static_cast<double>(round.run->event_count) - round.trace_bytes;
  };
  round.window_bytes = in_addition(resident_bytes());
  round.most_bytes = in_addition(resident_bytes("VmHWM:"));
}

int run(const char* path) {
  std::vector<Round> rounds(kRounds);
  for (Round& round : rounds) {
    analyze_alone(path, round);
    open_window(path, round);
    std::printf(
        "analyzer %6.2f s (CPU %.2f, reading %.2f); window interactive %6.2f s (CPU %.2f)\n",
        round.analyzer.wall, round.analyzer.cpu, round.reading.wall, round.opening.wall,
        round.opening.cpu);
    std::fflush(stdout);
    if (&round != &rounds.back()) {
      round.run.reset();
    }
  }
  const gui::RunPointer data = rounds.back().run;
  const Round first = rounds.front();  // its memory is that of a fresh process
  std::sort(rounds.begin(), rounds.end(),
            [](const Round& a, const Round& b) { return a.excess() < b.excess(); });
  const double excess = rounds[kRounds / 2].excess();
  gui::SelectionContext context;
  gui::TimelineView view(context);
  show(view, context, data);
  Frames frames = move(view);
  time_sums(data);
  gui::LaneArrangement nested;
  nested.nested = true;
  const double before = cpu_milliseconds();
  view.arrange(nested);
  std::printf("nested operators           %12.0f ms of CPU, once\n", cpu_milliseconds() - before);
  Frames nested_frames = move(view);
  std::printf("frames with them           %12zu, CPU: median %.2f ms, p99 %.2f ms\n",
              nested_frames.milliseconds.size(), nested_frames.cpu_part(0.5),
              nested_frames.cpu_part(0.99));
  const double stop_reading = cancel_while(path, "Reading");
  const double stop_analyzing = cancel_while(path, "Analyzing");
  std::printf("events                     %12lld, %.1f bytes each\n",
              static_cast<long long>(data->event_count), first.trace_bytes);
  std::printf("window beyond the analyzer %12.2f s, median of %d rounds (limit 1)\n", excess,
              kRounds);
  std::printf("memory beyond the trace    %12.1f bytes per event (limit 40), at most %.1f\n",
              first.window_bytes, first.most_bytes);
  std::printf(
      "frames                     %12zu, median %.2f ms (limit 16), p99 %.2f ms (limit 50)\n",
      frames.milliseconds.size(), frames.part(0.5), frames.part(0.99));
  std::printf("cancelled while reading    %12.3f s until nothing runs\n", stop_reading);
  std::printf("cancelled while analyzing  %12.3f s\n", stop_analyzing);
  const bool held =
      excess <= 1 && first.window_bytes <= 40 && frames.part(0.5) <= 16 && frames.part(0.99) <= 50;
  std::printf("%s\n", held ? "all limits held" : "a limit was exceeded");
  return held ? 0 : 1;
}

// Stops a watch when any timeline has painted a run for the first time.
class FirstPicture : public QObject {
 public:
  Stopwatch time;

 protected:
  bool eventFilter(QObject* object, QEvent* event) override {
    if (painting_ && time.wall == 0) {
      time.stop();  // at the event that follows
    }
    auto* view = qobject_cast<gui::TimelineView*>(object->parent());
    painting_ = painting_ || (event->type() == QEvent::Paint && view != nullptr &&
                              object == view->viewport() && view->scene().run() != nullptr);
    return false;
  }

 private:
  bool painting_ = false;
};

struct FirstRound {
  Stopwatch reading, first, whole;
};

FirstRound open_once_more(const std::vector<std::filesystem::path>& paths) {
  FirstRound round;
  {
    round.reading = {};
    const trace::Run run = trace::Run::open(paths);
    round.reading.stop();
  }
  BenchWindow bench;
  gui::MainWindow& window = bench.window;
  QApplication::processEvents();
  FirstPicture picture;
  qApp->installEventFilter(&picture);
  QStringList names;
  for (const std::filesystem::path& path : paths) {
    names.append(QString::fromStdString(path.string()));
  }
  picture.time = round.whole = {};
  bench.open(names);
  QApplication::processEvents();
  window.panels().flush();
  window.repaint();
  round.whole.stop();
  round.first = picture.time;
  if (window.context().run() == nullptr) {
    throw InputError(paths.front().string(), window.lastError().toStdString());
  }
  return round;
}

int first_picture(const std::vector<std::filesystem::path>& paths) {
  constexpr double kLimit = 1;  // s
  std::vector<FirstRound> rounds;
  for (int i = 0; i < kRounds; ++i) {
    const FirstRound& round = rounds.emplace_back(open_once_more(paths));
    std::printf(
        "reading %.2f s (CPU %.2f); first picture %.2f s (CPU %.2f); whole %.2f s (CPU "
        "%.2f)\n",
        round.reading.wall, round.reading.cpu, round.first.wall, round.first.cpu, round.whole.wall,
        round.whole.cpu);
    std::fflush(stdout);
  }
  const auto median = [&rounds](auto value) {
    std::sort(rounds.begin(), rounds.end(),
              [&value](const FirstRound& a, const FirstRound& b) { return value(a) < value(b); });
    return value(rounds[kRounds / 2]);
  };
  const double first = median([](const FirstRound& r) { return r.first.wall; });
  std::printf("first picture              %12.2f s (limit %.0f), CPU %.2f s, median of %d\n", first,
              kLimit, median([](const FirstRound& r) { return r.first.cpu; }), kRounds);
  std::printf("whole / reading            %12.2f, CPU %.2f\n",
              median([](const FirstRound& r) { return r.whole.wall / r.reading.wall; }),
              median([](const FirstRound& r) { return r.whole.cpu / r.reading.cpu; }));
  return first <= kLimit ? 0 : 1;
}

// Llama 2 70B. Source: its config.json on Hugging Face.
constexpr const char* kModel =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
        "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05})";
constexpr double kEditLimit = 200;  // ms

void wait_for_version(gui::PlanSession& session) {
  gui::wait_until([&session] { return session.current() != nullptr; }, kLongest);
}

// Times every choice of every setting once, and undoes it. The delay after an edit is included.
int edit() {
  gui::PlanSession session;
  gui::SelectionContext context;
  gui::TimelineView view(context);
  view.resize(1920, 1080);
  view.show();
  QApplication::processEvents();
  session.start(plan::parse_model_config(kModel, "llama-70b"), "8xH100");
  wait_for_version(session);
  context.setRun(session.current()->run);
  std::vector<double> milliseconds;
  for (size_t knob = 0; knob < session.knobs().size(); ++knob) {
    for (size_t choice = 0; choice < session.knobs()[knob].choices.size(); ++choice) {
      const auto begin = Clock::now();
      session.choose(knob, choice);
      const bool known = session.current() != nullptr;
      wait_for_version(session);
      view.setGhost({session.current()->run, 0, 0, 0, "simulated", {}});
      view.viewport()->repaint();
      if (!known && session.current()->error.isEmpty()) {
        milliseconds.push_back(1e3 * seconds_since(begin));
      }
      session.undoStack().undo();
    }
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("edits of a 70B plan        %12zu, median %.0f ms, longest %.0f ms (limit %.0f)\n",
              milliseconds.size(), milliseconds[milliseconds.size() / 2], milliseconds.back(),
              kEditLimit);
  return milliseconds.back() <= kEditLimit ? 0 : 1;
}

// What `--start` starts: a window that shows the run, then the process ends.
int open_once(const char* path) {
  BenchWindow bench;
  gui::MainWindow& window = bench.window;
  bench.open({path});
  window.repaint();
  std::fflush(nullptr);
  std::_Exit(window.context().run() != nullptr ? 0 : 1);
}

int start(const char* path) {
  constexpr int kStarts = 11;
  constexpr double kLimit = 500;  // ms
  std::vector<double> milliseconds;
  for (int i = 0; i < kStarts; ++i) {
    const auto begin = Clock::now();
    const int code = QProcess::execute(QApplication::applicationFilePath(), {"--open", path});
    milliseconds.push_back(1e3 * seconds_since(begin));
    if (code != 0) {
      throw InputError(path, "the window did not open it");
    }
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const double median = milliseconds[kStarts / 2];
  std::printf("start to window            %12d, median %.0f ms (limit %.0f), longest %.0f ms\n",
              kStarts, median, kLimit, milliseconds.back());
  return median <= kLimit ? 0 : 1;
}

void tell(QtMsgType /*type*/, const QMessageLogContext& /*context*/, const QString& message) {
  if (!shardlens::gui::is_platform_notice(message)) {
    std::fprintf(stderr, "%s\n", qPrintable(message));
  }
}

}  // namespace

int main(int argc, char** argv) {
  shardlens::give_back_freed_memory();  // as the program does
  const std::string mode = argc > 1 ? argv[1] : "";
  const bool one = mode == "--start" || mode == "--open";
  const bool several = mode == "--views" || mode == "--first";
  if ((one && argc != 3) || (several && argc < 3) || (!one && !several && argc > 2)) {
    std::fputs("usage: gui_bench [TRACE | --views TRACE... | --first TRACE... | --start RUN]\n",
               stderr);
    return 2;
  }
  qputenv("QT_QPA_PLATFORM", "offscreen");
  qInstallMessageHandler(tell);
  QApplication app(argc, argv);
  try {
    if (mode == "--views") {
      return frames_of_all_views({argv + 2, argv + argc}) ? 0 : 1;
    }
    return mode == "--first"   ? first_picture({argv + 2, argv + argc})
           : mode == "--start" ? start(argv[2])
           : mode == "--open"  ? open_once(argv[2])
           : argc == 2         ? run(argv[1])
                               : edit();
  } catch (const shardlens::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
