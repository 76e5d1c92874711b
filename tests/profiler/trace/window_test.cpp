#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/json/token_window.h"
#include "profiler/trace/kineto/kineto_reader.h"

namespace shardlens::trace {
namespace {

using testing::HasSubstr;

std::string event(int64_t ts, const std::string& name, const std::string& more = "") {
  return R"({"ph":"X","cat":"cpu_op","name":")" + name + R"(","pid":1,"tid":1,"ts":)" +
         std::to_string(ts) + R"(,"dur":1)" + more + "}";
}

// Names and times, which is all that these files contain.
std::string contents(const std::string& json, size_t window) {
  const Trace trace = parse_kineto(json, "t.json", {.window_bytes = window});
  std::string text;
  for (const Event& e : trace.events) {
    text += std::string(trace.name(e)) + "@" + std::to_string(e.start) + " ";
  }
  return text;
}

std::string message_of(ByteSource& source, const ReadOptions& options) {
  try {
    (void)parse_kineto(source, "t.json", options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(TokenWindowTest, EveryWindowSizeReadsTheSame) {
  // On one line, with brackets, quotes and commas in names, so that cuts fall into strings, numbers
  // and nested values.
  std::string json = R"({"schemaVersion":1,"traceEvents":[)", expected;
  for (int i = 0; i < 40; ++i) {
    const std::string name = i % 3 == 0   ? "plain"
                             : i % 3 == 1 ? R"(},{\"ph\":\"X\"},[\\)"
                                          : R"(long <template, args> {[}] name)";
    const std::string meaning = i % 3 == 1 ? R"(},{"ph":"X"},[\)" : name;
    json += (i == 0 ? "" : ",") + event(1000 + i, name, R"(,"args":{"a":[[1,2],{"b":"]"}]})");
    expected += meaning + "@" + std::to_string((1000 + i) * 1000) + " ";
  }
  json += R"(],"traceName":"n"})";
  for (size_t window = 64; window < 400; ++window) {
    ASSERT_EQ(contents(json, window), expected) << window;
  }
  std::string lines = json;
  for (size_t at = lines.find("},{\"ph\":\"X\",\"cat"); at != std::string::npos;
       at = lines.find("},{\"ph\":\"X\",\"cat", at + 3)) {
    lines.replace(at, 2, "},\n");
  }
  for (size_t window = 64; window < 400; window += 7) {
    ASSERT_EQ(contents(lines, window), expected) << window;
  }
}

TEST(TokenWindowTest, KeysStandInAnyOrder) {
  const std::string events = "[" + event(5, "a") + ",\n" + event(6, "b") + "]";
  const std::string base = R"("baseTimeNanoseconds":7000)",
                    rank = R"("distributedInfo":{"rank":4})";
  for (const std::string& json : {"{" + base + "," + rank + R"(,"traceEvents":)" + events + "}",
                                  R"({"traceEvents":)" + events + "," + rank + "," + base + "}",
                                  "{" + rank + R"(,"traceEvents":)" + events + "," + base + "}"}) {
    for (const size_t window : {size_t{64}, TokenWindow::kWindowBytes}) {
      const Trace trace = parse_kineto(json, "t.json", {.window_bytes = window});
      ASSERT_EQ(trace.events.size(), 2U);
      EXPECT_EQ(trace.events[0].start, 12000);
      EXPECT_EQ(trace.metadata.rank, 4);
    }
  }
}

TEST(TokenWindowTest, AnEventLargerThanTheWindowIsRead) {
  const std::string large(3U << 20, 'x');
  const std::string json = "[" + event(1, "a") + ",\n" +
                           event(2, "b", R"(,"args":{"text":")" + large + "\"}") + ",\n" +
                           event(3, "c") + "]";
  EXPECT_EQ(contents(json, TokenWindow::kWindowBytes), "a@1000 b@2000 c@3000 ");
  EXPECT_EQ(contents(json, 64), "a@1000 b@2000 c@3000 ");
}

// One string without an end, longer than any limit.
class Endless final : public ByteSource {
 public:
  size_t read(char* out, size_t size) override {
    const std::string_view begin = "[{\"ph\":\"";
    size_t taken = 0;
    while (taken < size && given_ < begin.size()) {
      out[taken++] = begin[given_++];
    }
    std::fill(out + taken, out + size, 'x');
    return size;
  }

 private:
  size_t given_ = 0;
};

TEST(TokenWindowTest, AnEventLargerThanTheLimitIsRefused) {
  Endless source;
  EXPECT_THAT(message_of(source, {}),
              HasSubstr("t.json at byte 1: one event or value of more than"));
}

// Bytes, then a fault.
class Failing final : public ByteSource {
 public:
  explicit Failing(std::string text) : text_(std::move(text)) {}
  size_t read(char* out, size_t size) override {
    if (text_.empty()) {
      throw InputError("disk", "gone");
    }
    const size_t taken = std::min(size, text_.size());
    std::copy_n(text_.data(), taken, out);
    text_.erase(0, taken);
    return taken;
  }

 private:
  std::string text_;
};

TEST(TokenWindowTest, AFaultOfTheSourceIsTold) {
  Failing source("[" + event(1, "a") + ",\n");
  EXPECT_EQ(message_of(source, {}), "disk: gone");
}

TEST(TokenWindowTest, ByteOffsetsCountFromTheBeginningOfTheFile) {
  std::string json = "[";
  for (int i = 0; i < 1000; ++i) {
    json += event(i, "e") + ",\n";
  }
  const size_t fault = json.size() + 8;
  json += "{\"ph\":\"X\" \"cat\":1}]";
  const auto source = source_of(json);
  EXPECT_THAT(message_of(*source, {.window_bytes = 256}),
              HasSubstr("at byte " + std::to_string(fault + 2) + ": "));
  const std::string packed = gzip(json);
  const auto inflated = open_source(packed, "t.json.gz");
  EXPECT_THAT(message_of(*inflated, {}), HasSubstr("at byte " + std::to_string(fault + 2) + ": "));
}

}  // namespace
}  // namespace shardlens::trace
