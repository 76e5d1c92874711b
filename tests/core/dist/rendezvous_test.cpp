// Where ranks meet: launchers' variables, and a store that outlives its processes.
#include "core/dist/rendezvous.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/error.h"
#include "core/dist/world.h"

namespace shardlens::dist {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

RendezvousAddress address_of(const Variables& variables) {
  return rendezvous_address([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  });
}

TEST(RendezvousAddressTest, TakesWhatTorchrunSets) {
  EXPECT_EQ(address_of({{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}}),
            (RendezvousAddress{"node7", 29500}));
}

TEST(RendezvousAddressTest, SrunWithoutThemHasSlurmsVariables) {
  const Variables slurm{{"SLURM_PROCID", "3"},
                        {"SLURM_JOB_ID", "123456"},
                        {"SLURM_STEP_ID", "2"},
                        {"SLURM_JOB_NODELIST", "gpu[001-008]"},
                        {"SLURM_STEP_NODELIST", "gpu[003-004]"}};
  // 123456 + 7 · 2 = 123470; modulo 16000: 11470.
  EXPECT_EQ(address_of(slurm), (RendezvousAddress{"gpu003", 26470}));
  Variables next_step = slurm;
  next_step["SLURM_STEP_ID"] = "3";
  EXPECT_NE(address_of(next_step).port, address_of(slurm).port);
  Variables own_port = slurm;
  own_port["MASTER_PORT"] = "4000";
  EXPECT_EQ(address_of(own_port), (RendezvousAddress{"gpu003", 4000}));
  Variables own_host = slurm;
  own_host["MASTER_ADDR"] = "head";
  EXPECT_EQ(address_of(own_host), (RendezvousAddress{"head", 26470}));
}

TEST(RendezvousAddressTest, WithoutALauncherItSaysSo) {
  // A shell within an allocation has the job's variables, but no rank.
  EXPECT_THAT(
      [] {
        (void)address_of({{"SLURM_JOB_NODELIST", "a"}, {"SLURM_JOB_ID", "1"}});
      },
      testing::ThrowsMessage<UsageError>(HasSubstr("MASTER_ADDR and MASTER_PORT")));
  for (const char* port : {"0", "65536", "x", "80x", "-1"}) {
    EXPECT_THAT(
        [&] {
          (void)address_of({{"MASTER_ADDR", "a"}, {"MASTER_PORT", port}});
        },
        testing::ThrowsMessage<UsageError>(HasSubstr("expected a port from 1 to 65535")));
  }
}

TEST(RendezvousAddressTest, TheFirstNodeOfAList) {
  EXPECT_EQ(first_node("gpu003"), "gpu003");
  EXPECT_EQ(first_node("a,b"), "a");
  EXPECT_EQ(first_node("gpu-[03-05,9],login"), "gpu-03");
  EXPECT_EQ(first_node("gpu[7,9]-ib"), "gpu7-ib");
  EXPECT_EQ(first_node("rack[2-3]node[01-04]"), "rack2node01");
  EXPECT_EQ(first_node(""), "");
}

// Sets variables of the process, and removes them at its end.
class EnvironmentScope {
 public:
  explicit EnvironmentScope(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~EnvironmentScope() {
    for (const auto& [name, value] : variables_) {
      ::unsetenv(name.c_str());
    }
  }
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

 private:
  Variables variables_;
};

// torchrun restarts the processes after a fault; its agent keeps serving the store, in which the
// addresses of the processes of the first attempt are.
TEST(RestartTest, TheSecondAttemptDoesNotMeetTheFirst) {
  ::unsetenv("SHARDLENS_RENDEZVOUS");
  c10d::TCPStoreOptions agent;
  agent.isServer = true;
  agent.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", agent);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const EnvironmentScope scope({{"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", std::to_string(store->getPort())},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                  {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)}});
    std::vector<std::string> failures(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          WorldOptions options;
          options.rank = rank;
          options.world_size = 2;
          options.timeout = std::chrono::seconds(2);
          const auto world = World::join(options);
          at::Tensor sum = at::full({1}, rank + 1);
          world->world().wait(world->world().all_reduce(sum, ReduceOp::kSum, {kNoUnit, "test"}));
          EXPECT_EQ(sum.item<double>(), 3);
        } catch (const std::exception& error) {
          failures[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
    EXPECT_THAT(failures, testing::Each("")) << "attempt " << attempt;
  }
}

}  // namespace
}  // namespace shardlens::dist
