#include "core/dist/communicator.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "core/base/error.h"
#include "core/dist/backend.h"
#include "tests/support/ranks.h"

namespace shardlens::dist {
namespace {

class Collected : public NullRecorder {
 public:
  void collective(const CollectiveRecord& record) override { records.push_back(record); }
  std::vector<CollectiveRecord> records;
};

at::Tensor filled(int64_t n, double value) {
  return at::full({n}, value, at::kFloat);
}

TEST(CommunicatorTest, CollectivesOverThreeGlooRanksGiveTheirDefinition) {
  test::run_ranks(3, [](World& world) {
    Communicator& group = world.world();
    const double rank = world.rank();
    const at::Tensor gathered = at::empty({6}, at::kFloat);
    const at::Tensor reduced = at::empty({2}, at::kFloat);
    const at::Tensor summed = filled(4, rank + 1);
    const at::Tensor largest = filled(1, rank);
    group.wait(group.all_gather(gathered, filled(2, rank), {}));
    // Rank r contributes r to chunk 0, 10 + r to chunk 1, 20 + r to chunk 2.
    at::Tensor input = at::arange(3, at::kFloat).mul(10).repeat_interleave(2).add(rank);
    group.wait(group.reduce_scatter(reduced, input, ReduceOp::kAverage, {}));
    group.wait(group.all_reduce(summed, ReduceOp::kSum, {}));
    group.wait(group.all_reduce(largest, ReduceOp::kMax, {}));
    group.wait(group.barrier({}));
    EXPECT_TRUE(at::equal(gathered, at::arange(3, at::kFloat).repeat_interleave(2)));
    EXPECT_TRUE(at::equal(reduced, filled(2, 10 * rank + 1)));  // mean of 0, 1, 2
    EXPECT_TRUE(at::equal(summed, filled(4, 6)));
    EXPECT_TRUE(at::equal(largest, filled(1, 2)));
  });
}

// Small integers, so that sums are exact in all types. Element i of rank r: i % 5 + r.
void expect_definitions(Communicator& group, int64_t n, at::ScalarType type) {
  const int ranks = group.size(), rank = group.rank();
  SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(n) + " elements");
  const at::Tensor base = at::arange(n * ranks, at::kLong).remainder(5).to(type);
  const at::Tensor sum = base * ranks + ranks * (ranks - 1) / 2;
  const at::Tensor mine = base + rank;
  const at::Tensor own = mine.narrow(0, rank * n, n), sum_of_own = sum.narrow(0, rank * n, n);
  const at::Tensor gathered = at::zeros({n * ranks}, type);
  group.wait(group.all_gather(gathered, own, {}));
  EXPECT_TRUE(
      at::equal(gathered, base + at::arange(ranks, at::kLong).repeat_interleave(n).to(type)));
  const at::Tensor in_place = at::zeros({n * ranks}, type);
  const at::Tensor slice = in_place.narrow(0, rank * n, n).copy_(own);
  group.wait(group.all_gather(in_place, slice, {}));
  EXPECT_TRUE(at::equal(in_place, gathered));
  const at::Tensor reduced = at::zeros({n}, type);
  group.wait(group.reduce_scatter(reduced, mine, ReduceOp::kSum, {}));
  EXPECT_TRUE(at::equal(reduced, sum_of_own));
  group.wait(group.reduce_scatter(reduced, mine, ReduceOp::kAverage, {}));
  EXPECT_TRUE(at::equal(reduced, sum_of_own / ranks));
  const at::Tensor everywhere = mine.clone();
  group.wait(group.all_reduce(everywhere, ReduceOp::kSum, {}));
  EXPECT_TRUE(at::equal(everywhere, sum));
  everywhere.copy_(mine);
  group.wait(group.all_reduce(everywhere, ReduceOp::kAverage, {}));
  EXPECT_TRUE(at::equal(everywhere, sum / ranks));
  group.wait(group.barrier({}));
}

// From one element to several blocks; an odd number of elements too.
void expect_definitions(Communicator& group) {
  for (const int64_t n : {1, 7, 9001, 100'003}) {
    expect_definitions(group, n, at::kFloat);
    expect_definitions(group, n, at::kBFloat16);
  }
}

TEST(CommunicatorTest, CollectivesOfEverySizeGiveTheirDefinition) {
  for (const int ranks : {1, 2, 3}) {
    test::run_ranks(ranks, [](World& world) { expect_definitions(world.world()); });
  }
}

// The last rank's part is shorter: 2^18 bytes, the others 4 more.
TEST(CommunicatorTest, AllReducesWhatRanksCannotShareEvenly) {
  for (const int ranks : {2, 3}) {
    test::run_ranks(ranks, [&](World& world) {
      const at::Tensor base = at::arange(ranks * 65'537 - 1, at::kFloat).remainder(5);
      const at::Tensor sum = base * ranks + ranks * (ranks - 1) / 2;
      at::Tensor values = base + world.rank();
      world.world().wait(world.world().all_reduce(values, ReduceOp::kSum, {}));
      EXPECT_TRUE(at::equal(values, sum));
    });
  }
}

TEST(CommunicatorTest, RanksThatDoNotReadEachOthersMemorySendMessages) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto run = [&](int rank) {
    Communicator::Options options;
    options.rank = rank;
    options.size = 2;
    options.timeout = std::chrono::seconds(20);
    Communicator group(
        make_gloo_backend(store, rank, 2, options.timeout, "127.0.0.1", /*reads_peers=*/false),
        options);
    EXPECT_FALSE(group.gathers_parts());
    expect_definitions(group);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

TEST(CommunicatorTest, GathersPartsOfEachRankSideBySide) {
  for (const int ranks : {2, 3}) {
    for (const int64_t scale : {1, 40'000}) {
      test::run_ranks(ranks, [&](World& world) {
        Communicator& group = world.world();
        if (!group.gathers_parts()) {
          GTEST_SKIP() << "a process may not read the memory of another one here";
        }
        const std::vector<int64_t> parts{scale, 0, 2 * scale};
        const int64_t n = 3 * scale;
        const at::Tensor input = at::arange(n, at::kFloat) + 1000.0 * world.rank();
        const at::Tensor output = at::zeros({n * ranks}, at::kFloat);
        group.wait(group.all_gather_parts(output, input, parts, {}));
        // The rows are ranks: columns 0 to scale side by side, then the others.
        const at::Tensor rows = at::arange(n, at::kFloat).view({1, n}) +
                                at::arange(ranks, at::kFloat).mul(1000).view({ranks, 1});
        EXPECT_TRUE(
            at::equal(output.narrow(0, 0, scale * ranks), rows.narrow(1, 0, scale).reshape({-1})));
        EXPECT_TRUE(at::equal(output.narrow(0, scale * ranks, 2 * scale * ranks),
                              rows.narrow(1, scale, 2 * scale).reshape({-1})));
      });
    }
  }
}

TEST(CommunicatorTest, HybridMeshReducesAlongEachAxis) {
  test::run_ranks(4, [](World& world) {
    const at::Tensor along_shard = filled(1, world.rank());
    const at::Tensor along_replicate = filled(1, world.rank());
    const mesh::Mesh mesh({{"replicate", 2}, {"shard", 2}});
    Communicator& shard = world.of(mesh.group("shard"));
    Communicator& replicate = world.of(mesh.group("replicate"));
    shard.wait(shard.all_reduce(along_shard, ReduceOp::kSum, {}));
    replicate.wait(replicate.all_reduce(along_replicate, ReduceOp::kSum, {}));
    EXPECT_EQ(along_shard.item<float>(), world.rank() < 2 ? 0 + 1 : 2 + 3);
    EXPECT_EQ(along_replicate.item<float>(), world.rank() % 2 == 0 ? 0 + 2 : 1 + 3);
  });
}

TEST(CommunicatorTest, RequestsRunInIssueOrderAndStampTheirTimes) {
  WorldOptions options;
  options.backend = BackendKind::kEmulated;
  options.world_size = 8;
  options.rank = 3;
  class Fixed : public CollectiveTimer {
   public:
    [[nodiscard]] Nanoseconds duration(CollectiveKind /*kind*/,
                                       int ranks,
                                       Bytes larger_message) const override {
      EXPECT_EQ(ranks, 8);
      bytes = larger_message;
      return 5'000'000;
    }
    mutable std::atomic<Bytes> bytes = 0;
  };
  const auto timer = std::make_shared<Fixed>();
  options.timer = timer;
  Collected recorder;
  options.recorder = &recorder;
  const auto world = World::join(options);
  std::vector<int> order;
  const at::Tensor gathered = at::empty({16}, at::kFloat);
  const auto first = world->world().all_gather(gathered, filled(2, 7), {4, "block", 11});
  const auto local = world->world().run([&] { order.push_back(1); }, {});
  const at::Tensor scattered = at::empty({2}, at::kFloat);
  const auto second = world->world().reduce_scatter(scattered, at::arange(16, at::kFloat),
                                                    ReduceOp::kAverage, {4, "block"});
  world->world().wait(second);
  EXPECT_TRUE(first->done());
  EXPECT_TRUE(local->done());
  EXPECT_EQ(order, std::vector<int>{1});
  EXPECT_TRUE(at::equal(gathered, filled(16, 7)));
  EXPECT_TRUE(at::equal(scattered, at::arange(6, 8, at::kFloat)));  // the rank's own chunk
  EXPECT_EQ(timer->bytes, 16 * 4);  // the larger message: the reduce-scatter's input
  ASSERT_EQ(recorder.records.size(), 2U);
  const CollectiveRecord& a = recorder.records[0];
  const CollectiveRecord& b = recorder.records[1];
  EXPECT_EQ(a.kind, CollectiveKind::kAllGather);
  EXPECT_EQ(a.unit, 4U);
  EXPECT_EQ(a.action, 11U);
  EXPECT_EQ(a.in_nelems, 2);
  EXPECT_EQ(a.out_nelems, 16);
  EXPECT_EQ(a.sequence, 0U);
  EXPECT_EQ(b.sequence, 1U);
  EXPECT_TRUE(a.emulated);
  EXPECT_LE(a.issued, a.start);
  EXPECT_GE(a.end - a.start, 5'000'000);
  EXPECT_GE(b.start, a.end);
}

TEST(CommunicatorTest, RecordsTheDtypeOfWhatWasSent) {
  WorldOptions options;
  options.backend = BackendKind::kEmulated;
  options.world_size = 2;
  Collected recorder;
  options.recorder = &recorder;
  const auto world = World::join(options);
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kShort, at::kChar, at::kBool}) {
    const at::Tensor values = at::zeros({4}, type);
    world->world().wait(world->world().all_reduce(values, ReduceOp::kSum, {}));
  }
  EXPECT_THAT(recorder.records,
              testing::ElementsAre(testing::Field(&CollectiveRecord::dtype, DType::kF32),
                                   testing::Field(&CollectiveRecord::dtype, DType::kF16),
                                   testing::Field(&CollectiveRecord::dtype, DType::kI16),
                                   testing::Field(&CollectiveRecord::dtype, DType::kI8),
                                   testing::Field(&CollectiveRecord::dtype, DType::kBool)));
}

TEST(CommunicatorTest, FailureReachesThisAndEveryLaterWait) {
  WorldOptions options;
  options.backend = BackendKind::kEmulated;
  options.world_size = 2;
  const auto world = World::join(options);
  Communicator& group = world->world();
  const auto failing =
      group.run([] { throw std::runtime_error("cable cut"); }, {3, "model.layers.3"});
  const at::Tensor tensor = filled(1, 0);
  const auto later = group.all_reduce(tensor, ReduceOp::kSum, {kNoUnit, "the loss"});
  EXPECT_THAT([&] { group.wait(failing); },
              testing::ThrowsMessage<RuntimeFault>(testing::HasSubstr("cable cut")));
  EXPECT_THAT([&] { group.wait(later); }, testing::ThrowsMessage<RuntimeFault>(testing::AllOf(
                                              testing::HasSubstr("[rank 0] all_reduce of the loss"),
                                              testing::HasSubstr("cable cut"))));
}

TEST(CommunicatorTest, DeadPeerEndsTheWait) {
  EXPECT_THAT(
      [] {
        test::run_ranks(2, [](World& world) {
          if (world.rank() == 1) {
            return;  // leaves without taking part
          }
          const at::Tensor tensor = filled(1, 0);
          world.world().wait(
              world.world().all_reduce(tensor, ReduceOp::kSum, {2, "model.layers.2"}));
        });
      },
      testing::ThrowsMessage<RuntimeFault>(testing::HasSubstr(
          "[rank 0] all_reduce of unit 'model.layers.2' over group 'world' failed")));
}

TEST(CommunicatorTest, WaitThatTakesTooLongNamesWhatItWaitedFor) {
  WorldOptions options;
  options.backend = BackendKind::kEmulated;
  options.world_size = 2;
  options.timeout = std::chrono::milliseconds(50);
  const auto world = World::join(options);
  std::atomic<bool> release = false;
  const auto stuck = world->world().run(
      [&] {
        while (!release) {
          std::this_thread::yield();
        }
      },
      {1, "model.layers.0"});
  EXPECT_THAT([&] { world->world().wait(stuck); },
              testing::ThrowsMessage<RuntimeFault>(
                  testing::HasSubstr("unit 'model.layers.0' over group 'world' did not finish")));
  release = true;
}

}  // namespace
}  // namespace shardlens::dist
