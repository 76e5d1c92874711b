#include "profiler/trace/kineto/device_excerpt.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::trace {
namespace {

namespace fs = std::filesystem;

bool is_kernel(const Event& event) {
  return event.category == Category::kKernel;
}

std::string described(const Trace& trace, const Event& event) {
  const Track& track = trace.tracks[event.track];
  return fmt::format("{} {} {}+{} pid {} tid {} '{}' correlation {}", trace.category(event),
                     trace.name(event), event.start, event.duration, track.pid, track.tid,
                     trace.strings.view(track.name), event.correlation);
}

class DeviceExcerptTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path write(const std::string& text, const char* name = "rank0.json") const {
    std::ofstream(folder_.path() / name, std::ios::binary) << text;
    return folder_.path() / name;
  }
  test::TemporaryDirectory folder_;
};

// What torch.profiler wrote on an H200.
std::string recorded_text() {
  return read_all(*open_source(fs::path(SHARDLENS_TEST_DATA) /
                               "../../traces/fsdp2-h200/rank0.pt.trace.json.gz"));
}

std::string event_text(const char* category, int64_t time, const std::string& name) {
  return fmt::format(
      R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": 0, "tid": 7, "ts": {}, "dur": 5}})",
      category, name, time);
}

// `count` events, each followed by a comma.
std::string events_text(const char* category, int64_t first, int64_t count) {
  std::string out;
  for (int64_t i = first; i < first + count; ++i) {
    // Brackets and commas of a name are no ends of events.
    out += event_text(category, 10 * i, i % 2 == 0 ? "f()::{lambda()#1}, {" : "g") + ",\n";
  }
  return out;
}

std::string file_text(const std::string& events) {
  return "{\"deviceProperties\": [{\"id\": 0}, {\"id\": 1}], \"distributedInfo\": {\"rank\": 3},\n"
         "\"traceEvents\": [\n" +
         events + event_text("Trace", 0, "end") + "\n]}\n";
}

TEST_F(DeviceExcerptTest, IsTheEndOfWhatPyTorchWrote) {
  const std::string text = recorded_text();
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  for (const std::string& written : {text, line}) {
    const fs::path path = write(written);
    const Trace whole = read_kineto(path);
    ASSERT_TRUE(allows_excerpt(path));
    const std::optional<Trace> part = device_excerpt(path, 2'000);
    ASSERT_TRUE(part.has_value());
    EXPECT_GE(part->events.size(), 2'000U);
    EXPECT_LT(part->events.size(), 5'000U);
    EXPECT_EQ(part->metadata.rank, whole.metadata.rank);
    EXPECT_EQ(part->metadata.base_time, whole.metadata.base_time);
    EXPECT_EQ(part->metadata.groups, whole.metadata.groups);
    // Kernels and launches of the last steps, on streams and threads with their names.
    const size_t before = whole.events.size() - part->events.size();
    for (size_t i = 0; i < part->events.size(); ++i) {
      ASSERT_EQ(described(*part, part->events[i]), described(whole, whole.events[before + i]));
    }
    EXPECT_GT(std::count_if(part->events.begin(), part->events.end(), is_kernel), 300);
  }
}

TEST_F(DeviceExcerptTest, FindsKernelsBetweenEventsOfTheHost) {
  const fs::path path =
      write(file_text(events_text("cpu_op", 0, 20'000) + events_text("kernel", 20'000, 20'000) +
                      events_text("cpu_op", 40'000, 20'000)));
  const std::optional<Trace> part = device_excerpt(path, 5'000);
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->metadata.rank, 3);
  const auto kernels = std::count_if(part->events.begin(), part->events.end(), is_kernel);
  EXPECT_GT(kernels, 3'500);
  EXPECT_LT(kernels, 5'500);
  // They follow each other, and those at the end of the file come with them.
  const auto first = std::find_if(part->events.begin(), part->events.end(), is_kernel);
  for (int64_t i = 1; i < kernels; ++i) {
    EXPECT_EQ(first[i].start - first[i - 1].start, 10'000);
  }
  EXPECT_EQ(part->name(part->events.back()), "end");
}

TEST_F(DeviceExcerptTest, IsOfNoLargeShareOfTheFile) {
  const fs::path path = write(file_text(events_text("kernel", 0, 100'000)));
  const std::optional<Trace> part = device_excerpt(path, 1'000);
  ASSERT_TRUE(part.has_value());
  EXPECT_GE(part->events.size(), 1'000U);
  EXPECT_LT(part->events.size(), 5'000U);
}

TEST_F(DeviceExcerptTest, IsNoneWithoutKernelsOrOfAnotherFile) {
  EXPECT_FALSE(device_excerpt(write(file_text(events_text("cpu_op", 0, 5'000))), 1'000));
  const std::string kernels = file_text(events_text("kernel", 0, 5'000));
  EXPECT_TRUE(device_excerpt(write(kernels), 1'000));
  EXPECT_FALSE(device_excerpt(write(kernels.substr(0, kernels.size() - 4)), 1'000));  // cut off
  EXPECT_FALSE(device_excerpt(write(""), 1'000));
  EXPECT_FALSE(device_excerpt(write("[" + events_text("kernel", 0, 5'000) + "{}]"), 1'000));
  const fs::path packed = write(gzip(kernels), "rank0.json.gz");
  EXPECT_FALSE(allows_excerpt(packed));
  EXPECT_FALSE(device_excerpt(packed, 1'000));
  EXPECT_FALSE(allows_excerpt(folder_.path()));
  EXPECT_FALSE(allows_excerpt(folder_.path() / "absent"));
}

}  // namespace
}  // namespace shardlens::trace
