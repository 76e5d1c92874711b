#include "cli/capture/host_info.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

class CpuClocksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "shardlens-cpus-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    cpus_ = name;
  }
  void TearDown() override { fs::remove_all(cpus_); }

  void core(int number, const std::string& governor, const std::string& khz) const {
    const fs::path cpufreq = cpus_ / ("cpu" + std::to_string(number)) / "cpufreq";
    fs::create_directories(cpufreq);
    std::ofstream(cpufreq / "scaling_governor") << governor << '\n';
    std::ofstream(cpufreq / "scaling_max_freq") << khz << '\n';
  }

  fs::path cpus_;
};

TEST_F(CpuClocksTest, CoresThatAreAlikeAreToldOnce) {
  core(0, "performance", "3500000");
  core(1, "performance", "3500000");
  fs::create_directories(cpus_ / "cpufreq");
  EXPECT_EQ(cpu_clocks(cpus_), "performance, at most 3500 MHz");
}

TEST_F(CpuClocksTest, CoresThatDifferAreToldApart) {
  core(0, "performance", "3500000");
  core(1, "powersave", "2000000");
  EXPECT_EQ(cpu_clocks(cpus_), "performance, at most 3500 MHz; powersave, at most 2000 MHz");
}

TEST_F(CpuClocksTest, WhatTheSystemDoesNotSayIsLeftOut) {
  EXPECT_EQ(cpu_clocks(cpus_), "");
  EXPECT_EQ(cpu_clocks(cpus_ / "absent"), "");
  core(0, "schedutil", "");
  EXPECT_EQ(cpu_clocks(cpus_), "schedutil");
}

// A capture may be handed on: it names the machine only where that was asked for.
TEST(HostInfoTest, NameAndKernelAreLeftOutUnlessAskedFor) {
  for (const char* key : {"host", "system"}) {
    EXPECT_FALSE(nlohmann::json::parse(host_info_json()).contains(key));
    EXPECT_TRUE(nlohmann::json::parse(host_info_json(true)).contains(key));
  }
}

TEST(HostInfoTest, NullIsWhatIsNotKnown) {
  const auto info = nlohmann::json::parse(host_info_json());
  EXPECT_GE(info["cores"].get<int>(), 1);
  EXPECT_EQ(info["clocks"].is_null(), cpu_clocks().empty());
}

}  // namespace
}  // namespace shardlens::cli
