// CPU time of the views in which sharding is explored, offscreen in a window of 1920x1080, as CPU
// time of the thread that draws, which other programs do not change. `gui_planning_bench`: what is
// drawn for a plan of a 70B model with 80 layers on 1 024 GPUs, and the answer to each move of a
// slider of Scaling. `gui_planning_bench TRACE...`, for one trace of each rank or the directory of
// a run: frames of zooming and panning, with nested and pinned lanes, while each of the panels is
// in front; a frame is the timeline and the panel. Of a run with a plan the panels show a second
// version of it, all plans of a search and other sizes. Exit code 1 if a limit is exceeded.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <QApplication>
#include <QComboBox>
#include <QSettings>
#include <QTemporaryDir>

#include "core/base/error.h"
#include "core/base/heap.h"
#include "gui/model/base/qt_messages.h"
#include "gui/model/base/wait.h"
#include "gui/model/what_if/mesh_picture.h"
#include "gui/model/what_if/plan_scaling.h"
#include "gui/view/panel_parts/mesh_map.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/main_window.h"

namespace {

using namespace shardlens;
constexpr std::chrono::minutes kLongest{10};  // longest wait
constexpr QSize kWindow{1920, 1080};

double cpu_milliseconds(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  std::timespec now{};
  ::clock_gettime(clock, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Prints median and p99; true if both are within the limits.
bool print(const std::string& name, std::vector<double> all, double median, double p99) {
  std::sort(all.begin(), all.end());
  const auto part = [&all](double p) {
    return all[static_cast<size_t>(p * static_cast<double>(all.size() - 1))];
  };
  std::printf("%-28s%6zu, CPU: median %.2f ms (limit %.0f), p99 %.2f ms (limit %.0f)\n",
              name.c_str(), all.size(), part(0.5), median, part(0.99), p99);
  std::fflush(stdout);
  return part(0.5) <= median && part(0.99) <= p99;
}

// Llama 2 70B. Source: its config.json on Hugging Face.
constexpr const char* kModel =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
        "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05})";

// 128 nodes of eight H100, as a spec file.
QString many_nodes(const QTemporaryDir& folder) {
  std::ifstream in(std::string(SHARDLENS_SOURCE_DIR) + "/sim/hardware/specs/8xH100.json");
  nlohmann::json spec = nlohmann::json::parse(in);
  spec["nodes"] = 128;
  const QString path = folder.filePath("128x8xH100.json");
  std::ofstream(path.toStdString()) << spec;
  return path;
}

void simulate(gui::PlanSession& session) {
  session.simulateNow();
  gui::wait_until([&session] { return session.current() != nullptr; }, kLongest);
  if (!session.current()->error.isEmpty()) {
    throw InputError("", session.current()->error.toStdString());
  }
}

// The drawing of all ranks, as a panel of the whole window has it, with the pointer on a rank.
bool draw_ranks(gui::PlanSession& session) {
  const gui::SelectionContext selection;
  std::vector<double> drawn, made;
  gui::MeshMap map;
  map.resize(kWindow);
  map.show(gui::mesh_picture(selection, session));
  QApplication::sendPostedEvents(&map);
  for (const int64_t rank : {0, 77, 1023}) {
    map.setChosen(rank);
    for (int i = 0; i < 40; ++i) {
      const double before = cpu_milliseconds();
      map.grab();
      drawn.push_back(cpu_milliseconds() - before);
    }
  }
  for (int i = 0; i < 10; ++i) {
    const double before = cpu_milliseconds();
    (void)gui::mesh_picture(selection, session);
    made.push_back(cpu_milliseconds() - before);
  }
  constexpr double kFrame = 16, kAnyTime = 1e9;
  (void)print("the mesh of 1 024 ranks made", made, kAnyTime, kAnyTime);
  return print("1 024 ranks drawn", drawn, kFrame, kFrame);
}

// Each move of a slider until the step of the plan itself is known; CPU of all threads.
bool move_sliders(gui::PlanSession& session) {
  gui::PlanScaling scaling(session);
  scaling.follow(true);
  gui::wait_until([&] { return !scaling.isBusy(); }, kLongest);
  if (!scaling.now()->hasStep()) {
    throw InputError("", "the plan has no step");
  }
  std::vector<double> answers;
  for (const auto speed : {&sim::Speeds::bandwidth, &sim::Speeds::latency, &sim::Speeds::compute,
                           &sim::Speeds::host}) {
    for (int i = 1; i <= 10; ++i) {
      gui::wait_until([&] { return !scaling.isBusy(); }, kLongest);
      sim::Speeds speeds;
      speeds.*speed = 1 + 0.1 * i;
      bool known = false;
      const auto connection =
          QObject::connect(&scaling, &gui::PlanScaling::changed, [&known] { known = true; });
      const double before = cpu_milliseconds(CLOCK_PROCESS_CPUTIME_ID);
      scaling.setSpeeds(speeds);
      gui::wait_until([&known] { return known; }, kLongest);
      answers.push_back(cpu_milliseconds(CLOCK_PROCESS_CPUTIME_ID) - before);
      QObject::disconnect(connection);
    }
  }
  constexpr double kAnswer = 50;
  return print("answers to a slider", answers, kAnswer, kAnswer);
}

int explore() {
  const QTemporaryDir folder;
  gui::PlanSession session;
  session.start(plan::parse_model_config(kModel, "llama-70b"), many_nodes(folder));
  gui::PlanState state = session.state();
  state.plan.activation_checkpointing = {"model.layers.*"};  // without them it does not fit
  session.edit("checkpoints", state);
  simulate(session);
  bool held = draw_ranks(session);
  held = move_sliders(session) && held;
  std::printf("%s\n", held ? "all limits held" : "a limit was exceeded");
  return held ? 0 : 1;
}

void choose(gui::Panel& panel, const char* list, int index) {
  for (QComboBox* box : panel.findChildren<QComboBox*>()) {
    if (box->accessibleName() == QLatin1String(list)) {
      box->setCurrentIndex(index);
    }
  }
}

// Zooms in from the whole run to single events, and pans; the pointer is on the timeline.
std::vector<double> frames_of(gui::MainWindow& window, gui::Panel& panel) {
  gui::TimelineView& view = window.timeline();
  std::vector<double> out;
  const auto frame = [&] {
    const analysis::Interval shown = view.scene().axis.view();
    const double before = cpu_milliseconds();
    window.panels().showCursor((shown.start + shown.end) / 2);
    view.viewport()->repaint();
    panel.repaint();
    out.push_back(cpu_milliseconds() - before);
  };
  for (const double place : {0.1, 0.5, 0.83}) {
    view.fitAll();
    frame();
    for (int i = 0; i < 60; ++i) {
      view.scene().axis.zoom(0.8, place * view.scene().axis.width());
      frame();
      for (int pan = 0; i % 10 == 9 && pan < 10; ++pan) {
        view.panBy(pan < 5 ? 0.07 : -0.07);
        frame();
      }
    }
  }
  return out;
}

// Makes what the planning views show: a second version, and the plans of a search.
void make_versions(gui::MainWindow& window) {
  gui::PlanSession& session = window.session();
  gui::PlanState state = session.state();
  state.plan.forward_prefetch = 2;
  session.edit("prefetch", state);
  simulate(session);
  // Advice for the run may still be in progress.
  gui::wait_until([&window] { return !window.proposals().isBusy(); }, kLongest);
  window.actions().trigger(QStringLiteral("plan.searchSpace"));
  gui::wait_until([&window] { return !window.proposals().isBusy(); }, kLongest);
  if (window.proposals().space().points.empty()) {
    throw InputError("", window.proposals().note().toStdString());
  }
  std::printf("%zu versions of the plan, %zu plans of a search\n", session.versions().size(),
              window.proposals().space().points.size());
}

int open(const QStringList& paths) {
  const QTemporaryDir folder;
  QSettings settings(folder.filePath("bench.ini"), QSettings::IniFormat);
  gui::MainWindow window(settings);
  window.setUnattended();
  window.resize(kWindow);
  window.show();
  bool settled = false;
  QObject::connect(&window, &gui::MainWindow::settled, [&settled] { settled = true; });
  window.open(paths);
  gui::wait_until([&settled] { return settled; }, kLongest);
  if (window.context().run() == nullptr) {
    throw InputError(paths.front().toStdString(), window.lastError().toStdString());
  }
  gui::wait_until([&] { return !window.session().isBusy(); }, kLongest);
  std::printf("%lld events, %zu ranks; plan: %s\n",
              static_cast<long long>(window.context().run()->event_count),
              window.context().run()->ranks.size(),
              window.session().isOpen() ? "known" : qPrintable(window.session().why()));
  if (window.session().isOpen()) {
    make_versions(window);
  }
  const gui::RankData& rank = *window.context().rank();
  gui::LaneArrangement lanes;
  lanes.nested = true;
  lanes.pinned = {{rank.figures.rank, "compute"}};
  window.timeline().arrange(lanes);
  bool held = true;
  for (const char* id :
       {"exposed", "mesh", "whatif", "space", "scaling", "run", "memory", "roofline", "events"}) {
    window.actions().trigger(QStringLiteral("panel.") + QLatin1String(id));
    gui::Panel& panel = *window.panels().find(QLatin1String(id)).panel;
    choose(panel, "How the parts of the memory are shown", 1);  // as a treemap
    choose(panel, "What a row is", 1);                          // sums by name; by module
    window.panels().flush();
    gui::wait_until([&] { return !window.panels().isBusy(); }, kLongest);
    QApplication::processEvents();
    constexpr double kMedian = 8, kP99 = 20;
    held = print(std::string("frames with ") + id, frames_of(window, panel), kMedian, kP99) && held;
  }
  std::printf("%s\n", held ? "all limits held" : "a limit was exceeded");
  return held ? 0 : 1;
}

void tell(QtMsgType /*type*/, const QMessageLogContext& /*context*/, const QString& message) {
  if (!gui::is_platform_notice(message)) {
    std::fprintf(stderr, "%s\n", qPrintable(message));
  }
}

}  // namespace

int main(int argc, char** argv) {
  give_back_freed_memory();  // as the program does
  qputenv("QT_QPA_PLATFORM", "offscreen");
  qInstallMessageHandler(tell);
  const QApplication app(argc, argv);
  try {
    return argc == 1 ? explore() : open(QApplication::arguments().mid(1));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
