#include "gui/model/run/run_preview.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <QTemporaryDir>

#include "core/files/input_file.h"
#include "gui/model/run/run_loader.h"
#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/gui/qt_test.h"
#include "tests/gui/slow_file.h"

namespace shardlens::gui {
namespace {

constexpr size_t kEvents = 12'000;

// A trace of two steps' operators, one after the other, of 1.5 MB: several windows of the reader.
trace::Trace long_rank(int64_t rank) {
  trace::Trace trace;
  trace.metadata.rank = rank;
  const uint32_t track = trace.track(1, 1);
  for (size_t i = 0; i < kEvents; ++i) {
    const auto start = static_cast<Nanoseconds>(10'000 * i);
    trace.add_complete(trace::Category::kCpuOp, i % 2 == 0 ? "aten::addmm" : "aten::relu", track,
                       start, start + 7'000);
  }
  return trace;
}

std::string bytes_of(const std::filesystem::path& path) {
  return read_input(path, {.most_bytes = uint64_t{1} << 30});
}

class RunPreviewTest : public QtTest<QCoreApplication> {
 protected:
  // The bytes of a trace, plain or compressed as `name` says.
  std::string written(const trace::Trace& trace, const std::string& name) const {
    const std::string path = at("written-" + name);
    trace::write_kineto(trace, path);
    return bytes_of(path);
  }
  [[nodiscard]] std::string at(const std::string& name) const {
    return folder_.path().toStdString() + "/" + name;
  }
  // What the loader emits.
  struct Seen {
    explicit Seen(RunLoader& loader) {
      QObject::connect(&loader, &RunLoader::preview, [this](const RunPointer& run) {
        EXPECT_EQ(loaded, nullptr);
        previews.push_back(run);
      });
      QObject::connect(&loader, &RunLoader::loaded,
                       [this](const RunPointer& run) { loaded = run; });
      QObject::connect(&loader, &RunLoader::failed,
                       [this](const QString& message) { failed = message; });
    }
    std::vector<RunPointer> previews;
    RunPointer loaded;
    QString failed;
  };
  // Writes the first half and waits for the preview.
  void show_half(RunLoader& loader, SlowFile& file, const Seen& seen) {
    loader.setPreviewFrom(1'000);
    loader.load({file.path()});
    ASSERT_TRUE(wait_for([&] {
      file.write(file.size() / 2);
      return !seen.previews.empty();
    }));
  }
  QTemporaryDir folder_;
};

TEST_F(RunPreviewTest, IsAPartOfAPlainOrCompressedTrace) {
  for (const std::string name : {"rank0.json", "rank0.json.gz"}) {
    SlowFile file(at(name), written(long_rank(0), name));
    RunLoader loader;
    const Seen seen(loader);
    ASSERT_NO_FATAL_FAILURE(show_half(loader, file, seen));
    const RunData& part = *seen.previews.front();
    EXPECT_TRUE(part.preview);
    EXPECT_EQ(seen.loaded, nullptr) << name;
    EXPECT_GE(part.event_count, 1'000) << name;
    EXPECT_LT(part.event_count, static_cast<int64_t>(kEvents)) << name;
    // The events are those at the beginning of the file, unchanged.
    ASSERT_EQ(part.ranks.size(), 1U);
    const trace::Trace& trace = part.ranks.front()->trace;
    EXPECT_EQ(trace.metadata.rank, 0);
    EXPECT_EQ(trace.events.back().start - trace.events.front().start,
              10'000 * (part.event_count - 1));
    ASSERT_TRUE(wait_for([&] {
      file.finish();
      return seen.loaded != nullptr;
    })) << name;
    EXPECT_FALSE(seen.loaded->preview);
    EXPECT_EQ(seen.loaded->event_count, static_cast<int64_t>(kEvents));
    EXPECT_EQ(seen.previews.size(), 1U);
    EXPECT_EQ(seen.failed.toStdString(), "");
  }
}

// One rank is drawn while it and another one are being read.
TEST_F(RunPreviewTest, IsOfOneRankOfSeveral) {
  const std::string other = at("rank0.json");
  trace::Trace small;
  small.metadata.rank = 0;
  small.add_complete(trace::Category::kCpuOp, "aten::addmm", small.track(1, 1), 0, 100);
  trace::write_kineto(small, other);
  SlowFile file(at("rank1.json"), written(long_rank(1), "rank1.json"));
  RunLoader loader;
  const Seen seen(loader);
  loader.setPreviewFrom(1'000);
  loader.load({other, file.path()});
  ASSERT_TRUE(wait_for([&] {
    file.write(file.size() / 2);
    return !seen.previews.empty();
  }));
  ASSERT_EQ(seen.previews.front()->ranks.size(), 1U);
  EXPECT_EQ(seen.previews.front()->ranks.front()->figures.rank, 1);
  ASSERT_TRUE(wait_for([&] {
    file.finish();
    return seen.loaded != nullptr;
  }));
  EXPECT_EQ(seen.loaded->ranks.size(), 2U);
}

TEST_F(RunPreviewTest, AFaultBehindThePartIsTheResult) {
  const std::string text = written(long_rank(0), "rank0.json");
  SlowFile file(at("rank0.json"), text.substr(0, text.size() - 100) + "nonsense");
  RunLoader loader;
  const Seen seen(loader);
  ASSERT_NO_FATAL_FAILURE(show_half(loader, file, seen));
  ASSERT_TRUE(wait_for([&] {
    file.finish();
    return !seen.failed.isEmpty();
  }));
  EXPECT_TRUE(seen.failed.contains("rank0.json")) << seen.failed.toStdString();
  EXPECT_EQ(seen.loaded, nullptr);
}

TEST_F(RunPreviewTest, CancellingEndsTheLoadBehindThePart) {
  SlowFile file(at("rank0.json"), written(long_rank(0), "rank0.json"));
  RunLoader loader;
  const Seen seen(loader);
  ASSERT_NO_FATAL_FAILURE(show_half(loader, file, seen));
  loader.cancel();
  EXPECT_FALSE(loader.isLoading());
  file.close();
  RunPointer next;
  QObject::connect(&loader, &RunLoader::loaded, [&](const RunPointer& run) { next = run; });
  loader.load({sample_run()});
  ASSERT_TRUE(wait_for([&] { return next != nullptr; }));
  EXPECT_EQ(next->event_count, sample()->event_count);
  EXPECT_EQ(seen.failed.toStdString(), "");
}

TEST_F(RunPreviewTest, EndsWithItsLoader) {
  SlowFile file(at("rank0.json"), written(long_rank(0), "rank0.json"));
  RunLoader loader;
  const Seen seen(loader);
  ASSERT_NO_FATAL_FAILURE(show_half(loader, file, seen));
  file.close();
}

TEST_F(RunPreviewTest, WithoutAWishThereIsNone) {
  SlowFile file(at("rank0.json"), written(long_rank(0), "rank0.json"));
  RunLoader loader;
  const Seen seen(loader);
  loader.load({file.path()});
  ASSERT_TRUE(wait_for([&] {
    file.finish();
    return seen.loaded != nullptr;
  }));
  EXPECT_TRUE(seen.previews.empty());
}

// What depends on events that are still to come is not drawn.
TEST_F(RunPreviewTest, HasNoLanesThatTheRestChanges) {
  trace::Run run = trace::Run::open(sample_run());
  const RunPointer part = preview_of(std::move(run.traces.front()), nullptr);
  const RankData& rank = *part->ranks.front();
  EXPECT_FALSE(rank.lanes.empty());
  for (const Lane& lane : rank.lanes) {
    EXPECT_NE(lane.source, Lane::Source::kExposed);
    EXPECT_NE(lane.source, Lane::Source::kIdle);
  }
  EXPECT_TRUE(rank.figures.steps.empty());
  EXPECT_TRUE(rank.figures.memory.empty());
  EXPECT_TRUE(rank.queue.empty());
}

TEST_F(RunPreviewTest, IsMadeOnlyIfMuchMoreIsToCome) {
  constexpr size_t kFrom = 1'000;
  // 1,000 events in 100 of 400 bytes: 3,000 more are expected.
  EXPECT_TRUE(is_worth_showing({1'000, false, 100, 400}, kFrom));
  EXPECT_FALSE(is_worth_showing({1'000, false, 100, 399}, kFrom));
  EXPECT_FALSE(is_worth_showing({999, false, 100, 6'000}, kFrom));
  EXPECT_TRUE(is_worth_showing({999, true, 100, 6'000}, kFrom));  // one rank of 60
  EXPECT_FALSE(is_worth_showing({0, true, 100, 6'000}, kFrom));
  EXPECT_TRUE(is_worth_showing({15'000, false, 100, 600}, kFrom));
  EXPECT_FALSE(is_worth_showing({15'001, false, 100, 600}, kFrom));
  EXPECT_FALSE(is_worth_showing({1'000, true, 600, 600}, kFrom));
  EXPECT_TRUE(is_worth_showing({1'000, false, 100, 0}, kFrom));  // a pipe
  EXPECT_FALSE(is_worth_showing({1'000, true, 100, 0}, kFrom));
}

// PyTorch writes what the host did first.
TEST_F(RunPreviewTest, NeedsTheDeviceOfTheTrace) {
  trace::Trace trace;
  EXPECT_FALSE(lacks_device(trace));
  trace.metadata.device_properties = "[]";
  EXPECT_FALSE(lacks_device(trace));
  trace.metadata.device_properties = R"([{"id": 0, "name": "NVIDIA H200"}])";
  EXPECT_TRUE(lacks_device(trace));
  trace.devices.push_back({});
  EXPECT_FALSE(lacks_device(trace));
}

TEST_F(RunPreviewTest, BeginsBehindManyEventsOfOnlyTheHost) {
  trace::Trace trace;
  EXPECT_EQ(first_of_part(trace, 5'000, 1'000), 0U);  // a trace of a CPU
  trace.devices.push_back({});
  EXPECT_EQ(first_of_part(trace, 5'000, 1'000), 5'000U);
  EXPECT_EQ(first_of_part(trace, 999, 1'000), 0U);
  // 1,000 events behind 9,000 in 100 of 200 bytes: 10,000 more are expected.
  EXPECT_TRUE(is_worth_showing({1'000, false, 100, 200, 9'000}, 1'000));
  EXPECT_FALSE(is_worth_showing({1'000, false, 100, 200}, 1'000));
}

// What torch.profiler wrote on an H200: all operators, then all kernels and their launches.
std::filesystem::path of_pytorch() {
  return std::filesystem::path(SHARDLENS_TEST_DATA) /
         "../../traces/fsdp2-h200/rank0.pt.trace.json.gz";
}

size_t drawn_items(const RankData& rank, Kind kind) {
  size_t items = 0;
  for (const Lane& lane : rank.lanes) {
    for (const LaneRow& row : lane.rows) {
      items += lane.kind == kind && lane.source == Lane::Source::kEvents ? row.items().size() : 0;
    }
  }
  return items;
}

// While another rank is read, the one that PyTorch wrote is drawn with its kernels.
TEST_F(RunPreviewTest, IsOfTheDeviceWherePyTorchWritesTheHostFirst) {
  const std::string plain = at("rank0.json");
  std::ofstream(plain, std::ios::binary) << trace::read_all(*trace::open_source(of_pytorch()));
  SlowFile file(at("rank1.json"), written(long_rank(1), "rank1.json"));
  RunLoader loader;
  const Seen seen(loader);
  loader.setPreviewFrom(1'000);
  loader.load({plain, file.path()});
  ASSERT_TRUE(wait_for([&] { return !seen.previews.empty(); }));
  const RunData& part = *seen.previews.front();
  ASSERT_EQ(part.ranks.size(), 1U);
  EXPECT_EQ(part.ranks.front()->figures.rank, 0);
  EXPECT_GT(drawn_items(*part.ranks.front(), Kind::kCompute), 100U);
  EXPECT_LT(part.event_count, 6'000);
  ASSERT_TRUE(wait_for([&] {
    file.finish();
    return seen.loaded != nullptr;
  }));
  EXPECT_EQ(seen.loaded->ranks.size(), 2U);
  EXPECT_EQ(seen.previews.size(), 1U);
}

// A compressed file is only read from its beginning: the picture has what comes behind the host.
TEST_F(RunPreviewTest, IsOfTheDeviceOfACompressedTraceOfPyTorch) {
  const std::string packed = bytes_of(of_pytorch());
  SlowFile file(at("rank0.json.gz"), packed);
  RunLoader loader;
  const Seen seen(loader);
  loader.setPreviewFrom(1'000);
  loader.load({file.path()});
  ASSERT_TRUE(wait_for([&] {
    file.write(packed.size() - 1'000);
    return !seen.previews.empty();
  }));
  EXPECT_GT(drawn_items(*seen.previews.front()->ranks.front(), Kind::kCompute), 50U);
  EXPECT_LT(seen.previews.front()->event_count, 4'000);
  ASSERT_TRUE(wait_for([&] {
    file.finish();
    return seen.loaded != nullptr;
  }));
  EXPECT_GT(seen.loaded->event_count, 20'000);
}

}  // namespace
}  // namespace shardlens::gui
