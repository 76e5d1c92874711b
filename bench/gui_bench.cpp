// What the desktop app costs on a large run: `gui_bench TRACE`, offscreen. Prints time from file to
// interactive beside the analyzer's own, memory per event beyond the trace's, and frame times of
// zooming and panning at 1920x1080. Exit 1 if a limit of issue 9 is exceeded.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <QApplication>

#include "core/base/error.h"
#include "gui/model/run_data.h"
#include "gui/model/selection_context.h"
#include "gui/view/timeline_view.h"
#include "profiler/analysis/analysis.h"

namespace {

using namespace shardlens;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") {
      double kib = 0;
      status >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

struct Frames {
  std::vector<double> milliseconds;
  void add(gui::TimelineView& view) {
    view.viewport()->repaint();
    milliseconds.push_back(static_cast<double>(view.lastFrame()) / 1e6);
  }
  double part(double p) {
    std::sort(milliseconds.begin(), milliseconds.end());
    return milliseconds[static_cast<size_t>(p * static_cast<double>(milliseconds.size() - 1))];
  }
};

// In from the whole run to single events and out again at several places, then along at each depth.
Frames move(gui::TimelineView& view) {
  Frames frames;
  for (const double place : {0.1, 0.5, 0.83}) {
    view.fitAll();
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

int run(const char* path) {
  const auto begin = Clock::now();
  trace::Run run = trace::Run::open(path);
  const double reading = seconds_since(begin);
  const double analyzing_begin = seconds_since(begin);
  (void)analysis::analyze(run);
  const double analyzing = seconds_since(begin) - analyzing_begin;
  const double before = resident_bytes();
  const auto data_begin = Clock::now();
  gui::SelectionContext context;
  gui::TimelineView view(context);
  view.resize(1920, 1080);
  view.show();
  const auto data = std::make_shared<const gui::RunData>(std::move(run));
  context.setRun(data);
  Frames first;
  first.add(view);
  const double opening = seconds_since(data_begin);
  const double bytes = (resident_bytes() - before) / static_cast<double>(data->event_count);
  Frames frames = move(view);
  std::printf("events                     %12lld\n", static_cast<long long>(data->event_count));
  std::printf("reading                    %12.2f s\n", reading);
  std::printf("analyzer                   %12.2f s after reading\n", analyzing);
  std::printf("interactive                %12.2f s after reading (limit: analyzer + 1 s)\n",
              opening);
  std::printf("memory beyond the trace    %12.1f bytes per event (limit 40)\n", bytes);
  std::printf(
      "frames                     %12zu, median %.2f ms (limit 16), p99 %.2f ms (limit 50)\n",
      frames.milliseconds.size(), frames.part(0.5), frames.part(0.99));
  const bool held =
      opening <= analyzing + 1 && bytes <= 40 && frames.part(0.5) <= 16 && frames.part(0.99) <= 50;
  std::printf("%s\n", held ? "all limits held" : "a limit was exceeded");
  return held ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: gui_bench TRACE\n", stderr);
    return 2;
  }
  qputenv("QT_QPA_PLATFORM", "offscreen");
  QApplication app(argc, argv);
  try {
    return run(argv[1]);
  } catch (const shardlens::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
