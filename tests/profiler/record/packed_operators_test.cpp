#include "profiler/record/host/packed_operators.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "profiler/trace/spool/spool_format.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

std::vector<trace::SpoolRecord> operators_in(const trace::Spool& spool) {
  std::vector<trace::SpoolRecord> found;
  for (const trace::SpoolRecord& record : spool.records) {
    EXPECT_NE(record.type, trace::SpoolType::kOperators);
    if (record.type == trace::SpoolType::kOperator) {
      found.push_back(record);
    }
  }
  return found;
}

// Operators are packed several into a record, unless their times or names are too far apart.
TEST(PackedOperatorsTest, KeepsNamesAndTimesOfOperatorsThatShareARecord) {
  struct Ran {
    uint32_t name;
    Nanoseconds start, end;
  };
  constexpr Nanoseconds kNow = 1'700'000'000'000'000'000, kMost = 0xffffffff;
  const TestDirectory directory;
  std::vector<Ran> ran;
  {
    SpoolRecorder recorder(options_in(directory.path()));
    recorder.step_begin(0);
    for (uint32_t i = 0; i <= 0x10000; ++i) {
      (void)recorder.text("op" + std::to_string(i));
    }
    ran = {{1, kNow + 5, kNow + 9},
           {2, kNow, kNow + 10},
           {3, kNow + kMost, kNow + kMost},
           {4, kNow + kMost + 1, kNow + kMost + 2},
           {5, kNow, kNow + kMost},
           {6, kNow, kNow + kMost + 1},
           {0xffff, kNow + 20, kNow + 30},
           {0x10000, kNow + 21, kNow + 29},
           {7, -100, -50},
           {8, kNow, kNow}};
    for (const Ran& each : ran) {
      recorder.op(each.name, each.start, each.end, nullptr);
    }
    recorder.op(9, kNow, kNow - 1, nullptr);  // the clock was set back
    ran.push_back({9, kNow, kNow});
    recorder.step_end();
    recorder.finish();
    EXPECT_EQ(recorder.dropped(), 0);
  }
  const trace::Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  EXPECT_EQ(spool.damaged, 0);
  const auto operators = operators_in(spool);
  ASSERT_EQ(operators.size(), ran.size());
  for (size_t i = 0; i < ran.size(); ++i) {
    EXPECT_EQ(spool.texts.at(operators[i].op.name), "op" + std::to_string(ran[i].name)) << i;
    EXPECT_EQ(operators[i].op.start, ran[i].start) << i;
    EXPECT_EQ(operators[i].op.end, ran[i].end) << i;
    EXPECT_EQ(operators[i].op.thread, static_cast<uint32_t>(::getpid())) << i;
    EXPECT_EQ(operators[i].a, 0) << i;
  }
}

// A record of several operators counts as so many.
TEST(PackedOperatorsTest, CountsEachOperatorBeyondTheBudget) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.budget = 64 * 20;
  int64_t kept = 0, dropped = 0;
  {
    SpoolRecorder recorder(options);
    recorder.step_begin(0);
    const uint32_t name = recorder.text("aten::add");
    const int64_t before = recorder.kept();
    for (int i = 0; i < 400; ++i) {
      recorder.op(name, 1000 + i, 2000 + i, nullptr);
    }
    kept = recorder.kept() - before;
    dropped = recorder.dropped();
    recorder.finish();
  }
  EXPECT_EQ(kept + dropped, 400);
  EXPECT_GT(kept, 16);
  EXPECT_LE(kept, 80);  // 20 records of four
  const trace::Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  EXPECT_EQ(static_cast<int64_t>(operators_in(spool).size()), kept);
  EXPECT_EQ(spool.dropped, dropped);
}

}  // namespace
}  // namespace shardlens::record
