#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <QBuffer>
#include <QHeaderView>
#include <QLabel>
#include <QPainter>
#include <QScrollArea>
#include <QScrollBar>
#include <QSvgGenerator>
#include <QTableView>
#include <QTextBlock>
#include <QTextBrowser>

#include "gui/view/panel_parts/pareto_plot.h"
#include "gui/view/panels/compare_panel.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/text_lines.h"
#include "gui/view/widgets/theme.h"
#include "tests/gui/view/mouse_window.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

// Finds what a user would see: text that is cut, covered or too faint, and wrong words.
class AppearanceTest : public MouseTest {
 protected:
  // The sample run as if it had been simulated.
  std::string simulated_run() {
    std::vector<trace::Trace> traces = trace::Run::open(sample_run()).traces;
    for (trace::Trace& each : traces) {
      each.metadata.backend = "simulated";
    }
    const std::string out = write_run(traces, "simulated");
    for (const char* name : {"config.json", "plan.json", "run.json", "workload.json"}) {
      std::filesystem::copy(sample_run() + "/" + name, out);
    }
    return out;
  }
  void simulate() {
    window_->session().simulateNow();
    ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
    settle();
  }
  void compare_with(const std::string& path) {
    window_->compareWith({QString::fromStdString(path)});
    ASSERT_TRUE(wait_for([&] { return !window_->compare().isBusy(); }));
    ASSERT_NE(window_->compare().comparison(), nullptr) << window_->lastError().toStdString();
    settle();
  }
  // Text that the widget draws.
  static QString drawn(QWidget& widget) {
    QByteArray bytes;
    QBuffer buffer(&bytes);
    buffer.open(QIODevice::WriteOnly);
    QSvgGenerator generator;
    generator.setOutputDevice(&buffer);
    QPainter painter(&generator);
    widget.render(&painter);
    painter.end();
    return QString::fromUtf8(bytes);
  }
};

TEST_F(AppearanceTest, ATitleThatIsTooLongEndsWithAnEllipsis) {
  open(sample_run());
  auto& table = static_cast<QTableView&>(shown("exposed"));
  QHeaderView& header = *table.horizontalHeader();
  const QString title = "What it means, what helps";
  const int last = header.logicalIndex(header.count() - 1);
  ASSERT_EQ(table.model()->headerData(last, Qt::Horizontal).toString(), title);
  header.setStretchLastSection(false);
  for (const int width : {90, 120, 150}) {
    header.resizeSection(last, width);
    table.horizontalScrollBar()->setValue(table.horizontalScrollBar()->maximum());
    QApplication::processEvents();
    const QString text = drawn(*header.viewport());
    EXPECT_FALSE(text.contains(title)) << width;
    EXPECT_TRUE(text.contains("What it") && text.contains(u'…')) << width;
  }
  header.resizeSection(last, 300);
  table.horizontalScrollBar()->setValue(table.horizontalScrollBar()->maximum());
  QApplication::processEvents();
  EXPECT_TRUE(drawn(*header.viewport()).contains(title));
}

TEST_F(AppearanceTest, ASimulatedRunIsNotCalledMeasured) {
  open(simulated_run());
  simulate();
  shown("whatif");
  const auto* note = window_->panels().find("whatif").panel->findChild<QLabel*>(
      QString(), Qt::FindDirectChildrenOnly);
  ASSERT_NE(note, nullptr);
  ASSERT_TRUE(window_->session().baseline());
  EXPECT_TRUE(note->text().contains("This run was simulated, not measured"))
      << note->text().toStdString();
  EXPECT_FALSE(note->text().contains("per step measured"));
  window_->actions().trigger("plan.simulate");
  EXPECT_TRUE(scene().ghost().note.contains("starting with the simulated step"))
      << scene().ghost().note.toStdString();
  open(sample_run());
  simulate();
  EXPECT_TRUE(note->text().contains("per step measured")) << note->text().toStdString();
  EXPECT_TRUE(scene().ghost().note.contains("starting with the measured step"))
      << scene().ghost().note.toStdString();
  // The lanes of a simulated run B.
  compare_with(folder_.path().toStdString() + "/simulated");
  EXPECT_TRUE(scene().ghost().note.startsWith("simulated, ")) << scene().ghost().note.toStdString();
}

TEST_F(AppearanceTest, AnErrorOfZeroHasNoSign) {
  const auto text = [](Nanoseconds measured, Nanoseconds simulated) {
    sim::Baseline baseline;
    baseline.measured = measured;
    baseline.simulated = simulated;
    return baselineText(baseline);
  };
  EXPECT_EQ(text(100'000, 99'990), "0.0 %");
  EXPECT_EQ(text(100'000, 100'010), "0.0 %");
  EXPECT_EQ(text(100'000, 99'000), "−1.0 %");
  EXPECT_EQ(text(100'000, 101'000), "+1.0 %");
  EXPECT_EQ(baselineText(std::nullopt), "not known");
}

// An edited plan makes the column Units and the titles of versions longer.
TEST_F(AppearanceTest, ColumnsFitAlsoWithAnEditedPlan) {
  for (const QSize size : {QSize(1920, 1080), QSize(1280, 800)}) {
    window_.reset();
    settings_->clear();  // not the layout of the other size
    make();
    window_->resize(size);
    open(sample_run());
    simulate();
    PlanState next = window_->session().state();
    next.plan.forward_prefetch = 2;
    next.plan.reshard_after_forward = plan::Reshard{plan::Reshard::Kind::kNo, 0};
    next.machine = "8xA100-40";
    window_->session().edit("a longer title of the edit on 8xA100-40", next);
    simulate();
    EXPECT_EQ(shown("whatif").horizontalScrollBar()->maximum(), 0) << size.width();
    if (size.width() == 1920) {
      EXPECT_EQ(shown("modules").horizontalScrollBar()->maximum(), 0);
    }
  }
}

// Stops a view whose scroll bars are shown and hidden without end.
class EndlessLayout : public QObject {
 public:
  explicit EndlessLayout(QAbstractItemView& view) : QObject(&view), view_(view) {
    view.viewport()->installEventFilter(this);
  }
  // Returns whether the view comes to rest.
  bool rests() {
    resizes_ = 0;
    for (int before = -1; before != resizes_ && resizes_ <= kMost;) {
      before = resizes_;
      QApplication::processEvents();
    }
    return resizes_ <= kMost;
  }

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override {
    if (event->type() == QEvent::Resize && ++resizes_ > kMost) {
      view_.setVerticalScrollBarPolicy(Qt::ScrollBarAlwaysOn);
    }
    return QObject::eventFilter(watched, event);
  }

 private:
  static constexpr int kMost = 50;
  QAbstractItemView& view_;
  int resizes_ = 0;
};

// Where one scroll bar makes the other necessary: the rows just fit without a horizontal one, at
// any width, when only the one or only the other was shown before.
TEST_F(AppearanceTest, ScrollBarsComeToRest) {
  constexpr int kNarrowest = 200, kWidest = 1000, kTallest = 1000;
  constexpr int kStep = 12;  // less than the extent of a scroll bar
  open(sample_run());
  for (const Panels::Docked& docked : window_->panels().all()) {
    if (docked.panel->view() == nullptr) {
      continue;
    }
    QAbstractItemView& view = shown(docked.row->id);
    EndlessLayout endless(view);
    bool rests = true;
    const auto resize = [&](int width, int height) {
      docked.dock->resize(width, height);
      rests = endless.rests();
    };
    docked.dock->setFloating(true);
    const int lowest = docked.dock->minimumSizeHint().height();
    int fits = lowest;
    for (resize(kWidest, fits); view.verticalScrollBar()->maximum() > 0 && fits < kTallest;) {
      resize(kWidest, fits += kStep);
    }
    for (int width = kNarrowest; width <= kWidest && rests; width += kStep) {
      for (const QSize before : {QSize(kWidest, lowest), QSize(kNarrowest, kTallest)}) {
        resize(before.width(), before.height());
        resize(width, fits);
        EXPECT_TRUE(rests) << docked.row->id << " of " << width << " x " << fits;
      }
    }
    docked.dock->setFloating(false);
  }
}

// This holds also where the form takes its width after the table was fitted. Step and peak are
// never cut.
TEST_F(AppearanceTest, VersionsFitBesideTheForm) {
  for (const QSize size : {QSize(1280, 800), QSize(1920, 1080)}) {
    window_ = nullptr;
    make();
    window_->resize(size);
    open(simulated_ranks(QString::number(size.width())).toStdString());
    ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
    auto& table = static_cast<QTableView&>(shown("whatif"));
    EXPECT_EQ(table.horizontalScrollBar()->maximum(), 0) << size.width();
    EXPECT_FALSE(table.isColumnHidden(8)) << size.width();  // the peak
  }
}

// A change without its interval looks certain. 1920x1080 has room for the column, with its texts
// in bold, and for some of the name of the change.
TEST_F(AppearanceTest, TheIntervalOfAChangeIsBesideIt) {
  window_ = nullptr;
  make();
  window_->resize(1920, 1080);
  open(sample_run());
  PlanSession& session = window_->session();
  ASSERT_TRUE(wait_for([&] { return !session.isObserving(); }));
  session.simulateNow();
  ASSERT_TRUE(wait_for([&] { return session.current() != nullptr; }));
  auto& table = static_cast<QTableView&>(shown("whatif"));
  const auto titled = [&table](const char* title) {
    for (int column = 0; column < table.model()->columnCount(); ++column) {
      if (table.model()->headerData(column, Qt::Horizontal).toString() == title) {
        return column;
      }
    }
    throw RuntimeFault(title);
  };
  const auto knob = std::ranges::find(session.knobs(), "Sharding", &PlanKnob::title);
  ASSERT_NE(knob, session.knobs().end());
  session.choose(static_cast<size_t>(knob - session.knobs().begin()), 1);
  ASSERT_TRUE(
      wait_for([&] { return session.versions().size() == 2 && session.current() != nullptr; }));
  settle();
  const int interval = titled("90 % interval");
  ASSERT_TRUE(table.model()->index(1, interval).data().toString().endsWith(" %"));
  EXPECT_FALSE(table.isColumnHidden(interval));
  EXPECT_EQ(table.horizontalScrollBar()->maximum(), 0);
  for (const char* title : {"Step", "Δ step", "90 % interval", "Peak"}) {
    const QAbstractItemView& view = table;  // sizeHintForColumn() is public there
    EXPECT_GE(table.columnWidth(titled(title)), view.sizeHintForColumn(titled(title))) << title;
  }
  EXPECT_GE(table.columnWidth(titled("Change")), 48);
}

// A plan by itself has no second column of sizes and no change, so that what is alive is legible.
TEST_F(AppearanceTest, ThePeakOfOnePlanHasOneColumn) {
  open(sample_run());
  PlanSession& session = window_->session();
  ASSERT_TRUE(wait_for([&] { return !session.isObserving(); }));
  session.simulateNow();
  ASSERT_TRUE(wait_for([&] { return session.current() != nullptr; }));
  auto& table = static_cast<QTableView&>(shown("memory"));
  const auto titles = [&table] {
    QStringList out;
    for (const int column : shown_columns(*table.horizontalHeader())) {
      out.append(table.model()->headerData(column, Qt::Horizontal).toString());
    }
    return out;
  };
  EXPECT_EQ(titles(), (QStringList{"Category", "What", "Unit", "As it ran"}));
  session.choose(0, 1);
  ASSERT_TRUE(
      wait_for([&] { return session.versions().size() == 2 && session.current() != nullptr; }));
  EXPECT_EQ(titles(),
            (QStringList{"Category", "What", "Unit", "As it ran", "This plan", "Change"}));
  session.undoStack().undo();
  ASSERT_TRUE(wait_for([&] { return session.current() == &session.versions().front(); }));
  EXPECT_EQ(titles().size(), 4);
}

// A user opens the panel for the verdict, so it is never cut.
TEST_F(AppearanceTest, TheVerdictOfAProposalIsInSight) {
  window_ = nullptr;
  make();
  window_->resize(1920, 1080);
  open(sample_run());
  ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
  auto& table = static_cast<QTableView&>(shown("advice"));
  ASSERT_TRUE(
      wait_for([&] { return !window_->proposals().isBusy() && table.model()->rowCount() > 2; }));
  settle();
  const QAbstractItemView& view = table;
  int column = 0;
  while (table.model()->headerData(column, Qt::Horizontal).toString() != "Verdict") {
    ASSERT_LT(++column, table.model()->columnCount());
  }
  EXPECT_GE(table.columnWidth(column), view.sizeHintForColumn(column));
  EXPECT_LE(table.columnViewportPosition(column) + table.columnWidth(column),
            table.viewport()->width());
}

TEST_F(AppearanceTest, TheInspectorsTextHasContrast) {
  open(sample_run());
  for (const bool dark : {false, true}) {
    window_->setDark(dark);
    for (const bool unit : {false, true}) {
      window_->context().selectUnit(unit ? std::optional<std::string>("model.layers.3")
                                         : std::nullopt);
      settle();
      const auto* text = window_->panels().find("inspector").panel->findChild<QTextBrowser*>();
      const QColor behind = text->palette().color(QPalette::Base);
      int names = 0;
      for (QTextBlock block = text->document()->begin(); block.isValid(); block = block.next()) {
        for (auto part = block.begin(); !part.atEnd(); ++part) {
          const QTextCharFormat format = part.fragment().charFormat();
          if (format.hasProperty(QTextFormat::ForegroundBrush)) {
            EXPECT_GE(contrast(format.foreground().color(), behind), 4.5)
                << part.fragment().text().toStdString();
            ++names;
          }
        }
      }
      EXPECT_GT(names, 3);
    }
  }
}

// Two versions at the upper left, close to each other, and one alone at the lower right.
TEST_F(AppearanceTest, NamesInThePlotCoverNoMarks) {
  const QRectF room(0, 19, 120, 140);
  const std::vector<PlotMark> marks{{{22, 34}, "v0", false},
                                    {{42, 34}, "v2 v4", false},
                                    {{25, 150}, "v1", false},
                                    {{108, 140}, "v3 v5", true}};
  const std::vector<QRectF> places = label_places(marks, window_->font(), room);
  ASSERT_EQ(places.size(), marks.size());
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_TRUE(room.contains(places[i])) << i;
    for (size_t k = 0; k < marks.size(); ++k) {
      const QRectF square(marks[k].at - QPointF(5, 5), QSizeF(10, 10));
      EXPECT_FALSE(places[i].intersects(square)) << i << " and " << k;
      EXPECT_TRUE(i == k || !places[i].intersects(places[k])) << i << " and " << k;
    }
  }
}

TEST_F(AppearanceTest, LongNamesLeaveRoomForTheOtherColumns) {
  window_->resize(1700, 1080);
  test::GeneratedRun generated;
  generated.layers = 3;
  generated.steps = 2;
  generated.layer_name = "layers.{}." + std::string(280, 'x') + ".attention";
  open(write_run(generated.run().traces, "run"));
  auto& table = static_cast<QTableView&>(shown("exposed"));
  ASSERT_GT(table.model()->rowCount(), 0);
  EXPECT_EQ(table.horizontalScrollBar()->maximum(), 0);
  const int narrow = table.columnWidth(0);
  EXPECT_GE(narrow, 90);
  EXPECT_LT(narrow, 160);
  // They take it back in a wider window.
  window_->resize(3200, 1080);
  QApplication::processEvents();
  EXPECT_EQ(table.columnWidth(0), 160);
  window_->resize(1700, 1080);
  QApplication::processEvents();
  EXPECT_EQ(table.horizontalScrollBar()->maximum(), 0);
}

// The width that is not known before the first layout narrows no column.
TEST_F(AppearanceTest, ColumnsAreNarrowedOnlyIfTheyMustBe) {
  for (const QSize size : {QSize(1280, 800), QSize(1600, 940), QSize(2560, 1440)}) {
    window_.reset();
    settings_->clear();
    make();
    window_->resize(size);
    open(sample_run());
    auto& table = static_cast<QTableView&>(shown("exposed"));
    const QAbstractItemView& view = table;  // sizeHintForColumn() is public there
    const int last = table.horizontalHeader()->logicalIndex(table.model()->columnCount() - 1);
    if (table.columnWidth(last) > 100) {
      for (int column = 0; column < table.model()->columnCount(); ++column) {
        EXPECT_TRUE(column == last ||
                    table.columnWidth(column) >= std::min(150, view.sizeHintForColumn(column)))
            << size.width() << ", column " << column;
      }
    }
  }
}

// Sentences with long names are wrapped: the text has no horizontal scroll bar.
TEST_F(AppearanceTest, LongNamesDoNotWidenTheComparison) {
  test::GeneratedRun generated;
  generated.layers = 3;
  generated.steps = 2;
  generated.layer_name = "layers.{}." + std::string(280, 'x') + ".attention";
  const std::string a = write_run(generated.run().traces, "a");
  generated.layers = 4;
  const std::string b = write_run(generated.run().traces, "b");
  open(a);
  compare_with(b);
  shown("compare");
  QScrollArea* text = nullptr;
  for (QScrollArea* each : window_->panels().get<ComparePanel>().findChildren<QScrollArea*>()) {
    text = each->accessibleName() == "Where the change comes from" ? each : text;
  }
  ASSERT_NE(text, nullptr);
  const QLabel* story = text->findChild<QLabel*>();
  ASSERT_TRUE(story->text().contains("xxxx"));
  EXPECT_EQ(text->horizontalScrollBar()->maximum(), 0);
}

TEST(TextLinesTest, LongWordsMayBeBroken) {
  EXPECT_EQ(with_breaks(""), "");
  EXPECT_EQ(with_breaks("usual words, also in a longer text"),
            "usual words, also in a longer text");
  const QString usual = "model.language_model.layers.12.self_attn";
  EXPECT_EQ(with_breaks(usual), usual);
  const QString name = "model." + QString("layer_").repeated(8) + QString(80, 'x') + " end";
  QString text = with_breaks(name);
  for (const QString& part : text.split(QChar(0x200b))) {
    EXPECT_LE(part.section(' ', 0, 0).size(), 24) << part.toStdString();
  }
  EXPECT_EQ(text.remove(QChar(0x200b)), name);
  const QString faces = QString("x") + QString::fromUtf8("😀").repeated(40);  // two units each
  for (const QString& part : with_breaks(faces).split(QChar(0x200b))) {
    EXPECT_FALSE(part.front().isLowSurrogate());
  }
}

}  // namespace
}  // namespace shardlens::gui
