// What the ranks of a world report about each other where they diverge, and after a timeout.
#include <chrono>
#include <condition_variable>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "tests/support/ranks.h"

namespace shardlens::dist {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

void checked(WorldOptions& options) {
  options.check_ranks = true;
}

// The error message of each rank, "" for a rank that did not fail.
std::vector<std::string> failures(int world_size,
                                  const std::function<void(World&)>& body,
                                  const std::function<void(WorldOptions&)>& adjust = checked) {
  std::vector<std::string> out(static_cast<size_t>(world_size));
  test::run_ranks(
      world_size,
      [&](World& world) {
        try {
          body(world);
        } catch (const RuntimeFault& error) {
          out[static_cast<size_t>(world.rank())] = error.what();
        }
      },
      adjust);
  return out;
}

void gather(World& world, int64_t numel, const Purpose& purpose) {
  Communicator& group = world.world();
  group.wait(group.all_gather(at::zeros({numel * group.size()}), at::zeros({numel}), purpose));
}

TEST(CheckRanksTest, UnitsInAnotherOrderAreNamedWithTheirRanks) {
  const auto start = std::chrono::steady_clock::now();
  const auto said = failures(3, [](World& world) {
    gather(world, 4, {0, ""});
    const bool swapped = world.rank() == 2;
    gather(world, 4, {1, swapped ? "layers.1" : "layers.0"});
    gather(world, 4, {2, swapped ? "layers.0" : "layers.1"});
  });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("are not at the same point"),
                               HasSubstr("ranks 0, 1: all_gather of unit 'layers.0'"),
                               HasSubstr("rank 2: all_gather of unit 'layers.1'"))));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // no timeout
}

TEST(CheckRanksTest, LongTextsAreComparedToTheirEnd) {
  const auto said = failures(2, [](World& world) {
    const std::string same(2000, 'p');
    world.world().agree(same);
    world.world().agree(same + std::to_string(world.rank()));
  });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("are not at the same point"), HasSubstr("rank 0: ppp"),
                               HasSubstr("(2001 bytes, hash "))));
}

TEST(CheckRanksTest, AnotherCollectiveAndAnotherSizeAreNamed) {
  EXPECT_THAT(failures(2,
                       [](World& world) {
                         gather(world, world.rank() == 0 ? 4 : 6, {1, "layers.0"});
                       }),
              Each(AllOf(HasSubstr("rank 0: all_gather of unit 'layers.0', 4 elements"),
                         HasSubstr("rank 1: all_gather of unit 'layers.0', 6 elements"))));
  EXPECT_THAT(failures(2,
                       [](World& world) {
                         if (world.rank() == 0) {
                           gather(world, 4, {1, "layers.0"});
                         } else {
                           world.world().wait(world.world().all_reduce(
                               at::zeros({1}), ReduceOp::kSum, {kNoUnit, "the loss"}));
                         }
                       }),
              Each(AllOf(HasSubstr("rank 0: all_gather of unit 'layers.0'"),
                         HasSubstr("rank 1: all_reduce of the loss"))));
}

// Uneven inputs: one rank is done while the other continues.
TEST(CheckRanksTest, RankThatLeavesEarlyIsNamed) {
  const auto said = failures(2, [](World& world) {
    for (int step = 0; step < (world.rank() == 1 ? 2 : 3); ++step) {
      gather(world, 4, {1, "layers.0"});
    }
  });
  EXPECT_THAT(said[0], AllOf(HasSubstr("rank 0: all_gather of unit 'layers.0'"),
                             HasSubstr("rank 1: has left")));
  EXPECT_THAT(said[1], IsEmpty());
}

TEST(CheckRanksTest, RanksThatAgreeAreLeftAlone) {
  EXPECT_THAT(failures(3,
                       [](World& world) {
                         world.world().agree("says the same");
                         gather(world, 5, {1, "layers.0"});
                         const at::Tensor tensor = at::full({2}, world.rank());
                         world.world().wait(world.world().all_reduce(tensor, ReduceOp::kSum, {}));
                         EXPECT_EQ(tensor[0].item<float>(), 3);
                       }),
              Each(IsEmpty()));
}

TEST(CheckRanksTest, AgreementIsFreeUnlessAskedFor) {
  EXPECT_THAT(
      failures(
          2, [](World& world) { world.world().agree("rank " + std::to_string(world.rank())); },
          [](WorldOptions&) {}),
      Each(IsEmpty()));
  EXPECT_THAT(
      failures(
          2, [](World& world) { world.world().agree("is rank " + std::to_string(world.rank())); }),
      Each(AllOf(HasSubstr("rank 0: is rank 0"), HasSubstr("rank 1: is rank 1"))));
}

TEST(CheckRanksTest, TimeoutSaysWhatEveryRankIsAt) {
  std::mutex mutex;
  std::condition_variable changed;
  int failed = 0;
  const auto said = failures(
      3,
      [&](World& world) {
        if (world.rank() == 1) {  // stands in for an endless computation
          std::unique_lock lock(mutex);
          changed.wait_for(lock, std::chrono::seconds(20), [&] { return failed > 0; });
          return;
        }
        try {
          gather(world, 4, {1, world.rank() == 0 ? "layers.0" : "layers.1"});
        } catch (...) {
          const std::lock_guard lock(mutex);
          ++failed;
          changed.notify_one();
          throw;
        }
      },
      [](WorldOptions& options) { options.timeout = std::chrono::seconds(3); });
  // The rank that fails first reports this; the other may only find that the first is gone.
  const size_t first = said[0].find("rank 1 is") != std::string::npos ? 0 : 2;
  EXPECT_THAT(said[first], HasSubstr("rank 1 is not waiting; the last collective that it ended is "
                                     "barrier of joining"));
  EXPECT_THAT(said[first], first == 0
                               ? HasSubstr("rank 2 waits for all_gather of unit 'layers.1'")
                               : HasSubstr("rank 0 waits for all_gather of unit 'layers.0'"));
}

}  // namespace
}  // namespace shardlens::dist
