#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/error.h"
#include "core/plan/resolved_plan.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"

namespace shardlens::trace {
namespace {

// The contents of a trace with ids replaced by what they refer to, so that two traces compare by
// content.
std::vector<std::string> contents(const Trace& trace) {
  std::vector<std::string> lines;
  const auto text = [&](StringId id) { return std::string(trace.strings.view(id)); };
  const auto unit = [&](UnitId id) {
    return id == kNoUnit ? std::string("-") : "'" + trace.units.at(id) + "'";
  };
  for (const Event& e : trace.events) {
    const Track& t = trace.tracks.at(e.track);
    std::string line =
        std::string(trace.category(e)) + "|" + std::string(trace.name(e)) + "|" +
        std::to_string(e.start) + "+" + std::to_string(e.duration) + "|" +
        std::to_string(static_cast<int>(e.phase)) + "|" + std::to_string(e.correlation) + "|" +
        (t.pid_is_text ? "s" + text(t.pid_text) : std::to_string(t.pid)) + "/" +
        (t.tid_is_text ? "s" + text(t.tid_text) : std::to_string(t.tid)) + "|" + text(t.name);
    if (const CollectiveArgs* c = trace.collective(e)) {
      line += "|" + text(c->collective) + "," + text(c->dtype) + "," + text(c->group) + "," +
              text(c->group_description) + "," + text(c->group_ranks) + "," + unit(c->unit) + "," +
              std::to_string(c->group_size) + "," + std::to_string(c->action) + "," +
              std::to_string(c->in_nelems) + "," + std::to_string(c->out_nelems) + "," +
              std::to_string(c->sequence) + "," + std::to_string(c->issued) + "," +
              std::to_string(static_cast<int>(c->emulated));
    }
    if (const ActionArgs* a = trace.action(e)) {
      line += "|" + std::to_string(a->seq) + "," + std::to_string(a->hook_seq) + "," +
              std::string(schedule::name_of(a->action.op)) + "," +
              std::string(schedule::name_of(a->action.stream)) + "," +
              std::string(trace.group_name(a->action.group)) + "," +
              std::string(schedule::name_of(a->action.cause)) + "," + unit(a->action.unit) + "," +
              std::string(schedule::name_of(a->action.buffer.kind)) + unit(a->action.buffer.unit) +
              std::to_string(a->action.buffer.generation) + "," + std::to_string(a->action.event);
    }
    if (const HookArgs* h = trace.hook(e)) {
      line += "|" + std::to_string(h->seq) + "," + std::string(shardlens::name_of(h->hook.hook)) +
              "," + unit(h->hook.unit) + "," + std::to_string(h->hook.invocation) +
              std::to_string(static_cast<int>(h->hook.grad_mode)) +
              std::to_string(static_cast<int>(h->hook.recompute)) +
              std::to_string(static_cast<int>(h->hook.grads));
    }
    if (!trace.args_json(e).empty()) {
      line += "|" + std::string(trace.args_json(e));
    }
    lines.push_back(line);
  }
  return lines;
}

Trace sample() {
  Trace trace;
  trace.metadata.rank = 1;
  trace.metadata.world_size = 2;
  trace.metadata.backend = "gloo";
  trace.metadata.base_time = 1'795'000'000'000'000'000;
  trace.metadata.groups = {{"shard", "shard axis", "cpu:gloo", {0, 1}, 2}};
  trace.groups = {"shard", "replicate"};
  trace.metadata.trace_name = "rank1";
  trace.metadata.other["record_shapes"] = "1";
  trace.metadata.other_distributed["nccl_version"] = "\"2.28.9\"";
  trace.units = {"", "layers.0", "layers.1 \"quoted\"\n"};
  trace.process(77).name = "shardlens-worker";
  trace.process(77).sort_index = 3;
  const uint32_t main = trace.track(77, 77), comm = trace.track(77, 1001);
  trace.tracks[comm].name = trace.strings.intern("communicator shard");
  trace.tracks[comm].sort_index = 5;
  const Nanoseconds t = trace.metadata.base_time + 123'456'789;
  trace.add_complete(Category::kUserAnnotation, "ProfilerStep#4", main, t, t + 1'000'001);
  trace.set_args(trace.add_complete(Category::kCpuOp, "aten::mm", main, t + 1, t + 2),
                 R"({"Input Dims": [[2, 3], []]})");
  trace.add_complete(Category::kCpuOp, "before the base", main, trace.metadata.base_time - 1500, t);
  CollectiveArgs c;
  c.collective = trace.strings.intern("_allgather_base");
  c.dtype = trace.strings.intern("BFloat16");
  c.group = trace.strings.intern("shard");
  c.group_ranks = trace.strings.intern("[0, 1]");
  c.unit = 2;
  c.group_size = 2;
  c.action = 17;
  c.in_nelems = 100;
  c.out_nelems = 200;
  c.sequence = 0;
  c.issued = t - 5;
  c.emulated = true;
  trace.add_collective("gloo:all_gather", comm, t + 10, t + 500, c);
  ActionArgs a;
  a.seq = 17;
  a.hook_seq = 3;
  a.action.op = schedule::Op::kAllGather;
  a.action.stream = schedule::Stream::kAllGather;
  a.action.group = plan::kShardGroup;
  a.action.cause = schedule::Cause::kForwardPrefetch;
  a.action.unit = 2;
  a.action.buffer = {schedule::BufferKind::kUnsharded, 2, 9};
  a.action.event = 0;
  trace.add_action(main, t - 5, a);
  ActionArgs bare;
  bare.seq = 18;
  bare.action.op = schedule::Op::kUseFull;
  trace.add_action(main, t, bare);
  HookArgs h;
  h.seq = 3;
  h.hook = {Hook::kGradsReady, 0, 2, false, true, Grads::kSome};
  trace.add_hook(main, t - 6, h);
  return trace;
}

class KinetoRoundTripTest : public testing::Test {
 protected:
  KinetoRoundTripTest() {
    std::string name = (std::filesystem::temp_directory_path() / "shardlens-trace-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~KinetoRoundTripTest() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

void expect_equal(const Trace& read, const Trace& written) {
  EXPECT_EQ(contents(read), contents(written));
  EXPECT_EQ(read.units, written.units);
  EXPECT_EQ(read.metadata.rank, written.metadata.rank);
  EXPECT_EQ(read.metadata.world_size, written.metadata.world_size);
  EXPECT_EQ(read.metadata.backend, written.metadata.backend);
  EXPECT_EQ(read.metadata.groups, written.metadata.groups);
  EXPECT_EQ(read.metadata.base_time, written.metadata.base_time);
  EXPECT_EQ(read.metadata.trace_name, written.metadata.trace_name);
  EXPECT_EQ(read.metadata.other, written.metadata.other);
  EXPECT_EQ(read.metadata.other_distributed, written.metadata.other_distributed);
  EXPECT_EQ(read.processes.at(0).name, written.processes.at(0).name);
  EXPECT_EQ(read.processes.at(0).sort_index, written.processes.at(0).sort_index);
  EXPECT_TRUE(read.diagnostics.empty());
}

TEST_F(KinetoRoundTripTest, WhatIsWrittenReadsBackEqual) {
  const Trace trace = sample();
  for (const char* name : {"rank1.pt.trace.json", "rank1.pt.trace.json.gz"}) {
    write_kineto(trace, directory_ / name);
    expect_equal(read_kineto(directory_ / name, {.keep_args = true}), trace);
  }
}

TEST_F(KinetoRoundTripTest, ArgumentsThatAreNotKeptLeaveTheRestEqual) {
  Trace trace = sample();
  const Trace read = parse_kineto(to_kineto_json(trace), "t.json");
  for (Event& e : trace.events) {
    e.detail_kind = e.detail_kind == ArgsKind::kText ? ArgsKind::kNone : e.detail_kind;
  }
  EXPECT_EQ(contents(read), contents(trace));
}

TEST_F(KinetoRoundTripTest, LeavesNoTemporaryFile) {
  write_kineto(sample(), directory_ / "a.json");
  const auto entries = std::distance(std::filesystem::directory_iterator(directory_), {});
  EXPECT_EQ(entries, 1);
}

TEST_F(KinetoRoundTripTest, RefusesANameOfAnotherKind) {
  EXPECT_THROW(write_kineto(sample(), directory_ / "a.txt"), UsageError);
}

// Checked with nlohmann::json instead of our own parser.
TEST_F(KinetoRoundTripTest, IsKinetoJson) {
  const auto json = nlohmann::json::parse(to_kineto_json(sample()));
  EXPECT_EQ(json.at("schemaVersion"), 1);
  EXPECT_EQ(json.at("displayTimeUnit"), "ms");
  EXPECT_EQ(json.at("baseTimeNanoseconds"), 1'795'000'000'000'000'000);
  EXPECT_EQ(json.at("distributedInfo").at("backend"), "gloo");
  EXPECT_EQ(json.at("distributedInfo").at("rank"), 1);
  EXPECT_EQ(json.at("distributedInfo").at("world_size"), 2);
  EXPECT_EQ(json.at("distributedInfo").at("pg_config").at(0).at("pg_name"), "shard");
  std::vector<nlohmann::json> collectives, names;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name") {
      names.push_back(event);
    }
    if (event.value("cat", "") == "communication") {
      collectives.push_back(event);
    }
  }
  ASSERT_EQ(names.size(), 1U);
  EXPECT_EQ(names[0].at("args").at("name"), "communicator shard");
  ASSERT_EQ(collectives.size(), 1U);
  EXPECT_EQ(collectives[0].at("args").at("Collective name"), "_allgather_base");
  EXPECT_EQ(collectives[0].at("args").at("In msg nelems"), 100);
  EXPECT_EQ(collectives[0].at("args").at("Out msg nelems"), 200);
  EXPECT_EQ(collectives[0].at("args").at("Group size"), 2);
  EXPECT_EQ(collectives[0].at("args").at("Process Group Ranks"), "[0, 1]");
  EXPECT_EQ(collectives[0].at("args").at("dtype"), "BFloat16");
}

TEST_F(KinetoRoundTripTest, TimesHaveThreeDecimals) {
  const std::string json = to_kineto_json(sample());
  EXPECT_THAT(json, testing::HasSubstr("\"ts\": 123456.789, \"dur\": 1000.001"));
  EXPECT_THAT(json, testing::HasSubstr("\"ts\": -1.500,"));
}

TEST_F(KinetoRoundTripTest, NamesThatAreNoUtf8StayReadable) {
  Trace trace;
  trace.metadata.rank = 0;
  trace.add_complete(Category::kCpuOp, "bad \xff name", trace.track(1, 1), 0, 1);
  const Trace read = parse_kineto(to_kineto_json(trace), "t.json");
  ASSERT_EQ(read.events.size(), 1U);
  EXPECT_EQ(read.name(read.events[0]), "bad \xef\xbf\xbd name");
}

}  // namespace
}  // namespace shardlens::trace
