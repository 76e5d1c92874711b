#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/recorder.h"
#include "core/plan/resolved_plan.h"
#include "core/schedule/action.h"
#include "profiler/record/host/clock.h"
#include "profiler/record/host/spool_recorder.h"

namespace shardlens::record {

// A directory of its own for a test, removed afterwards.
class TestDirectory {
 public:
  TestDirectory()
      : path_(std::filesystem::path(testing::TempDir()) /
              (std::string("shardlens_") +
               testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
               std::to_string(now_ns()))) {
    std::filesystem::create_directories(path_);
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline SpoolOptions options_in(const std::filesystem::path& directory) {
  SpoolOptions options;
  options.directory = directory;
  options.rank = 1;
  options.world_size = 2;
  options.backend = "gloo";
  options.groups = {{"shard", "shard axis", {0, 1}}};
  return options;
}

inline schedule::Action action_of(schedule::Op op,
                                  schedule::Stream stream,
                                  UnitId unit,
                                  schedule::EventId event = schedule::kNoEvent) {
  schedule::Action action;
  action.op = op;
  action.stream = stream;
  action.unit = unit;
  action.event = event;
  if (op == schedule::Op::kAllGather) {
    action.group = plan::kShardGroup;
    action.buffer = {schedule::BufferKind::kUnsharded, unit, 3};
  }
  return action;
}

inline CollectiveRecord all_gather_of(UnitId unit,
                                      uint32_t sequence,
                                      uint32_t action,
                                      Nanoseconds issued) {
  CollectiveRecord record;
  record.kind = CollectiveKind::kAllGather;
  record.dtype = DType::kBF16;
  record.unit = unit;
  record.sequence = sequence;
  record.action = action;
  record.group_size = 2;
  record.in_nelems = 500;
  record.out_nelems = 1000;
  record.issued = issued;
  record.start = issued + 2000;
  record.end = issued + 5000;
  record.group = "shard";
  return record;
}

inline const std::vector<std::string>& unit_names() {
  static const std::vector<std::string> names{"", "model.layers.0", "model.layers.1"};
  return names;
}

// One step as an engine would record it: per unit a hook, an all-gather, its event and the wait,
// and an operator.
inline void record_step(SpoolRecorder& recorder, int64_t step, uint32_t& seq) {
  recorder.step_begin(step);
  for (UnitId unit = 0; unit < 3; ++unit) {
    const RangeScope range(&recorder, Range::kPreForward, unit);
    recorder.hook({.hook = Hook::kPreForward, .unit = unit});
    const Nanoseconds issued = now_ns();
    const uint32_t gather = ++seq;
    recorder.action(gather,
                    action_of(schedule::Op::kAllGather, schedule::Stream::kAllGather, unit));
    const schedule::EventId event = gather;
    recorder.action(++seq,
                    action_of(schedule::Op::kRecord, schedule::Stream::kAllGather, unit, event));
    recorder.action(++seq,
                    action_of(schedule::Op::kStreamWait, schedule::Stream::kCompute, unit, event));
    recorder.collective(all_gather_of(unit, gather, gather, issued));
    InputShapes shapes;
    shapes.inputs = 2;
    shapes.ranks[0] = shapes.ranks[1] = 2;
    shapes.dims[0] = 128;
    shapes.dims[1] = shapes.dims[2] = 64;
    shapes.dims[3] = 32;
    recorder.op(recorder.text("aten::mm"), issued, issued + 10, &shapes);
  }
  recorder.step_end();
}

}  // namespace shardlens::record
