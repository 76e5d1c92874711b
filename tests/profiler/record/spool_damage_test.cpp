#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "profiler/trace/model/latest_time.h"
#include "profiler/trace/spool/spool_format.h"
#include "profiler/trace/spool/spool_trace.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using trace::parse_spool;
using trace::Spool;

std::string recorded_bytes(int64_t steps) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  recorder.units(unit_names());
  uint32_t seq = 0;
  for (int64_t step = 0; step < steps; ++step) {
    record_step(recorder, step, seq);
  }
  recorder.finish();
  std::ifstream in(recorder.path(), std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

TEST(SpoolDamageTest, TakesEveryWholeRecordWhereverTheFileEnds) {
  const std::string bytes = recorded_bytes(2);
  const Spool whole = parse_spool(bytes, "whole");
  ASSERT_TRUE(whole.ended);
  size_t before = 0;
  for (size_t length = 0; length <= bytes.size(); ++length) {
    if (length < trace::kSpoolRecordBytes) {
      EXPECT_THROW((void)parse_spool(bytes.substr(0, length), "cut"), InputError) << length;
      continue;
    }
    const Spool cut = parse_spool(bytes.substr(0, length), "cut");
    EXPECT_EQ(cut.truncated, static_cast<Bytes>(length % trace::kSpoolRecordBytes));
    EXPECT_EQ(cut.damaged, 0) << length;
    EXPECT_EQ(cut.ended, length == bytes.size());
    ASSERT_LE(cut.records.size(), whole.records.size());
    EXPECT_GE(cut.records.size(), before);
    before = cut.records.size();
    if (!cut.records.empty()) {
      EXPECT_EQ(std::memcmp(cut.records.data(), whole.records.data(),
                            cut.records.size() * sizeof(trace::SpoolRecord)),
                0);
    }
  }
  EXPECT_EQ(before, whole.records.size());
}

TEST(SpoolDamageTest, NoticesEveryFlippedByte) {
  const std::string bytes = recorded_bytes(1);
  const Spool whole = parse_spool(bytes, "whole");
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ flip);
      if (at < trace::kSpoolRecordBytes) {
        EXPECT_THROW((void)parse_spool(flipped, "flipped"), InputError) << at;
        continue;
      }
      const Spool spool = parse_spool(flipped, "flipped");
      EXPECT_GE(spool.damaged, 1) << at;
      EXPECT_LE(spool.records.size(), whole.records.size()) << at;
    }
  }
}

TEST(SpoolDamageTest, NeverFailsOnNoiseBehindAHeader) {
  std::mt19937_64 random(7);
  const std::string header = recorded_bytes(1).substr(0, trace::kSpoolRecordBytes);
  for (int round = 0; round < 200; ++round) {
    std::string noise = header;
    for (size_t i = 0; i < random() % 3000; ++i) {
      noise += static_cast<char>(random());
    }
    const Spool spool = parse_spool(noise, "noise");
    EXPECT_EQ(spool.records.size(), 0U);
    EXPECT_EQ(static_cast<size_t>(spool.damaged),
              (noise.size() - header.size()) / trace::kSpoolRecordBytes);
  }
}

// Records with a valid check but invalid contents, as of a careless or hostile writer.
TEST(SpoolDamageTest, LeavesOutWhatCannotBeTrue) {
  const std::string header = recorded_bytes(1).substr(0, trace::kSpoolRecordBytes);
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    trace::SpoolRecord record;
    for (char& byte : record.bytes) {
      byte = static_cast<char>(random() % 4 == 0 ? random() : 0);
    }
    record.type = static_cast<trace::SpoolType>(random() % (trace::kSpoolTypeCount + 2));
    record.a = static_cast<uint8_t>(random() % 16);
    record.b = static_cast<uint8_t>(random() % 16);
    record.check = spool_check(record);
    std::string bytes = header;
    bytes.append(reinterpret_cast<const char*>(&record), sizeof(record));
    const Spool spool = parse_spool(bytes, "made up");
    for (const trace::SpoolRecord& kept : spool.records) {
      switch (kept.type) {
        case trace::SpoolType::kHook:
          EXPECT_LT(kept.hook.hook, kHookCount);
          break;
        case trace::SpoolType::kAction:
          EXPECT_LT(kept.action.op, schedule::kOpCount);
          break;
        case trace::SpoolType::kRange:
          EXPECT_GE(kept.range.end, kept.range.start);
          break;
        case trace::SpoolType::kOperator:
        case trace::SpoolType::kCollective:
          ADD_FAILURE() << "kept a record whose name does not exist";
          break;
        default:
          break;
      }
    }
  }
}

// Every eight bytes of every record take the largest and smallest values, and those next to the
// limit: what is kept has times whose differences and sums fit in 64 bits.
TEST(SpoolDamageTest, LeavesOutTimesThatCannotBe) {
  const std::string bytes = recorded_bytes(1);
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  constexpr size_t kWord = sizeof(int64_t);
  size_t kept_limit = 0;
  for (size_t at = trace::kSpoolRecordBytes; at < bytes.size(); at += trace::kSpoolRecordBytes) {
    for (size_t word = 1; word < trace::kSpoolRecordBytes / kWord; ++word) {
      for (const int64_t value :
           {kMost, -kMost - 1, trace::kLatestTime + 1, -trace::kLatestTime - 1, trace::kLatestTime,
            -trace::kLatestTime}) {
        std::string made = bytes;
        trace::SpoolRecord record;
        std::memcpy(made.data() + at + word * kWord, &value, kWord);
        std::memcpy(&record, made.data() + at, sizeof record);
        record.check = spool_check(record);
        std::memcpy(made.data() + at, &record, sizeof record);
        const trace::Trace trace = spool_to_trace(parse_spool(made, "made up"));
        Nanoseconds sum = 0;
        for (const trace::Event& event : trace.events) {
          ASSERT_GE(event.start, -trace::kLatestTime);
          ASSERT_LE(event.start, trace::kLatestTime - event.duration);
          ASSERT_LE(event.duration, trace::kLatestTime - sum);
          sum += event.duration;
          kept_limit += event.start == -trace::kLatestTime || event.end() == trace::kLatestTime;
        }
      }
    }
  }
  EXPECT_GT(kept_limit, 0U);
}

// A spool full of device records with random fields: each is left out or becomes events.
TEST(SpoolDamageTest, DeviceRecordsOfNoiseStillMakeATrace) {
  const std::string bytes = recorded_bytes(1);
  std::mt19937_64 random(12);
  for (int round = 0; round < 50; ++round) {
    std::string made = bytes;
    for (int i = 0; i < 200; ++i) {
      trace::SpoolRecord record;
      for (char& byte : record.bytes) {
        byte = static_cast<char>(random() % 3 == 0 ? random() : 0);
      }
      const auto first = static_cast<uint64_t>(trace::SpoolType::kCollectiveCall);
      record.type =
          static_cast<trace::SpoolType>(first + random() % (trace::kSpoolTypeCount - first));
      record.check = spool_check(record);
      made.append(reinterpret_cast<const char*>(&record), sizeof(record));
    }
    const trace::Trace trace = spool_to_trace(parse_spool(made, "noise"));
    EXPECT_GE(trace.events.size(), 1U);
    for (const trace::Event& event : trace.events) {
      EXPECT_GE(event.duration, 0);
      ASSERT_LT(event.track, trace.tracks.size());
    }
    EXPECT_FALSE(to_kineto_json(trace).empty());
  }
}

// A spool of version 3 (of the fuzzers' inputs), whose actions have one of four codes.
TEST(SpoolDamageTest, ActionsOfVersion3AreReadWithTheirGroups) {
  std::ifstream in(SHARDLENS_TEST_DATA "/fuzz/spool/host", std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  std::string bytes = content.str().substr(1);  // without the fuzzer's choice
  trace::SpoolHeader header;                    // the fuzzers' inputs have no checksums
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.check = trace::spool_check(header);
  std::memcpy(bytes.data(), &header, sizeof(header));
  const std::vector<std::string> names{"none", "shard", "replicate", "sub_shard"};
  for (uint8_t code = 0; code < names.size(); ++code) {
    std::string changed = bytes;
    for (size_t at = trace::kSpoolRecordBytes; at + trace::kSpoolRecordBytes <= bytes.size();
         at += trace::kSpoolRecordBytes) {
      trace::SpoolRecord record;
      std::memcpy(&record, bytes.data() + at, sizeof(record));
      if (record.type == trace::SpoolType::kAction) {
        record.action.group = code;
      }
      record.check = trace::spool_check(record);
      std::memcpy(changed.data() + at, &record, sizeof(record));
    }
    const Spool spool = parse_spool(changed, "old");
    EXPECT_EQ(spool.header.version, 3U);
    EXPECT_EQ(spool.damaged, 0);
    const trace::Trace trace = trace::spool_to_trace(spool);
    ASSERT_EQ(trace.actions.size(), 1U);
    EXPECT_EQ(trace.group_name(trace.actions[0].action.group), names[code]);
  }
}

TEST(SpoolDamageTest, SaysWhatIsWrongWithAFileThatIsNoSpool) {
  std::string bytes = recorded_bytes(1);
  const auto message = [](const std::string& content) -> std::string {
    try {
      (void)parse_spool(content, "dir/rank0.spool");
      return "accepted";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(message("{\"traceEvents\": []}" + std::string(100, ' ')),
              testing::HasSubstr("not a spool"));
  EXPECT_THAT(message(""), testing::StartsWith("dir/rank0.spool: the file has 0 bytes"));
  bytes[8] = 9;
  EXPECT_THAT(message(bytes), testing::HasSubstr("version 9"));
  EXPECT_THROW((void)trace::read_spool("/nonexistent.spool"), InputError);
  EXPECT_THROW((void)trace::read_spool("/"), InputError);
}

}  // namespace
}  // namespace shardlens::record
