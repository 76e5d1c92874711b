#include <QApplication>
#include <QFile>
#include <QFontDatabase>
#include <QImage>
#include <QPainter>
#include <QTemporaryDir>

#include "gui/model/compare/compare_session.h"
#include "gui/view/panels/compare_panel.h"
#include "gui/view/timeline/timeline_scene.h"
#include "gui/view/widgets/painter_canvas.h"
#include "tests/gui/qt_test.h"
#include "tests/gui/small_gpu_trace.h"

namespace shardlens::gui {
namespace {

// Pictures that must be the same to the last pixel, drawn with the tests' own font. Other versions
// of Qt or FreeType draw letters differently, so they are compared only on Debian 12. After an
// intended change SHARDLENS_UPDATE_GOLDENS=1 rewrites them; look at each one.
class GoldenTest : public QtTest<QApplication> {
 protected:
  void SetUp() override {
    QtTest::SetUp();
    QFile release("/etc/debian_version");
    const bool debian = release.open(QIODevice::ReadOnly) && release.readAll().startsWith("12");
    if (!debian || QString(qVersion()) != "6.4.2") {
      GTEST_SKIP() << "golden pictures are Debian 12's, with Qt 6.4.2; this is Qt " << qVersion();
    }
    const int id =
        QFontDatabase::addApplicationFont(QString(SHARDLENS_TEST_DATA) + "/fonts/test-sans.ttf");
    ASSERT_GE(id, 0);
    font_ = QFont("Shardlens Test", 10);
    font_.setHintingPreference(QFont::PreferNoHinting);
    ASSERT_EQ(QFontInfo(font_).family(), "Shardlens Test");
  }

  QImage drawn(TimelineScene& scene, const Theme& theme) {
    QImage image(900, 420, QImage::Format_RGB32);
    image.setDotsPerMeterX(3780);
    image.setDotsPerMeterY(3780);
    image.fill(theme[Ink::kBackground]);
    scene.setSize(image.width(), image.height());
    QPainter painter(&image);
    painter.setFont(font_);
    PainterCanvas canvas(painter, theme);
    scene.draw(canvas);
    return image;
  }

  void expect_golden(const QImage& image, const QString& name) {
    const QString path = QString(SHARDLENS_TEST_DATA) + "/goldens/" + name + ".png";
    if (qEnvironmentVariableIsSet("SHARDLENS_UPDATE_GOLDENS")) {
      ASSERT_TRUE(image.save(path)) << path.toStdString();
      return;
    }
    const QImage golden = QImage(path).convertToFormat(QImage::Format_RGB32);
    ASSERT_FALSE(golden.isNull()) << path.toStdString();
    if (golden != image) {
      QTemporaryDir kept;
      kept.setAutoRemove(false);
      image.save(kept.path() + "/" + name + ".png");
      ADD_FAILURE() << name.toStdString() << " differs; what was drawn is in "
                    << kept.path().toStdString();
    }
  }
  QFont font_;
};

TEST_F(GoldenTest, AWholeRun) {
  TimelineScene scene;
  scene.setRun(sample());
  expect_golden(drawn(scene, Theme::light()), "run");
}

TEST_F(GoldenTest, AStepInTheDark) {
  TimelineScene scene;
  scene.setRun(sample());
  drawn(scene, Theme::night());  // sets the size, which fit() needs
  const RankData& rank = *sample()->ranks.front();
  Selection selection;
  selection.step = 2;
  scene.setSelection(selection);
  scene.axis.fit(sample()->shown(rank, rank.figures.steps[2].window));
  scene.bookmarks = {{scene.axis.toTime(300), "here"}};
  expect_golden(drawn(scene, Theme::night()), "step-dark");
}

TEST_F(GoldenTest, AUnitIsHighlighted) {
  TimelineScene scene;
  scene.setRun(sample());
  drawn(scene, Theme::light());
  const RankData& rank = *sample()->ranks.front();
  Selection selection;
  selection.unit = "model.layers.2";
  scene.setSelection(selection);
  scene.axis.fit(sample()->shown(rank, rank.figures.steps[1].window));
  expect_golden(drawn(scene, Theme::light()), "unit");
}

TEST_F(GoldenTest, AnotherRunBelow) {
  const RunPointer a = open_run(pytorch_run("fsdp2-prefetch"));
  const RunPointer b = open_run(pytorch_run("fsdp2-no-reshard"));
  TimelineScene scene;
  scene.setRun(a);
  scene.setGhost({b, 0, 0, 0, "B", "another run"});
  expect_golden(drawn(scene, Theme::light()), "compare");
}

// Host, launches, queue and idle causes, and the arrow from the launch of the selected kernel.
TEST_F(GoldenTest, AGpusTrace) {
  const auto run = std::make_shared<const RunData>(trace::Run::of({small_gpu_trace()}));
  TimelineScene scene;
  scene.setRun(run);
  Selection selection;
  const analysis::DeviceEvent& kernel = run->ranks[0]->timeline.device_events[1];
  selection.item = Selection::Item{0, Lane::Source::kEvents, kernel.event};
  scene.setSelection(selection);
  expect_golden(drawn(scene, Theme::light()), "gpu");
}

TEST_F(GoldenTest, TheWaterfall) {
  check::SummaryOptions items;
  items.items = true;
  WaterfallPlot plot;
  plot.setFont(font_);
  plot.show(std::make_shared<const check::Comparison>(check::compare_runs(
      {check::summarize(trace::Run::open(pytorch_run("fsdp2-prefetch")), items)},
      {check::summarize(trace::Run::open(pytorch_run("fsdp2-no-reshard")), items)})));
  plot.resize(520, 240);
  expect_golden(plot.grab().toImage().convertToFormat(QImage::Format_RGB32), "waterfall");
}

}  // namespace
}  // namespace shardlens::gui
