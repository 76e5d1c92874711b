#include "profiler/trace/kineto/kineto_reader.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zstd.h>

#include "core/base/error.h"
#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/model/part_sink.h"

namespace shardlens::trace {
namespace {

using testing::HasSubstr;

std::string event(const std::string& fields) {
  return R"({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, )" + fields + "}";
}
std::string file(const std::string& events,
                 const std::string& head = R"("distributedInfo": {"rank": 3}, )") {
  return "{" + head + R"("traceEvents": [)" + events + "]}";
}
Trace parse(const std::string& json) {
  return parse_kineto(json, "t.json");
}

std::string message_of(const std::string& json) {
  try {
    (void)parse(json);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

int64_t count_of(const Trace& trace, const std::string& part) {
  int64_t count = 0;
  for (const Diagnostic& d : trace.diagnostics) {
    count += d.message.find(part) != std::string::npos ? d.count : 0;
  }
  return count;
}

// Keeps every part that it is offered.
class AllParts : public PartSink {
 public:
  std::optional<size_t> wants(const Trace& so_far, size_t host_only, bool whole) override {
    counts.push_back(so_far.events.size());
    host_onlys.push_back(host_only);
    wholes.push_back(whole);
    return std::min(first, so_far.events.size());
  }
  void take(Trace part) override { parts.push_back(std::move(part)); }
  size_t first = 0;
  std::vector<size_t> counts, host_onlys;
  std::vector<bool> wholes;
  std::vector<Trace> parts;
};

// Each part is what the whole trace begins with, with the base time and the rank.
TEST(KinetoReaderTest, PartsAreOfferedWhileTheRestIsRead) {
  std::string events;
  for (int i = 0; i < 100; ++i) {
    events += (i == 0 ? "" : ",") + event(R"("ts": )" + std::to_string(i) + R"(, "dur": 0.5)");
  }
  AllParts parts;
  const std::string head =
      R"("baseTimeNanoseconds": 1000000000000000000, "distributedInfo": {"rank": 3}, )";
  Progress progress;
  progress.parts = &parts;
  const Trace trace =
      parse_kineto(file(events, head), "t.json", {.window_bytes = 1'000, .progress = &progress});
  EXPECT_EQ(trace.events.size(), 100U);
  ASSERT_GT(parts.parts.size(), 5U);
  EXPECT_TRUE(std::ranges::is_sorted(parts.counts));
  for (const Trace& part : parts.parts) {
    EXPECT_EQ(part.metadata.rank, 3);
    for (size_t i = 0; i < part.events.size(); ++i) {
      EXPECT_EQ(part.events[i].start, 1'000'000'000'000'000'000 + 1'000 * static_cast<int64_t>(i));
      EXPECT_EQ(part.events[i].duration, 500);
    }
  }
  EXPECT_LT(parts.parts.front().events.size(), 100U);
  EXPECT_EQ(parts.parts.back().events.size(), 100U);
  EXPECT_EQ(std::ranges::count(parts.wholes, true), 1);
  EXPECT_TRUE(parts.wholes.back());
}

// The host's events come first, as PyTorch writes them.
TEST(KinetoReaderTest, PartsMayBeginBehindTheEventsOfTheHost) {
  std::string events;
  for (int i = 0; i < 100; ++i) {
    const std::string args =
        i < 60 ? "" : R"(, "args": {"stream": 7, "bytes": )" + std::to_string(i) + "}";
    events +=
        (i == 0 ? "" : ",") + event(R"("ts": )" + std::to_string(i) + R"(, "dur": 0.5)" + args);
  }
  AllParts parts;
  parts.first = 40;
  Progress progress;
  progress.parts = &parts;
  const Trace trace =
      parse_kineto(file(events), "t.json", {.window_bytes = 1'000, .progress = &progress});
  // As many as the first windows without a stream have.
  EXPECT_TRUE(std::ranges::is_sorted(parts.host_onlys));
  EXPECT_GT(parts.host_onlys.back(), 40U);
  EXPECT_LE(parts.host_onlys.back(), 60U);
  ASSERT_GT(parts.parts.size(), 5U);
  for (size_t i = 0; i < parts.parts.size(); ++i) {
    const Trace& part = parts.parts[i];
    const size_t first = std::min<size_t>(40, parts.counts[i]);
    ASSERT_EQ(part.events.size(), parts.counts[i] - first);
    for (size_t k = 0; k < part.events.size(); ++k) {
      const size_t place = first + k;
      EXPECT_EQ(part.events[k].start, 1'000 * static_cast<int64_t>(place));
      const DeviceArgs* device = part.device(part.events[k]);
      ASSERT_EQ(device != nullptr, place >= 60);
      EXPECT_EQ(device == nullptr ? 0 : device->bytes,
                place >= 60 ? static_cast<int64_t>(place) : 0);
    }
  }
  EXPECT_EQ(trace.events.size(), 100U);
}

TEST(KinetoReaderTest, RanksThatAreNoneAreLeftOut) {
  const auto with_rank = [](const std::string& rank) {
    return parse(file("", R"("distributedInfo": {"rank": )" + rank + R"(, "world_size": 8}, )"));
  };
  EXPECT_EQ(with_rank("2147483647").metadata.rank, 2147483647);
  for (const char* rank : {"-1", "2147483648", "9223372036854775808", "18446744073709551615",
                           "18446744073709551616", "0.5"}) {
    const Trace trace = with_rank(rank);
    EXPECT_EQ(trace.metadata.rank, std::nullopt) << rank;
    EXPECT_EQ(trace.metadata.world_size, 8) << rank;
    EXPECT_EQ(count_of(trace, "rank is " + std::string(rank == std::string("18446744073709551616")
                                                           ? "1.8446744073709552e+19"
                                                           : rank)),
              1)
        << rank;
  }
}

TEST(KinetoReaderTest, TakesEveryDialectOfTime) {
  EXPECT_EQ(parse(file(event(R"("ts": 5, "dur": 2)"))).events.at(0).start, 5000);
  EXPECT_EQ(parse(file(event(R"("ts": 5.25, "dur": 2)"), R"("baseTimeNanoseconds": 1000000, )"))
                .events.at(0)
                .start,
            1005250);
  // The base time comes after the events.
  EXPECT_EQ(parse(R"({"traceEvents": [)" + event(R"("ts": 5, "dur": 2)") +
                  R"(], "baseTimeNanoseconds": 7})")
                .events.at(0)
                .start,
            5007);
  const Trace epoch = parse(file(event(R"("ts": 1712195495519689.047, "dur": 1.001)")));
  EXPECT_EQ(epoch.events.at(0).start, 1712195495519689047);
  EXPECT_EQ(epoch.events.at(0).duration, 1001);
  // Already since the epoch, although the file has a base time.
  EXPECT_EQ(parse(file(event(R"("ts": 1712195495519689.047, "dur": 1)"),
                       R"("baseTimeNanoseconds": 1711929600000000000, )"))
                .events.at(0)
                .start,
            1712195495519689047);
}

TEST(KinetoReaderTest, TakesABareListAndForgivesMissingParts) {
  const Trace trace = parse("[" + event(R"("ts": 1, "dur": 1)") + "]");
  EXPECT_EQ(trace.events.size(), 1U);
  EXPECT_EQ(trace.metadata.rank, std::nullopt);
  EXPECT_EQ(count_of(trace, "contains a rank"), 1);
}

TEST(KinetoReaderTest, TakesTheRankFromTheFileName) {
  EXPECT_EQ(rank_of_file_name("rank-34.Jul_15.pt.trace.json.gz"), 34);
  EXPECT_EQ(rank_of_file_name("fsdp_cpu_rank0.json.gz"), 0);
  EXPECT_EQ(rank_of_file_name("sampled_rank_12.json"), 12);
  EXPECT_EQ(rank_of_file_name("rank_non_gpu_rank2.json"), 2);
  EXPECT_EQ(rank_of_file_name("ranked.json"), std::nullopt);
  const Trace trace = parse_kineto("[]", "some/rank7.json");
  EXPECT_EQ(trace.metadata.rank, 7);
  EXPECT_TRUE(trace.metadata.rank_is_from_name);
}

TEST(KinetoReaderTest, TakesCategoriesWithoutRegardToCase) {
  const Trace trace =
      parse(file(R"({"ph":"X","cat":"Kernel","name":"a","pid":0,"tid":0,"ts":0,"dur":1},
                                    {"ph":"X","cat":"Runtime","name":"b","pid":0,"tid":0,"ts":0,"dur":1},
                                    {"ph":"X","cat":"Memcpy","name":"c","pid":0,"tid":0,"ts":0,"dur":1},
                                    {"ph":"X","cat":"something","name":"d","pid":0,"tid":0,"ts":0,"dur":1})"));
  EXPECT_EQ(trace.events.at(0).category, Category::kKernel);
  EXPECT_EQ(trace.events.at(1).category, Category::kCudaRuntime);
  EXPECT_EQ(trace.events.at(2).category, Category::kGpuMemcpy);
  EXPECT_EQ(trace.events.at(3).category, Category::kOther);
  EXPECT_EQ(trace.category(trace.events.at(3)), "something");
}

TEST(KinetoReaderTest, TakesIdsThatAreNumbersOrTexts) {
  const Trace trace = parse(file(
      R"({"ph":"X","cat":"Trace","name":"a","pid":"Spans","tid":"PyTorch Profiler","ts":0,"dur":1},
                                    {"ph":"X","cat":"overhead","name":"b","pid":-1,"tid":0,"ts":0,"dur":1},
                                    {"ph":"M","name":"thread_name","pid":-1,"tid":0,"ts":0,"args":{"name":"main"}})"));
  const Track& text = trace.tracks.at(trace.events.at(0).track);
  EXPECT_TRUE(text.pid_is_text && text.tid_is_text);
  EXPECT_EQ(trace.strings.view(text.pid_text), "Spans");
  const Track& number = trace.tracks.at(trace.events.at(1).track);
  EXPECT_EQ(number.pid, -1);
  EXPECT_EQ(trace.strings.view(number.name), "main");
}

TEST(KinetoReaderTest, ReadsArgumentsOfCollectivesWhateverTheirPlace) {
  const Trace trace = parse(file(R"JSON({"args": {"Collective name": "_reduce_scatter_base",
      "In msg nelems": 64, "Out msg nelems": 16, "dtype": "BFloat16", "Group size": 4,
      "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]", "correlation": 99,
      "stream": 20}, "name": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)",
      "cat": "kernel", "ph": "X", "dur": 3, "ts": 1, "tid": 20, "pid": 0})JSON"));
  const CollectiveArgs* args = trace.collective(trace.events.at(0));
  ASSERT_NE(args, nullptr);
  EXPECT_EQ(args->in_nelems, 64);
  EXPECT_EQ(args->out_nelems, 16);
  EXPECT_EQ(args->group_size, 4);
  EXPECT_EQ(trace.strings.view(args->dtype), "BFloat16");
  EXPECT_EQ(trace.events.at(0).correlation, 99U);
  EXPECT_EQ(collective_kind(trace, trace.events.at(0)), CollectiveKind::kReduceScatter);
}

TEST(KinetoReaderTest, CountsWhatItLeavesOut) {
  const Trace trace =
      parse(file(event(R"("ts": 1, "dur": 1)") + "," + event(R"("dur": 1)") + "," +
                 event(R"("ts": "soon", "dur": 1)") + "," + event(R"("ts": 1e30, "dur": 1)") + "," +
                 event(R"("ts": 4, "dur": -1)") + "," + event(R"("ts": 4, "dur": -2)") + "," +
                 event(R"("ts": 4)") + R"(, 17, null, "x", {"ph": "Q", "ts": 1},
                                 {"ph":"i","cat":"shardlens","name":"?","pid":0,"tid":0,"ts":3,"args":{"op":"sing"}})"));
  EXPECT_EQ(trace.events.size(), 3U);
  EXPECT_EQ(count_of(trace, "without 'ts'"), 1);
  EXPECT_EQ(count_of(trace, "'ts' or 'dur' is not a number"), 2);
  EXPECT_EQ(count_of(trace, "negative duration"), 2);
  EXPECT_EQ(count_of(trace, "without 'dur'"), 1);
  EXPECT_EQ(count_of(trace, "not objects"), 3);
  EXPECT_EQ(count_of(trace, "phase"), 1);
  EXPECT_EQ(count_of(trace, "shardlens instants"), 1);
}

TEST(KinetoReaderTest, NamesWhereBrokenJsonIs) {
  const std::string good =
      file(event(R"("ts": 1, "dur": 1)") + "," + event(R"("ts": 2, "dur": 1)"));
  EXPECT_THAT(message_of(""), HasSubstr("empty"));
  EXPECT_THAT(message_of("   "), HasSubstr("t.json"));
  EXPECT_THAT(message_of("hello"), HasSubstr("t.json"));
  EXPECT_THAT(message_of("17"), HasSubstr("not a trace"));
  EXPECT_THAT(message_of("{}"), HasSubstr("traceEvents"));
  EXPECT_THAT(message_of(R"({"traceEvents": 5})"), HasSubstr("not a list"));
  EXPECT_THAT(message_of(good.substr(0, good.size() - 20)),
              HasSubstr("at byte " + std::to_string(good.size() - 20)));
  EXPECT_THAT(message_of(good + "}"), HasSubstr("at byte " + std::to_string(good.size())));
  std::string comma = good;
  comma.replace(comma.find("\"ph\""), 5, "\"ph\" ");
  EXPECT_THAT(message_of(comma), HasSubstr("at byte "));
  std::string not_utf8 = good;
  const size_t at = not_utf8.find("\"k\"") + 1;
  not_utf8[at] = '\xff';
  EXPECT_THAT(message_of(not_utf8), HasSubstr("at byte " + std::to_string(at) + ": not UTF-8"));
}

// Every cut of a file is refused or is a trace; none crashes, also under sanitizers.
TEST(KinetoReaderTest, EveryCutAndFlippedByteGivesATraceOrAMessage) {
  const std::string good =
      R"({"schemaVersion": 1, "distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}, "baseTimeNanoseconds": 5,
      "shardlens": {"units": ["", "a"]}, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a\"\u0041", "pid": 1, "tid": "x", "ts": 1.5,
      "dur": 2, "args": {"Input Dims": [[1, 2], []], "correlation": 4}}, {"ph": "i", "cat": "shardlens", "name": "use_full", "pid": 1,
      "tid": 1, "ts": 3, "args": {"seq": 1, "op": "use_full", "unit": "a", "stream": "compute", "cause": "own", "axis": "none"}}], "traceName": "n"})";
  ASSERT_EQ(parse(good).events.size(), 2U);
  const auto survive = [](const std::string& text) {
    for (const bool keep : {false, true}) {
      try {
        (void)parse_kineto(text, "t.json", {.keep_args = keep});
      } catch (const InputError&) {
      }
    }
  };
  for (size_t length = 0; length < good.size(); ++length) {
    survive(good.substr(0, length));
  }
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    const size_t changes = 1 + random() % 3;
    for (size_t i = 0; i < changes; ++i) {
      constexpr std::string_view kInteresting = "{}[]\",:\\0-e.\xff ";
      text[random() % text.size()] = random() % 2 == 0
                                         ? kInteresting[random() % kInteresting.size()]
                                         : static_cast<char>(random());
    }
    survive(text);
  }
}

TEST(KinetoReaderTest, DeepNestingIsSkippedOrRefused) {
  const std::string deep(100000, '[');
  EXPECT_NE(message_of(deep), "");
  EXPECT_NE(message_of(R"({"x": )" + deep + std::string(100000, ']') + R"(, "traceEvents": [)"),
            "");
  const Trace trace = parse(file(event(R"("ts": 1, "dur": 1, "args": {"x": )" +
                                       std::string(500, '[') + std::string(500, ']') + "}")));
  EXPECT_EQ(trace.events.size(), 1U);
}

TEST(KinetoReaderTest, KeepsOneFlowOfLaunchesIfFlowsAreNotWanted) {
  const auto flow = [](const char* phase, const char* category, int id) {
    return fmt::format(
        R"({{"ph": "{}", "cat": "{}", "name": "{}", "pid": 0, "tid": 7, "ts": {}, "id": {}, "bp": "e"}})",
        phase, category, category, id, id);
  };
  const std::string json = file(fmt::format(
      "{}", fmt::join(std::vector<std::string>{event(R"("ts": 1, "dur": 1)"), flow("s", "ac2g", 1),
                                               flow("f", "ac2g", 1), flow("s", "fwdbwd", 2),
                                               flow("s", "own", 3), event(R"("ts": 4, "dur": 2)"),
                                               flow("f", "fwdbwd", 2), flow("f", "own", 3)},
                      ", ")));
  EXPECT_EQ(parse(json).events.size(), 8U);
  const Trace trace = parse_kineto(json, "t.json", {.keep_flows = false});
  std::vector<std::string> names;
  for (const Event& each : trace.events) {
    names.emplace_back(trace.name(each));
  }
  EXPECT_THAT(names, testing::ElementsAre("k", "ac2g", "own", "k", "own"));
}

class CompressedFileTest : public testing::Test {
 protected:
  CompressedFileTest() {
    std::string name = (std::filesystem::temp_directory_path() / "shardlens-gz-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    for (int i = 0; i < 20000; ++i) {
      text_ += (i == 0 ? "" : ",") + event("\"ts\": " + std::to_string(i) + ", \"dur\": 1");
    }
    text_ = file(text_);
  }
  ~CompressedFileTest() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
    return directory_ / name;
  }
  std::string message(const std::filesystem::path& path) {
    try {
      (void)read_kineto(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
  std::filesystem::path directory_;
  std::string text_;
};

TEST_F(CompressedFileTest, ReadsGzipZstdAndPlainByTheirFirstBytes) {
  std::string zstd(ZSTD_compressBound(text_.size()), '\0');
  zstd.resize(ZSTD_compress(zstd.data(), zstd.size(), text_.data(), text_.size(), 3));
  EXPECT_EQ(read_kineto(write("a.json", text_)).events.size(), 20000U);
  EXPECT_EQ(read_kineto(write("a.json.gz", gzip(text_))).events.size(), 20000U);
  EXPECT_EQ(read_kineto(write("a.json.zst", zstd)).events.size(), 20000U);
  EXPECT_EQ(read_kineto(write("b.json", gzip(text_))).events.size(), 20000U);
  const size_t half = text_.size() / 2;
  const std::string members = gzip(text_.substr(0, half)) + gzip(text_.substr(half));
  EXPECT_EQ(read_kineto(write("members.json.gz", members)).events.size(), 20000U);
  EXPECT_THAT(message(write("cut.json.zst", zstd.substr(0, zstd.size() / 2))),
              HasSubstr("cut off"));
  zstd[zstd.size() / 2] ^= 0x55;
  EXPECT_NE(message(write("damaged.json.zst", zstd)), "");
}

TEST_F(CompressedFileTest, SaysThatACompressedFileIsCutOrDamaged) {
  std::string bytes = gzip(text_);
  EXPECT_THAT(message(write("cut.json.gz", bytes.substr(0, bytes.size() / 2))),
              HasSubstr("cut off"));
  EXPECT_THAT(message(write("tail.json.gz", bytes.substr(0, bytes.size() - 4))),
              HasSubstr("cut off"));
  EXPECT_THAT(message(write("empty.json.gz", gzip(""))), HasSubstr("the file is empty"));
  EXPECT_THAT(message(write("short.json.gz", bytes.substr(0, 6))), HasSubstr("cut off"));
  bytes[bytes.size() - 6] ^= 1;  // checksum
  EXPECT_THAT(message(write("damaged.json.gz", bytes)), HasSubstr("damaged gzip data"));
}

TEST_F(CompressedFileTest, SaysWhatIsWrongWithAPath) {
  EXPECT_THAT(message(directory_ / "none.json"), HasSubstr("no such file"));
  EXPECT_THAT(message(directory_), HasSubstr("is a directory"));
  EXPECT_THAT(message(write("empty.json", "")), HasSubstr("empty"));
}

}  // namespace
}  // namespace shardlens::trace
