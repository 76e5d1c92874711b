#include "gui/view/panel_parts/mesh_map.h"

#include <algorithm>
#include <set>

#include <QAction>
#include <QApplication>
#include <QComboBox>
#include <QMenu>
#include <QMouseEvent>
#include <QTableView>
#include <QTest>

#include "gui/model/tables/mesh_table.h"
#include "gui/view/panel_parts/mesh_bar.h"
#include "gui/view/panel_parts/plan_form.h"
#include "tests/gui/view/recording_canvas.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

using What = Recorder::Drawn::What;

// replicate 2 x shard (the rest) x tensor 2, in nodes of eight.
MeshPicture picture_of(int64_t ranks) {
  MeshPicture out;
  out.gpus = std::min<int64_t>(8, ranks);
  out.ranks.resize(static_cast<size_t>(ranks));
  for (size_t rank = 0; rank < out.ranks.size(); ++rank) {
    out.ranks[rank].parameters = 100;
    out.ranks[rank].waited = static_cast<Nanoseconds>(rank) * 1000;
  }
  out.peak = std::array<Bytes, sim::kMemoryCategoryCount>{100, 100, 200, 300, 150, 50};
  out.available = 1000;
  if (ranks >= 8) {
    const mesh::Mesh mesh({{"replicate", 2}, {"shard", ranks / 4}, {"tensor", 2}});
    for (const mesh::Axis& axis : mesh.axes()) {
      out.axes.push_back({mesh.group(axis.name), false});
    }
  }
  return out;
}

class MeshMapTest : public QtTest<QApplication> {
 protected:
  static std::vector<Recorder::Drawn> drawn(const MeshMap& map) {
    Recorder recorder;
    map.drawOn(recorder);
    return recorder.drawn;
  }
};

// From one rank to as many as a plan can have, in every size of panel.
TEST_F(MeshMapTest, EveryRankHasAPlaceAndFewItemsArePainted) {
  for (const QSize size : {QSize(140, 60), QSize(500, 170), QSize(1100, 420)}) {
    for (const int64_t ranks : {1, 2, 8, 12, 64, 512, 1024, 65'536}) {
      MeshMap map;
      map.resize(size);
      QApplication::sendPostedEvents(&map);
      map.show(picture_of(ranks));
      const MeshLayout& layout = map.meshLayout();
      EXPECT_LE(drawn(map).size(), 20'000U) << ranks;
      if (ranks > 1024) {
        continue;
      }
      if (ranks == 1024) {
        EXPECT_LE(drawn(map).size(), 16'000U) << size.width();
      }
      const QRectF whole(0, 0, size.width(), size.height());
      std::set<std::pair<double, double>> places;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const QRectF area = layout.rank(rank);
        EXPECT_TRUE(whole.contains(area)) << ranks << " " << rank << " " << size.width();
        EXPECT_TRUE(layout.node(rank / std::min<int64_t>(8, ranks)).contains(area)) << rank;
        EXPECT_TRUE(places.emplace(area.x(), area.y()).second);
        EXPECT_EQ(layout.rankAt(area.center()), rank);
      }
    }
  }
}

// Not for the boxes of a parameter.
TEST_F(MeshMapTest, TheLegendNamesTheColoursOfTheBars) {
  for (const QSize size : {QSize(900, 300), QSize(560, 170)}) {
    MeshMap map;
    map.resize(size);
    QApplication::sendPostedEvents(&map);
    map.show(picture_of(8));
    QStringList texts;
    for (const Recorder::Drawn& each : drawn(map)) {
      if (each.what == What::kText && each.area.bottom() <= map.meshLayout().node(0).top()) {
        EXPECT_LE(each.area.right(), size.width()) << each.text.toStdString();
        texts.append(each.text);
      }
    }
    EXPECT_EQ(texts, (QStringList{"parameters", "optimizer", "gradients", "activations", "gathered",
                                  "buffers", "waited"}))
        << texts.join(' ').toStdString();
    map.showBoxes(RankBoxes(8));
    for (const Recorder::Drawn& each : drawn(map)) {
      EXPECT_NE(each.text, "gathered");
    }
  }
}

TEST_F(MeshMapTest, TheGroupsOfTheRankUnderThePointerAreLit) {
  MeshMap map;
  map.resize(900, 300);
  const MeshPicture picture = picture_of(8);
  map.show(picture);
  const auto lit = [&](Ink ink) {
    std::set<int64_t> out;
    for (const Recorder::Drawn& each : drawn(map)) {
      if (each.what == What::kFill && each.ink == ink && each.area.width() <= 4) {
        out.insert(map.meshLayout().rankAt(each.area.center()).value_or(-1));
      }
    }
    return out;
  };
  const QPointF at = map.meshLayout().rank(5).center();
  QMouseEvent move(QEvent::MouseMove, at, map.mapToGlobal(at), Qt::NoButton, {}, {});
  QApplication::sendEvent(&map, &move);
  for (const MeshPicture::Axis& axis : picture.axes) {
    const std::vector<int64_t> members = axis.group.members(5);
    EXPECT_EQ(lit(ink_of_axis(axis.group.name)), std::set<int64_t>(members.begin(), members.end()))
        << axis.group.name;
  }
  std::optional<int64_t> chosen;
  QObject::connect(&map, &MeshMap::rankChosen, [&](int64_t rank) { chosen = rank; });
  QTest::mouseClick(&map, Qt::LeftButton, {}, map.meshLayout().rank(6).center().toPoint());
  EXPECT_EQ(chosen, 6);
  // With an axis lit, all ranks have its colour, neighbouring groups in other shades.
  map.lightAxis("tensor");
  std::set<double> shades;
  size_t ranks = 0;
  for (const Recorder::Drawn& each : drawn(map)) {
    if (each.what == What::kFill && each.ink == ink_of_axis("tensor") && each.area.width() > 20) {
      shades.insert(each.opacity);
      ++ranks;
    }
  }
  EXPECT_EQ(ranks, 8U);
  EXPECT_EQ(shades.size(), 4U);  // 2 x 2 groups
}

// Each part of a bar is as long as its bytes, in the colours of the memory's categories.
TEST_F(MeshMapTest, BarsAreWhatIsHeld) {
  MeshMap map;
  map.resize(900, 300);
  map.show(picture_of(1));
  double all = 0, parameters = 0;
  const QRectF rank = map.meshLayout().rank(0);
  for (const Recorder::Drawn& each : drawn(map)) {
    if (each.what == What::kFill && each.opacity == 1 && each.area.height() == 20 &&
        rank.contains(each.area)) {
      all += each.area.width();
      parameters += each.ink == Ink::kCompute ? each.area.width() : 0;
    }
  }
  EXPECT_GT(all, 0);
  EXPECT_NEAR(parameters / all, 100.0 / 900, 0.001);
}

// Each rank has the boxes of its part, within the area of the whole parameter.
TEST_F(MeshMapTest, BoxesOfAParameterAreDrawnInPlace) {
  MeshMap map;
  map.resize(900, 300);
  map.show(picture_of(8));
  RankBoxes boxes(8);
  for (size_t rank = 0; rank < 8; ++rank) {
    boxes[rank].emplace_back(0, static_cast<double>(rank) / 8, 1, 1.0 / 8);
  }
  map.showBoxes(boxes);
  std::vector<double> tops;
  for (const Recorder::Drawn& each : drawn(map)) {
    if (each.what == What::kFill && each.ink == Ink::kGathered) {
      const auto rank = map.meshLayout().rankAt(each.area.center());
      ASSERT_TRUE(rank.has_value());
      EXPECT_EQ(static_cast<size_t>(*rank), tops.size());
      tops.push_back(each.area.top() - map.meshLayout().rank(*rank).top());
    }
  }
  ASSERT_EQ(tops.size(), 8U);
  for (size_t rank = 2; rank < tops.size(); ++rank) {
    EXPECT_NEAR(tops[rank] - tops[rank - 1], tops[1] - tops[0], 1e-6);
  }
  map.showBoxes({});
  EXPECT_TRUE(std::ranges::none_of(
      drawn(map), [](const Recorder::Drawn& each) { return each.ink == Ink::kGathered; }));
}

class MeshPanelTest : public WindowTest {};

// A parameter of the chosen unit is drawn over all ranks.
TEST_F(MeshPanelTest, AParameterIsDrawnOverAllRanks) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  window_->panels().raise("mesh");
  window_->context().selectUnit("model.layers.2");
  window_->panels().flush();
  QComboBox* shown = nullptr;
  for (QComboBox* box : window_->panels().find("mesh").panel->findChildren<QComboBox*>()) {
    shown = box->accessibleName() == "What is drawn of each rank" ? box : shown;
  }
  ASSERT_NE(shown, nullptr);
  EXPECT_EQ(shown->count(), 1 + 9);  // a block has nine parameters
  const int index = shown->findText("model.layers.2.mlp.up_proj.weight");
  ASSERT_GT(index, 0);
  shown->setCurrentIndex(index);
  emit shown->activated(index);
  Recorder recorder;
  window_->findChild<MeshMap*>()->drawOn(recorder);
  std::set<int64_t> ranks;
  for (const Recorder::Drawn& each : recorder.drawn) {
    if (each.what == What::kFill && each.ink == Ink::kGathered) {
      ranks.insert(window_->findChild<MeshMap*>()->meshLayout().rankAt(each.area.center()).value());
    }
  }
  EXPECT_FALSE(ranks.empty());
  // It stays while another unit is chosen, and is listed with that one's.
  window_->context().selectUnit("model.layers.3");
  window_->panels().flush();
  EXPECT_EQ(shown->currentText(), "model.layers.2.mlp.up_proj.weight");
  EXPECT_EQ(shown->count(), 1 + 9 + 1);
}

TEST_F(MeshPanelTest, TheMeshIsEditedWithUndoAndARankIsChosen) {
  open(simulated_ranks("eight").toStdString());
  ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
  window_->panels().raise("mesh");
  QApplication::processEvents();
  const MeshTable& table = window_->panels().model<MeshTable>();
  EXPECT_EQ(table.rowCount(), 8);
  MeshMap& map = *window_->findChild<MeshMap*>();
  QTest::mouseClick(&map, Qt::LeftButton, {}, map.meshLayout().rank(1).center().toPoint());
  EXPECT_EQ(window_->context().rank()->figures.rank, 1);
  const plan::Plan before = window_->session().state().plan;
  MeshBar& bar = *window_->findChild<MeshBar*>();
  QAction* split = nullptr;
  for (QAction* action : bar.menu("shard").actions()) {
    split = action->text().startsWith("split: shard 4, replicate 2") ? action : split;
  }
  ASSERT_NE(split, nullptr);
  split->trigger();
  EXPECT_EQ(table.index(7, 1).data().toString(), "replicate 1, shard 3");
  window_->actions().trigger("plan.undo");
  EXPECT_EQ(window_->session().state().plan, before);
  EXPECT_EQ(table.index(7, 1).data().toString(), "shard 7");
}

// Every key of the catalogue has a list in the form, under a title of its section.
TEST_F(MeshPanelTest, TheFormHasEveryKnob) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] { return window_->session().isOpen(); }));
  PlanForm& form = *window_->findChild<PlanForm*>();
  const auto& knobs = window_->session().knobs();
  ASSERT_GE(knobs.size(), 30U);
  for (size_t i = 0; i < knobs.size(); ++i) {
    ASSERT_EQ(form.knob(i).accessibleName(), knobs[i].title);
    EXPECT_EQ(form.knob(i).count(), static_cast<int>(knobs[i].choices.size()))
        << knobs[i].title.toStdString();
    EXPECT_GE(form.knob(i).currentIndex(), 0) << knobs[i].title.toStdString();
  }
  EXPECT_EQ(form.machine().itemText(form.machine().count() - 1), "a spec file …");
}

}  // namespace
}  // namespace shardlens::gui
