// Exports of Nsight Systems: names, ranks, sizes of NCCL's messages, and files that are damaged or
// no exports. tests/tools/check_nsight.py compares whole analyses.
#include "profiler/trace/nsight/nsight_reader.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include "core/base/error.h"
#include "profiler/trace/kineto/foreign_files.h"
#include "profiler/trace/nsight/nsight_names.h"
#include "profiler/trace/run.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::trace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Process 7, threads 70 and 71: 7 · 2^24 + thread.
constexpr const char* kExport = R"(
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
INSERT INTO StringIds VALUES (1, 'ncclDevKernel_AllGather_RING_LL'), (2, 'gemm<float>'),
  (3, 'cudaLaunchKernel_ptsz_v7000'), (4, 'ncclAllGather'), (5, 'cuLaunchKernelEx');
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1000000);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,
  globalTid INTEGER, textId INTEGER, domainId INTEGER, jsonText TEXT);
INSERT INTO NVTX_EVENTS VALUES
  (0, NULL, 75, 'NCCL', 117440582, NULL, 3, NULL),
  (1, 2, 59, 'ncclCommInitRank', 117440582, NULL, 3,
   '{"Communicator ID": 9, "No. of ranks": 4, "Rank": 2, "CUDA device": 0}'),
  (10, 90, 59, 'step 12', 117440582, NULL, 0, NULL),
  (11, 20, 59, 'aten::mm, seq = 3, op_id = 5, sizes = [[2, 3], [3, 4]]', 117440582, NULL, 0, NULL),
  (21, 40, 59, NULL, 117440582, 4, 3, '{"Communicator ID": 9, "Message size [bytes]": 100}'),
  (50, NULL, 59, 'never popped', 117440582, NULL, 0, NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (12, 14, 117440582, 1, 3), (25, 30, 117440582, 2, 5);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
  contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
  blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
  (20, 35, 1, 1, 7, 1, 117440512, 2, 8, 1, 1, 128, 1, 1, 40),
  (40, 80, 1, 1, 20, 2, 117440512, 1, 2, 1, 1, 512, 1, 1, 96);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
  contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER,
  copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (81, 85, 1, 1, 7, 3, 117440512, 64, 1, 1, 2);
)";

class NsightReaderTest : public testing::Test {
 protected:
  fs::path write(const std::string& sql) const {
    const fs::path path = directory_.path() / "export.sqlite";
    fs::remove(path);
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    char* message = nullptr;
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, &message), SQLITE_OK)
        << message;
    sqlite3_close(database);
    return path;
  }
  static const Event* named(const Trace& trace, std::string_view name) {
    for (const Event& event : trace.events) {
      if (trace.name(event) == name) {
        return &event;
      }
    }
    return nullptr;
  }
  test::TemporaryDirectory directory_;
};

TEST_F(NsightReaderTest, RowsAreKinetosEvents) {
  const std::vector<Trace> traces = read_nsight(write(kExport));
  ASSERT_EQ(traces.size(), 1U);
  const Trace& trace = traces[0];
  EXPECT_EQ(trace.metadata.rank, 2);
  EXPECT_EQ(trace.metadata.world_size, 4);

  const Event* step = named(trace, "ProfilerStep#12");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->start, 1'000'010);
  EXPECT_EQ(step->duration, 80);
  EXPECT_EQ(step->category, Category::kUserAnnotation);

  const Event* matmul = named(trace, "aten::mm");
  ASSERT_NE(matmul, nullptr);
  EXPECT_EQ(matmul->category, Category::kCpuOp);
  EXPECT_EQ(trace.args_json(*matmul), R"({"Input Dims": [[2, 3], [3, 4]]})");

  const Event* launch = named(trace, "cudaLaunchKernel");
  ASSERT_NE(launch, nullptr);
  EXPECT_EQ(launch->category, Category::kCudaRuntime);
  EXPECT_EQ(launch->correlation, 1U);
  EXPECT_EQ(trace.tracks[launch->track].pid, 7);
  EXPECT_EQ(trace.tracks[launch->track].tid, 70);
  const Event* driver = named(trace, "cuLaunchKernelEx");
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(driver->category, Category::kCudaDriver);

  const Event* gemm = named(trace, "gemm<float>");
  ASSERT_NE(gemm, nullptr);
  EXPECT_EQ(gemm->category, Category::kKernel);
  EXPECT_EQ(gemm->end(), 1'000'035);
  ASSERT_NE(trace.device(*gemm), nullptr);
  EXPECT_EQ(trace.device(*gemm)->stream, 7);
  EXPECT_EQ(trace.launches.at(trace.device(*gemm)->launch).block[0], 128);

  const Event* copy = named(trace, "Memcpy HtoD (Pinned -> Device)");
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(trace.device(*copy)->bytes, 64);
  ASSERT_EQ(trace.diagnostics.size(), 1U) << "the range that was never popped";
}

// NCCL states the 100 bytes that each of the four ranks gives.
TEST_F(NsightReaderTest, AKernelHasTheSizesOfTheCallThatLaunchedIt) {
  const std::vector<Trace> traces = read_nsight(write(kExport));
  const Event* gather = named(traces[0], "ncclDevKernel_AllGather_RING_LL");
  ASSERT_NE(gather, nullptr);
  const CollectiveArgs* args = traces[0].collective(*gather);
  ASSERT_NE(args, nullptr);
  EXPECT_EQ(args->in_nelems, 100);
  EXPECT_EQ(args->out_nelems, 400);
  EXPECT_EQ(args->group_size, 4);
  EXPECT_EQ(args->issued, 1'000'021);
  EXPECT_EQ(traces[0].device(*gather)->stream, 20);
}

TEST_F(NsightReaderTest, ProcessesAreRanksOfOneRun) {
  // A second process on another device, without NCCL's ranges.
  const trace::Run run = trace::Run::open(write(std::string(kExport) + R"(
      INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
        (20, 35, 0, 1, 7, 1, 134217728, 2, 8, 1, 1, 128, 1, 1, 40);)"));
  ASSERT_EQ(run.traces.size(), 2U);
  EXPECT_EQ(run.traces[0].metadata.rank, 0);
  EXPECT_EQ(run.traces[1].metadata.rank, 2);
  // In a directory an export is read if there is no other trace.
  EXPECT_EQ(trace::Run::open(directory_.path()).traces.size(), 2U);
}

TEST_F(NsightReaderTest, OtherDatabasesAreRefused) {
  EXPECT_THAT([&] { (void)read_nsight(write("CREATE TABLE t (x);")); },
              ThrowsMessage<NotATrace>(HasSubstr("an SQLite database, as rocprofv3 writes")));
  EXPECT_THAT(
      [&] {
        (void)read_nsight(
            write("CREATE TABLE StringIds (id, value); CREATE TABLE META_DATA_EXPORT (name);"));
      },
      ThrowsMessage<NotATrace>(HasSubstr("without work of a GPU")));
  // A view could run anything.
  EXPECT_THAT(
      [&] {
        (void)read_nsight(
            write("CREATE VIEW StringIds AS SELECT 1 AS id, 'x' AS value; "
                  "CREATE TABLE META_DATA_EXPORT (name);"));
      },
      ThrowsMessage<NotATrace>(HasSubstr("an SQLite database, as rocprofv3 writes")));
}

TEST_F(NsightReaderTest, TimesThatDoNotFitAreCounted) {
  const std::vector<Trace> traces = read_nsight(write(std::string(kExport) + R"(
      UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 5 WHERE streamId = 7;
      UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET end = 9223372036854775807;)"));
  EXPECT_EQ(named(traces[0], "gemm<float>"), nullptr);
  ASSERT_EQ(traces[0].diagnostics.size(), 1U);
  EXPECT_EQ(traces[0].diagnostics[0].count, 3);
}

// Any damage is an error or another trace, never a crash.
TEST_F(NsightReaderTest, DamagedFilesAreErrors) {
  const fs::path path = write(kExport);
  std::ifstream in(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = whole;
    if (i % 3 == 0) {
      damaged.resize(random() % damaged.size());
    }
    for (int k = 0; k < 20 && !damaged.empty(); ++k) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    std::ofstream(path, std::ios::binary) << damaged;
    try {
      for (const Trace& trace : read_nsight(path)) {
        for (const Event& event : trace.events) {
          (void)trace.device(event);
          (void)trace.collective(event);
        }
      }
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(NsightNamesTest, StepsOperatorsAndVersions) {
  EXPECT_EQ(without_version("cudaMemcpyAsync_v3020"), "cudaMemcpyAsync");
  EXPECT_EQ(without_version("cuLaunchKernel"), "cuLaunchKernel");
  EXPECT_EQ(without_version("cuMemcpyAsync_v2"), "cuMemcpyAsync");
  EXPECT_EQ(step_of_range("iteration_7"), 7);
  EXPECT_EQ(step_of_range("ProfilerStep#3"), 3);
  EXPECT_EQ(step_of_range("train_step 0"), 0);
  EXPECT_EQ(step_of_range("step"), std::nullopt);
  EXPECT_EQ(step_of_range("step 1 of 2"), std::nullopt);
  EXPECT_EQ(step_of_range("iterative"), std::nullopt);
  EXPECT_EQ(parse_nvtx("FSDP::pre_forward (layers.0)").name, "FSDP::pre_forward (layers.0)");
  EXPECT_EQ(parse_nvtx("aten::add, seq = 1").name, "aten::add");
  EXPECT_EQ(parse_nvtx("x, sizes = [[1, 2").sizes, "");
  EXPECT_EQ(copy_name(99, 2, -1), "Memcpy Unknown (Device -> Unknown)");
}

}  // namespace
}  // namespace shardlens::trace
