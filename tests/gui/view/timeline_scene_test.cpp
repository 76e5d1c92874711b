#include "gui/view/timeline/timeline_scene.h"

#include <algorithm>

#include <QApplication>

#include "tests/gui/qt_test.h"
#include "tests/gui/view/recording_canvas.h"

namespace shardlens::gui {
namespace {

using What = Recorder::Drawn::What;

class TimelineSceneTest : public QtTest<QApplication> {
 protected:
  static constexpr int kWidth = 1200, kHeight = 600;
  void SetUp() override {
    QtTest::SetUp();
    scene_.setRun(sample());
    scene_.setSize(kWidth, kHeight);
  }
  std::vector<Recorder::Drawn> draw() {
    Recorder recorder;
    scene_.draw(recorder);
    return recorder.drawn;
  }
  const TimelineLayout::Band& band(Lane::Source source, Kind kind) {
    for (const TimelineLayout::Band& each : scene_.layout().bands) {
      const Lane& lane = sample()->ranks[0]->lanes[each.lane];
      if (each.kind == TimelineLayout::Band::Kind::kLane && each.row == 0 &&
          lane.source == source && lane.kind == kind) {
        return each;
      }
    }
    throw std::runtime_error("no such lane");
  }
  double center(const TimelineLayout::Band& of) const {
    return TimelineScene::kHeader + of.top + of.height / 2;
  }
  double pixel(Nanoseconds own) const {
    const RankData& rank = *sample()->ranks[0];
    return scene_.axis.toPixel(sample()->shown(rank, {own, own}).start) + TimelineScene::kGutter;
  }
  TimelineScene scene_;
};

// At every zoom the area of the compute boxes is the busy fraction of the lane.
TEST_F(TimelineSceneTest, DrawnComputeIsTheAnalyzers) {
  const RankData& rank = *sample()->ranks[0];
  const TimelineLayout::Band& lane = band(Lane::Source::kEvents, Kind::kCompute);
  for (const double zoom : {1.0, 0.3, 0.05}) {
    scene_.axis.fitAll();
    scene_.axis.zoom(zoom, 500);
    double area = 0;
    for (const Recorder::Drawn& d : draw()) {
      const bool inside = d.area.top() >= TimelineScene::kHeader + lane.top &&
                          d.area.bottom() <= TimelineScene::kHeader + lane.top + lane.height;
      if (d.what == What::kFill && d.ink == Ink::kCompute && inside &&
          d.area.left() >= TimelineScene::kGutter) {
        area += d.area.width() * d.area.height();
      }
    }
    const analysis::Interval own = sample()->own(rank, scene_.axis.view());
    const double busy = static_cast<double>(length_within(rank.timeline.compute, own)) /
                        static_cast<double>(own.length());
    // Boxes leave a pixel of space between them. A solid bar would differ by 0.2.
    EXPECT_NEAR(area / ((kWidth - TimelineScene::kGutter) * (lane.height - 2)), busy, 0.12) << zoom;
  }
}

TEST_F(TimelineSceneTest, ExposedTimeIsHatchedInItsOwnLane) {
  const TimelineLayout::Band& lane = band(Lane::Source::kExposed, Kind::kOtherComm);
  const auto drawn = draw();
  const auto hatched = std::count_if(drawn.begin(), drawn.end(), [&](const Recorder::Drawn& d) {
    return d.what == What::kHatch && d.ink == Ink::kExposed &&
           d.area.top() >= TimelineScene::kHeader + lane.top &&
           d.area.bottom() <= TimelineScene::kHeader + lane.top + lane.height;
  });
  EXPECT_GT(hatched, 5);
}

TEST_F(TimelineSceneTest, WhatIsHitIsWhatIsThere) {
  const RankData& rank = *sample()->ranks[0];
  const TimelineLayout::Band& lane = band(Lane::Source::kCollectives, Kind::kAllGather);
  for (uint32_t i = 0; i < rank.timeline.collectives.size(); ++i) {
    const analysis::Collective& c = rank.timeline.collectives[i];
    if (c.kind != CollectiveKind::kAllGather) {
      continue;
    }
    const TimelineScene::Hit hit =
        scene_.hit(pixel(c.when.start + c.when.length() / 2), center(lane));
    ASSERT_TRUE(hit.item) << i;
    EXPECT_EQ(hit.item->ref, i);
    EXPECT_EQ(hit.item->source, Lane::Source::kCollectives);
    const auto where = scene_.place(*hit.item);
    ASSERT_TRUE(where);
    EXPECT_EQ(rank.lanes[where->lane].rows[where->row].items()[where->index].ref, i);
  }
  EXPECT_FALSE(scene_.hit(5, 5).item);
  EXPECT_FALSE(scene_.hit(600, 1e6).item);
}

TEST_F(TimelineSceneTest, MeasuringSnapsToEdges) {
  const RankData& rank = *sample()->ranks[0];
  const TimelineLayout::Band& lane = band(Lane::Source::kCollectives, Kind::kAllGather);
  const analysis::Interval own = rank.timeline.collectives.front().when;
  const Nanoseconds shown = sample()->shown(rank, own).end;
  scene_.axis.setView({shown - 5'000'000, shown + 5'000'000});
  const double x = scene_.axis.toPixel(shown) + TimelineScene::kGutter;
  EXPECT_EQ(scene_.snap(x + 4, center(lane), 6), shown);
  EXPECT_EQ(scene_.snap(x - 4, center(lane), 6), shown);
  EXPECT_NE(scene_.snap(x + 4, center(lane), 0), shown);
}

TEST_F(TimelineSceneTest, TheSelectedCollectiveHasAnArrowWithItsSlack) {
  const RankData& rank = *sample()->ranks[0];
  const auto& all = rank.timeline.collectives;
  const auto late = std::find_if(all.begin(), all.end(), [](const analysis::Collective& c) {
    return c.needed_at && *c.needed_at < c.when.end;
  });
  ASSERT_NE(late, all.end());
  Selection selection;
  selection.item =
      Selection::Item{0, Lane::Source::kCollectives, static_cast<uint32_t>(late - all.begin())};
  scene_.setSelection(selection);
  const auto drawn = draw();
  const QString slack = durationText(*late->needed_at - late->when.end);
  EXPECT_TRUE(std::any_of(drawn.begin(), drawn.end(), [&](const Recorder::Drawn& d) {
    return d.what == What::kText && d.text == "slack " + slack;
  }));
  EXPECT_EQ(std::count_if(drawn.begin(), drawn.end(),
                          [](const Recorder::Drawn& d) {
                            return d.what == What::kArrow && d.ink == Ink::kAccent;
                          }),
            1);
}

TEST_F(TimelineSceneTest, AUnitDimsTheOthers) {
  Selection selection;
  selection.unit = "model.layers.2";
  scene_.setSelection(selection);
  const auto drawn = draw();
  // All-gathers, and what they gather.
  const auto is_gather = [](const Recorder::Drawn& d) {
    return d.what == What::kFill && (d.ink == Ink::kAllGather || d.ink == Ink::kGathered);
  };
  const auto strong = std::count_if(drawn.begin(), drawn.end(), [&](const Recorder::Drawn& d) {
    return is_gather(d) && d.opacity == 1;
  });
  const auto dim = std::count_if(drawn.begin(), drawn.end(), [&](const Recorder::Drawn& d) {
    return is_gather(d) && d.opacity < 0.5;
  });
  const RankData& rank = *sample()->ranks[0];
  int64_t own = 0;
  for (uint32_t i = 0; i < rank.timeline.collectives.size(); ++i) {
    own += rank.timeline.collectives[i].kind == CollectiveKind::kAllGather &&
                   rank.owner_of(i) == "model.layers.2"
               ? 1
               : 0;
  }
  own += std::ranges::count(rank.residencies, "model.layers.2", &Residency::unit);
  EXPECT_EQ(strong, own);
  EXPECT_GT(dim, 3 * strong);
}

TEST_F(TimelineSceneTest, AFoldedRankIsOneRow) {
  const double open = scene_.layout().height;
  scene_.toggle(0);
  EXPECT_LT(scene_.layout().height, open / 2);
  const auto drawn = draw();
  EXPECT_TRUE(std::any_of(drawn.begin(), drawn.end(), [](const Recorder::Drawn& d) {
    return d.ink == Ink::kExposed && d.area.top() > TimelineScene::kHeader;
  }));
  scene_.toggle(0);
  EXPECT_EQ(scene_.layout().height, open);
}

}  // namespace
}  // namespace shardlens::gui
