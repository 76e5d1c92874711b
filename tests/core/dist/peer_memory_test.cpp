#include "core/dist/peer_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::dist {
namespace {

constexpr std::chrono::seconds kTimeout{20};
constexpr std::string_view kMayNotRead = "a process may not read the memory of another one here";

// Pipes between ranks 0 and 1.
class Pipes {
 public:
  Pipes() { EXPECT_EQ(::pipe(to_[0].data()) + ::pipe(to_[1].data()), 0); }
  ~Pipes() {
    for (const auto& ends : to_) {
      std::ranges::for_each(ends, ::close);
    }
  }
  Pipes(const Pipes&) = delete;
  Pipes& operator=(const Pipes&) = delete;

  [[nodiscard]] PeerMemory::Gather gather(int rank) const {
    return [this, rank](std::span<const std::byte> own) {
      std::vector<std::byte> other(own.size());
      EXPECT_EQ(::write(to_[1 - rank][1], own.data(), own.size()), ssize_t(own.size()));
      EXPECT_EQ(::read(to_[rank][0], other.data(), other.size()), ssize_t(other.size()));
      std::vector<std::byte> all(own.begin(), own.end());
      all.insert(rank == 0 ? all.end() : all.begin(), other.begin(), other.end());
      return all;
    };
  }
  [[nodiscard]] std::unique_ptr<PeerMemory> join(int rank) const {
    return PeerMemory::join(rank, 2, kTimeout, gather(rank));
  }

 private:
  std::array<std::array<int, 2>, 2> to_{};  // by rank: the end to read, the end to write
};

// Rank 1 in a process of its own, which ends with what `run` returns.
pid_t start(const Pipes& pipes, const std::function<int(std::unique_ptr<PeerMemory>)>& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(run(pipes.join(1)));
  }
  return child;
}

int result_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

std::vector<std::byte> counted(size_t size, int from) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i + static_cast<size_t>(from)) % 251);
  }
  return bytes;
}

// Whether rank `rank` reads what the other one lends, small and large, and all of it.
bool reads_the_other(PeerMemory& memory, int rank) {
  for (const size_t size : {3'000'001, 17, 17, 100'000, 500'000}) {
    const size_t from = size / 3;
    const std::vector<std::byte> mine = counted(size, rank), theirs = counted(size, 1 - rank);
    std::vector<std::byte> seen(size - from);
    memory.lend(mine, size, [&] { memory.read(1 - rank, from, seen); });
    if (!std::ranges::equal(seen, std::span(theirs).subspan(from))) {
      return false;
    }
  }
  return true;
}

TEST(PeerMemoryTest, ProcessesReadWhatTheOtherLends) {
  const Pipes pipes;
  const pid_t child = start(pipes, [](std::unique_ptr<PeerMemory> memory) {
    return memory == nullptr || reads_the_other(*memory, 1) ? 0 : 1;
  });
  const auto memory = pipes.join(0);
  if (memory != nullptr) {
    EXPECT_TRUE(reads_the_other(*memory, 0));
  }
  EXPECT_EQ(result_of(child), 0);
  if (memory == nullptr) {
    GTEST_SKIP() << kMayNotRead;
  }
}

TEST(PeerMemoryTest, AProcessThatEndedEndsTheExchange) {
  const Pipes pipes;
  const pid_t child = start(pipes, [](std::unique_ptr<PeerMemory> memory) {
    (void)memory.release();  // as if it was killed: it does not say that it leaves
    return 0;
  });
  const auto memory = pipes.join(0);
  EXPECT_EQ(result_of(child), 0);
  if (memory == nullptr) {
    GTEST_SKIP() << kMayNotRead;
  }
  EXPECT_THAT([&] { memory->lend({}, 0, [] {}); },
              testing::ThrowsMessage<RuntimeFault>(testing::HasSubstr("rank 1 of the group")));
}

TEST(PeerMemoryTest, ARankThatGivesUpEndsTheExchangeOfTheOther) {
  const Pipes pipes;
  const std::vector<std::byte> large = counted(1'000'000, 0);
  std::thread other([&] {
    const auto memory = pipes.join(1);
    if (memory != nullptr) {
      EXPECT_THROW(memory->lend(large, large.size(), [] { throw std::runtime_error("cable cut"); }),
                   std::runtime_error);
    }
  });
  const auto memory = pipes.join(0);
  if (memory != nullptr) {
    EXPECT_THAT(
        [&] { memory->lend(large, large.size(), [] {}); },
        testing::ThrowsMessage<RuntimeFault>(testing::HasSubstr("rank 1 of the group has left")));
  }
  other.join();
  if (memory == nullptr) {
    GTEST_SKIP() << kMayNotRead;
  }
}

TEST(PeerMemoryTest, ARankMayLeaveAfterTheLastExchange) {
  std::atomic<bool> may_read = true;
  for (int i = 0; i < 50; ++i) {
    const Pipes pipes;
    const auto run = [&](int rank) {
      const auto memory = pipes.join(rank);
      if (memory == nullptr) {
        may_read = false;
        return;
      }
      int seen = -1;
      memory->lend(std::as_bytes(std::span(&rank, 1)), sizeof(rank),
                   [&] { memory->read(1 - rank, 0, std::as_writable_bytes(std::span(&seen, 1))); });
      EXPECT_EQ(seen, 1 - rank);
    };
    std::thread other(run, 1);
    run(0);
    other.join();
  }
  if (!may_read) {
    GTEST_SKIP() << kMayNotRead;
  }
}

// Threads that are the ranks of a group. False if they may not read each other's memory.
bool run_group(int size, const std::function<void(PeerMemory&, int)>& run) {
  std::barrier<> meeting(size);
  std::vector<std::span<const std::byte>> given(static_cast<size_t>(size));
  std::atomic<bool> may_read = true;
  const auto one = [&](int rank) {
    const auto gather = [&](std::span<const std::byte> own) {
      given[static_cast<size_t>(rank)] = own;
      meeting.arrive_and_wait();
      std::vector<std::byte> all;
      for (const auto each : given) {
        all.insert(all.end(), each.begin(), each.end());
      }
      meeting.arrive_and_wait();
      return all;
    };
    const auto memory = PeerMemory::join(rank, size, kTimeout, gather);
    if (memory == nullptr) {
      may_read = false;
    } else {
      run(*memory, rank);
    }
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < size; ++rank) {
    others.emplace_back(one, rank);
  }
  one(0);
  std::ranges::for_each(others, &std::thread::join);
  return may_read;
}

TEST(PeerMemoryTest, ManyRanksReadWhatEachLends) {
  constexpr int kRanks = 5;
  const auto run = [](PeerMemory& memory, int rank) {
    for (int i = 0; i < 300; ++i) {
      const size_t size = i % 30 == 0 ? 300'000 : 40;
      const std::vector<std::byte> mine = counted(size, rank + i);
      std::vector<std::byte> seen(size);
      memory.lend(mine, size, [&] {
        for (int peer = 0; peer < kRanks; ++peer) {
          memory.read(peer, 0, seen);
          ASSERT_EQ(seen, counted(size, peer + i));
        }
      });
    }
  };
  if (!run_group(kRanks, run)) {
    GTEST_SKIP() << kMayNotRead;
  }
}

// Near the limit between small and large memory one rank alone may be above it.
TEST(PeerMemoryTest, RanksLendAsMuchAsEachHas) {
  constexpr size_t kMost = (size_t{1} << 18) + 4;
  const auto run = [](PeerMemory& memory, int rank) {
    const std::vector<std::byte> mine = counted(kMost - 4 * static_cast<size_t>(rank), rank);
    std::vector<std::byte> seen(kMost - 4 * static_cast<size_t>(1 - rank));
    for (int i = 0; i < 3; ++i) {
      memory.lend(mine, kMost, [&] { memory.read(1 - rank, 0, seen); });
      EXPECT_EQ(seen, counted(seen.size(), 1 - rank));
    }
  };
  if (!run_group(2, run)) {
    GTEST_SKIP() << kMayNotRead;
  }
}

TEST(PeerMemoryTest, ARankThatLeavesEndsTheExchangesOfAllOthers) {
  const auto run = [](PeerMemory& memory, int rank) {
    const int number = rank;
    const auto lend = [&](const std::function<void()>& work) {
      memory.lend(std::as_bytes(std::span(&number, 1)), sizeof(number), work);
    };
    if (rank == 2) {
      EXPECT_THROW(lend([] { throw std::runtime_error("cable cut"); }), std::runtime_error);
      return;
    }
    lend([] {});
    EXPECT_THAT([&] { lend([] {}); }, testing::ThrowsMessage<RuntimeFault>(
                                          testing::HasSubstr("rank 2 of the group has left")));
  };
  if (!run_group(4, run)) {
    GTEST_SKIP() << kMayNotRead;
  }
}

TEST(PeerMemoryTest, WaitsNoLongerThanTheTimeout) {
  const Pipes pipes;
  std::unique_ptr<PeerMemory> other;
  std::thread joins([&] { other = pipes.join(1); });
  const auto memory = PeerMemory::join(0, 2, std::chrono::milliseconds(50), pipes.gather(0));
  joins.join();
  if (memory == nullptr) {
    GTEST_SKIP() << kMayNotRead;
  }
  EXPECT_THAT(
      [&] { memory->lend({}, 0, [] {}); },
      testing::ThrowsMessage<RuntimeFault>(testing::HasSubstr("timed out waiting for rank 1")));
}

}  // namespace
}  // namespace shardlens::dist
