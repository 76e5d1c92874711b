#include "gui/view/window/preview_page.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include <QDockWidget>
#include <QPushButton>
#include <QStatusBar>

#include "gui/model/run/run_preview.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/start_page.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/gui/slow_file.h"
#include "tests/gui/view/recording_canvas.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

// A window that reads a trace of which the test writes the first half, and later the rest.
class PreviewPageTest : public WindowTest {
 protected:
  void SetUp() override {
    WindowTest::SetUp();
    window_->loader().setPreviewFrom(1'000);
    QObject::connect(window_.get(), &MainWindow::settled, [this] { settled_ = true; });
  }
  // `end`: what the file ends with instead of its last bytes.
  void show_half(const std::string& end = "") {
    trace::Trace trace;
    trace.metadata.rank = 0;
    const uint32_t track = trace.track(1, 1);
    for (int i = 0; i < 12'000; ++i) {
      const Nanoseconds start = Nanoseconds{10'000} * i;
      trace.add_complete(trace::Category::kCpuOp, "aten::addmm", track, start, start + 7'000);
    }
    const std::string path = folder_.path().toStdString() + "/whole.json";
    trace::write_kineto(trace, path);
    std::ifstream in(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!end.empty()) {
      text.resize(text.size() - 100);
    }
    file_ = std::make_unique<SlowFile>(folder_.path().toStdString() + "/rank0.json", text + end);
    settled_ = false;
    window_->open({QString::fromStdString(file_->path())});
    ASSERT_TRUE(wait_for([&] {
      file_->write(file_->size() / 2);
      return page().view().has_value();
    }));
    EXPECT_TRUE(page().isVisible());
    EXPECT_FALSE(settled_);
  }
  void finish() {
    // What reads the run again finds a file.
    std::filesystem::rename(folder_.path().toStdString() + "/whole.json", file_->path());
    ASSERT_TRUE(wait_for([&] {
      file_->finish();
      return settled_;
    }));
    QApplication::processEvents();
  }
  PreviewPage& page() { return *window_->findChild<PreviewPage*>(); }
  [[nodiscard]] bool shows_panels() const {
    for (const Panels::Docked& docked : window_->panels().all()) {
      if (docked.dock->isVisible()) {
        return true;
      }
    }
    return false;
  }
  std::unique_ptr<SlowFile> file_;
  bool settled_ = false;
};

TEST_F(PreviewPageTest, SaysThatItIsAPartAndShowsNoFigures) {
  ASSERT_NO_FATAL_FAILURE(show_half());
  EXPECT_TRUE(page().text().contains("has been read of rank 0")) << page().text().toStdString();
  EXPECT_TRUE(page().text().contains("no figures")) << page().text().toStdString();
  EXPECT_TRUE(window_->windowTitle().contains("rank0.json, being read"));
  EXPECT_FALSE(shows_panels());
  EXPECT_EQ(window_->context().run(), nullptr);  // what panels, reports and projects are of
  ASSERT_NO_FATAL_FAILURE(finish());
  EXPECT_FALSE(page().isVisible());
  EXPECT_TRUE(shows_panels());
  ASSERT_NE(window_->context().run(), nullptr);
  EXPECT_EQ(window_->context().run()->event_count, 12'000);
  EXPECT_FALSE(window_->windowTitle().contains("being read"));
}

// How often the timeline draws something about exposed time, in the whole run and close to its
// first collective, which is selected.
int drawn_exposed(const RunPointer& run) {
  TimelineScene scene;
  scene.setRun(run);
  scene.setSize(1200, 600);
  Selection selection;
  selection.item = Selection::Item{0, Lane::Source::kCollectives, 0};
  scene.setSelection(selection);
  const RankData& rank = *run->ranks.front();
  int found = description_of(*run, *selection.item).contains("exposed") ? 1 : 0;
  for (const analysis::Interval& view :
       {scene.axis.bounds(), run->shown(rank, rank.timeline.collectives.front().when)}) {
    scene.axis.setView(view);
    Recorder canvas;
    scene.draw(canvas);
    for (const Recorder::Drawn& each : canvas.drawn) {
      const bool arrow = each.what == Recorder::Drawn::What::kArrow;
      found += arrow || each.ink == Ink::kExposed || each.text.contains("exposed") ? 1 : 0;
    }
  }
  return found;
}

TEST_F(PreviewPageTest, ItsTimelineDrawsNoExposedTime) {
  trace::Run run = trace::Run::open(sample_run());
  EXPECT_GT(drawn_exposed(sample()), 10);
  EXPECT_EQ(drawn_exposed(preview_of(std::move(run.traces.front()), nullptr)), 0);
}

TEST_F(PreviewPageTest, TheRunIsShownWhereThePartWasLookedAt) {
  ASSERT_NO_FATAL_FAILURE(show_half());
  const analysis::Interval looked_at{5'000'000, 6'000'000};
  page().timeline().setView(looked_at);
  ASSERT_NO_FATAL_FAILURE(finish());
  // Both begin with the first event of the file.
  EXPECT_EQ(window_->timeline().scene().axis.view(), looked_at);
}

TEST_F(PreviewPageTest, WithoutAChangeTheWholeRunIsShown) {
  ASSERT_NO_FATAL_FAILURE(show_half());
  ASSERT_NO_FATAL_FAILURE(finish());
  const TimeAxis& axis = window_->timeline().scene().axis;
  EXPECT_EQ(axis.view(), axis.bounds());
}

TEST_F(PreviewPageTest, ItsButtonCancels) {
  ASSERT_NO_FATAL_FAILURE(show_half());
  page().findChild<QPushButton*>()->click();
  EXPECT_TRUE(settled_);
  EXPECT_FALSE(window_->loader().isLoading());
  EXPECT_FALSE(page().isVisible());
  EXPECT_TRUE(window_->findChild<StartPage*>()->isVisible());
  EXPECT_EQ(window_->windowTitle(), "Shardlens");
  file_->close();
}

TEST_F(PreviewPageTest, AfterACancelTheOpenRunIsAsBefore) {
  open(sample_run());
  const RunPointer before = window_->context().run();
  const QString title = window_->windowTitle();
  ASSERT_NO_FATAL_FAILURE(show_half());
  EXPECT_FALSE(shows_panels());  // they are of the other run
  EXPECT_FALSE(window_->statusBar()->isVisible());
  page().findChild<QPushButton*>()->click();
  QApplication::processEvents();
  EXPECT_EQ(window_->context().run(), before);
  EXPECT_EQ(window_->windowTitle(), title);
  EXPECT_TRUE(window_->timeline().isVisible());
  EXPECT_TRUE(shows_panels());
  EXPECT_TRUE(window_->statusBar()->isVisible());
  file_->close();
}

TEST_F(PreviewPageTest, TheOpenRunIsReplacedWhenAllIsRead) {
  open(sample_run());
  ASSERT_NO_FATAL_FAILURE(show_half());
  ASSERT_NO_FATAL_FAILURE(finish());
  EXPECT_EQ(window_->context().run()->event_count, 12'000);
  EXPECT_FALSE(page().isVisible());
  EXPECT_TRUE(window_->timeline().isVisible());
  EXPECT_TRUE(shows_panels());
}

TEST_F(PreviewPageTest, AFaultBehindThePartIsTheMessage) {
  ASSERT_NO_FATAL_FAILURE(show_half("nonsense"));
  ASSERT_NO_FATAL_FAILURE(finish());
  EXPECT_TRUE(window_->lastError().contains("rank0.json")) << window_->lastError().toStdString();
  EXPECT_FALSE(page().isVisible());
  EXPECT_TRUE(window_->findChild<StartPage*>()->isVisible());
  EXPECT_EQ(window_->context().run(), nullptr);
}

TEST_F(PreviewPageTest, TheWindowClosesWhileItReads) {
  ASSERT_NO_FATAL_FAILURE(show_half());
  file_->close();
  EXPECT_TRUE(window_->close());
  window_.reset();
}

}  // namespace
}  // namespace shardlens::gui
