#include "gui/view/main_window.h"

#include <filesystem>

#include <QApplication>
#include <QComboBox>
#include <QDialog>
#include <QDockWidget>
#include <QDropEvent>
#include <QImage>
#include <QLabel>
#include <QLineEdit>
#include <QMimeData>
#include <QSettings>
#include <QTemporaryDir>
#include <QTest>
#include <QWheelEvent>

#include "gui/view/command_palette.h"
#include "gui/view/headline_strip.h"
#include "gui/view/inspector.h"
#include "gui/view/selftest.h"
#include "gui/view/timeline_view.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

class MainWindowTest : public QtTest<QApplication> {
 protected:
  void SetUp() override {
    QtTest::SetUp();
    settings_ = std::make_unique<QSettings>(folder_.path() + "/settings.ini", QSettings::IniFormat);
    make();
  }
  void TearDown() override {
    window_.reset();
    QtTest::TearDown();
  }
  void make() {
    window_ = std::make_unique<MainWindow>(*settings_);
    window_->resize(1280, 800);
    window_->show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(window_.get()));
  }
  void open(const std::string& path) {
    bool settled = false;
    const auto connection =
        QObject::connect(window_.get(), &MainWindow::settled, [&] { settled = true; });
    window_->open({QString::fromStdString(path)});
    ASSERT_TRUE(wait_for([&] { return settled; }));
    QObject::disconnect(connection);
    window_->panels().flush();
    QApplication::processEvents();
  }
  TimelineScene& scene() { return window_->timeline().scene(); }
  const RankData& rank() { return *window_->context().rank(); }
  QPoint at(Nanoseconds own, Lane::Source source, Kind kind) {
    for (const TimelineLayout::Band& band : scene().layout().bands) {
      const Lane& lane = rank().lanes[band.lane];
      if (band.kind == TimelineLayout::Band::Kind::kLane && band.row == 0 &&
          lane.source == source && lane.kind == kind) {
        const double x =
            scene().axis.toPixel(window_->context().run()->shown(rank(), {own, own}).start);
        return {static_cast<int>(x + TimelineScene::kGutter),
                static_cast<int>(TimelineScene::kHeader + band.top + band.height / 2)};
      }
    }
    throw std::runtime_error("no such lane");
  }

  QTemporaryDir folder_;
  std::unique_ptr<QSettings> settings_;
  std::unique_ptr<MainWindow> window_;
};

TEST_F(MainWindowTest, SelftestPassesOnOurAndPyTorchsTraces) {
  for (const std::string& path :
       {sample_run(), pytorch_run("fsdp2-default"), pytorch_run("fsdp1-full")}) {
    open(path);
    EXPECT_EQ(selftest(*window_).join("; ").toStdString(), "") << path;
  }
}

TEST_F(MainWindowTest, TheHeadlineSumsAndFollowsADrag) {
  open(sample_run());
  const QString all = window_->headline().bar().text();
  EXPECT_TRUE(all.startsWith("steps ")) << all.toStdString();
  QWidget* canvas = window_->timeline().viewport();
  QTest::mousePress(canvas, Qt::LeftButton, Qt::AltModifier, {300, 200});
  QTest::mouseMove(canvas, {420, 200});
  QTest::mouseMove(canvas, {500, 200});
  const QString during = window_->headline().bar().text();
  EXPECT_NE(during, all);
  QTest::mouseRelease(canvas, Qt::LeftButton, Qt::AltModifier, {500, 200});
  ASSERT_TRUE(window_->context().current().range);
  EXPECT_TRUE(window_->headline().bar().text().startsWith("range "));
  EXPECT_EQ(
      length_of(window_->context().window()),
      rank()
          .live.within(window_->context().run()->own(rank(), *window_->context().current().range))
          .span);
  QTest::keyClick(window_.get(), Qt::Key_Escape);
  EXPECT_EQ(window_->headline().bar().text(), all);
}

TEST_F(MainWindowTest, AClickSelectsAndEverythingFollows) {
  open(sample_run());
  const analysis::Collective& first = rank().timeline.collectives.front();
  const QPoint where = at(first.when.start + first.when.length() / 2, Lane::Source::kCollectives,
                          kind_of(first.kind));
  QTest::mouseClick(window_->timeline().viewport(), Qt::LeftButton, {}, where);
  const Selection& chosen = window_->context().current();
  ASSERT_TRUE(chosen.item);
  EXPECT_EQ(chosen.item->ref, 0);
  EXPECT_EQ(chosen.unit, rank().owner_of(0));
  EXPECT_TRUE(inspected(window_->context()).contains(durationText(first.when.length())));
  QTest::keyClick(window_.get(), Qt::Key_F);
  const auto shown = *window_->context().itemInterval();
  EXPECT_LE(scene().axis.view().start, shown.start);
  EXPECT_NEAR(static_cast<double>(scene().axis.view().length()),
              1.2 * static_cast<double>(shown.length()), 2.0);
  QTest::keyClick(window_.get(), Qt::Key_0);
  EXPECT_EQ(scene().axis.view(), scene().axis.bounds());
}

TEST_F(MainWindowTest, WheelAndKeysMoveTheView) {
  open(sample_run());
  QWidget* canvas = window_->timeline().viewport();
  const Nanoseconds under = scene().axis.toTime(400 - TimelineScene::kGutter);
  const auto wheel = [&](int delta, Qt::KeyboardModifiers keys) {
    QWheelEvent event({400, 150}, canvas->mapToGlobal(QPointF(400, 150)), {}, {0, delta},
                      Qt::NoButton, keys, Qt::NoScrollPhase, false);
    QApplication::sendEvent(canvas, &event);
  };
  const Nanoseconds before = scene().axis.view().length();
  wheel(120, {});
  EXPECT_LT(scene().axis.view().length(), before);
  EXPECT_NEAR(scene().axis.toPixel(under), 400 - TimelineScene::kGutter, 1);
  const Nanoseconds coarse = scene().axis.view().length();
  wheel(120, Qt::ControlModifier);
  EXPECT_GT(scene().axis.view().length(),
            static_cast<Nanoseconds>(0.9 * static_cast<double>(coarse)));
  const analysis::Interval view = scene().axis.view();
  QTest::keyClick(window_.get(), Qt::Key_D);
  EXPECT_GT(scene().axis.view().start, view.start);
  QTest::keyClick(window_.get(), Qt::Key_A);
  EXPECT_EQ(scene().axis.view(), view);
  QTest::keyClick(window_.get(), Qt::Key_W);
  EXPECT_LT(scene().axis.view().length(), view.length());
}

TEST_F(MainWindowTest, ExposedOnesAreWalkedInOrder) {
  open(sample_run());
  std::vector<uint32_t> expected;
  for (uint32_t i = 0; i < rank().timeline.collectives.size() && expected.size() < 3; ++i) {
    if (!rank().exposed(i).empty()) {
      expected.push_back(i);
    }
  }
  for (const uint32_t next : expected) {
    QTest::keyClick(window_.get(), Qt::Key_E);
    EXPECT_EQ(window_->context().current().item->ref, next);
  }
  QTest::keyClick(window_.get(), Qt::Key_E, Qt::ShiftModifier);
  EXPECT_EQ(window_->context().current().item->ref, expected[1]);
}

TEST_F(MainWindowTest, ThePaletteFindsCommandsAndUnits) {
  open(sample_run());
  QTest::keyClick(window_.get(), Qt::Key_K, Qt::ControlModifier);
  auto* palette = window_->findChild<CommandPalette*>();
  ASSERT_NE(palette, nullptr);
  QTest::keyClicks(&palette->edit(), "layers.4");
  ASSERT_GE(palette->count(), 1);
  QTest::keyClick(&palette->edit(), Qt::Key_Return);
  EXPECT_EQ(window_->context().current().unit, "model.layers.4");
}

TEST_F(MainWindowTest, TypingInTheSearchIsNoShortcut) {
  open(sample_run());
  const analysis::Interval view = scene().axis.view();
  QTest::keyClick(window_.get(), Qt::Key_F, Qt::ControlModifier);
  QApplication::processEvents();
  auto* edit = qobject_cast<QLineEdit*>(QApplication::focusWidget());
  ASSERT_NE(edit, nullptr);
  QTest::keyClicks(edit, "wasd0");
  EXPECT_EQ(edit->text(), "wasd0");
  EXPECT_EQ(scene().axis.view(), view);
}

TEST_F(MainWindowTest, EveryCorruptFileIsAMessage) {
  int files = 0, refused = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SHARDLENS_TEST_DATA) + "/corrupt")) {
    if (entry.path().filename() == "expected.json") {
      continue;
    }
    open(entry.path().string());
    ++files;
    refused += window_->lastError().isEmpty() ? 0 : 1;
    window_->grab();
  }
  EXPECT_GT(files, 60);
  EXPECT_GT(refused, 40);
  open(sample_run());
  EXPECT_TRUE(window_->lastError().isEmpty());
}

TEST_F(MainWindowTest, PicturesAreTheSameTwice) {
  open(sample_run());
  const QImage a = window_->timeline().viewport()->grab().toImage();
  const QImage b = window_->timeline().viewport()->grab().toImage();
  EXPECT_EQ(a, b);
  window_->setDark(true);
  EXPECT_NE(window_->timeline().viewport()->grab().toImage(), a);
}

TEST_F(MainWindowTest, LayoutThemeAndRecentFilesAreKept) {
  open(sample_run());
  window_->setDark(true);
  window_->panels().all().front().dock->hide();
  window_->close();
  window_.reset();
  make();
  EXPECT_TRUE(window_->isDark());
  open(sample_run());
  EXPECT_FALSE(window_->panels().all().front().dock->isVisible());
  EXPECT_EQ(settings_->value("recent").toStringList().size(), 1);
  window_->actions().trigger("view.reset");
  EXPECT_TRUE(window_->panels().all().front().dock->isVisible());
}

TEST_F(MainWindowTest, BookmarksAreSetFoundAndRemoved) {
  open(sample_run());
  window_->context().selectRange(analysis::Interval{1'000'000, 2'000'000});
  QTest::keyClick(window_.get(), Qt::Key_M);
  ASSERT_EQ(scene().bookmarks.size(), 1);
  EXPECT_EQ(scene().bookmarks[0].time, 1'000'000);
  open(sample_run());
  ASSERT_EQ(scene().bookmarks.size(), 1);  // kept with the run
  EXPECT_EQ(scene().bookmarks[0].time, 1'000'000);
  window_->context().selectRange(analysis::Interval{1'000'000, 2'000'000});
  QTest::keyClick(window_.get(), Qt::Key_M);
  EXPECT_TRUE(scene().bookmarks.empty());
}

// Whatever takes the keyboard says what it is.
TEST_F(MainWindowTest, WhatTakesTheFocusHasAName) {
  open(sample_run());
  for (const QWidget* widget : window_->findChildren<QWidget*>()) {
    const bool own = widget->focusPolicy() & Qt::TabFocus && widget->isVisible() &&
                     !widget->objectName().startsWith("qt_");
    if (own && !widget->inherits("QTabBar") && !widget->inherits("QLabel") &&
        !widget->inherits("QAbstractButton")) {
      EXPECT_FALSE(widget->accessibleName().isEmpty())
          << widget->metaObject()->className() << ' ' << widget->objectName().toStdString();
    }
  }
}

}  // namespace
}  // namespace shardlens::gui
