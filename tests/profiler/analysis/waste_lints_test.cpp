// Waste that a plan could avoid, in steps of FSDP2 on a device; times in microseconds.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "tests/profiler/analysis/device_step.h"

namespace shardlens::analysis {
namespace {

using test::DeviceStep;
using test::kGatherStream;
using test::kReduceStream;
using test::kUs;

std::vector<Waste> waste_of(DeviceStep& s, WasteKind kind) {
  std::vector<Waste> out = s.analyzed().ranks.at(0).waste;
  std::erase_if(out, [&](const Waste& each) { return each.kind != kind; });
  return out;
}

// The root is gathered from 10 to 30 in forward, and from 150 to 170 in backward.
void gather_root_again(DeviceStep& s) {
  s.range("FSDP::pre_forward (a)", 30, 40);
  s.range("FSDP::all_gather (a)", 32, 36);
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 33, 40, 60);
  s.range("FSDP::all_gather_copy_out (a)", 37, 39);
  s.range("FSDP::post_forward (a)", 60, 61);
  s.range("FSDP::post_forward", 62, 63);
  s.range("FSDP::pre_backward", 70, 80);
  s.range("FSDP::all_gather", 72, 76);
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 73, 150, 170);
  s.range("FSDP::all_gather_copy_out", 77, 79);
  s.kernel(90, 170, 200);
}

TEST(WasteLintsTest, ARootThatIsGatheredInBackwardToo) {
  DeviceStep kept;
  kept.begin();
  EXPECT_TRUE(waste_of(kept, WasteKind::kRootGatheredAgain).empty());
  DeviceStep s;
  s.begin();
  gather_root_again(s);
  const auto waste = waste_of(s, WasteKind::kRootGatheredAgain);
  ASSERT_EQ(waste.size(), 1U);
  EXPECT_EQ(name_of(waste[0].kind), "root_gathered_again");
  EXPECT_EQ(waste[0].where, "");
  EXPECT_EQ(waste[0].count, 1);
  EXPECT_EQ(waste[0].lost, 20 * kUs);
}

// A rank's part has 4 * 32768 + 2 bytes: of 4 ranks' 262148 elements of bf16. It takes 60 us, and
// the aligned message of four elements less 40.
TEST(WasteLintsTest, PartsThatAreNoMultipleOfSixteenBytes) {
  const auto step = [](int64_t elements) {
    DeviceStep s;
    s.begin();
    const auto gather = [&](Nanoseconds at, Nanoseconds length, int64_t of) {
      s.nccl(CollectiveKind::kAllGather, kGatherStream, at, at + 10, at + 10 + length, "dp", of);
    };
    gather(200, 40, 262144);
    gather(300, 60, elements);
    return waste_of(s, WasteKind::kUnalignedMessage);
  };
  const auto waste = step(262148);
  ASSERT_EQ(waste.size(), 1U);
  EXPECT_EQ(name_of(waste[0].kind), "unaligned_message");
  EXPECT_EQ(waste[0].where, "all_gather of 131074 bytes a rank");
  EXPECT_NEAR(static_cast<double>(waste[0].lost), 20 * kUs, kUs);
  EXPECT_TRUE(step(262144).empty());
  EXPECT_TRUE(step(1004).empty());  // short: another protocol of NCCL
}

// An all-to-all is called at 210, while a gather of the same communicator runs from 200 to 260,
// under compute until 230.
TEST(WasteLintsTest, ExpertsThatWaitForFsdp) {
  const auto step = [](const char* group, int64_t stream) {
    DeviceStep s;
    s.begin();
    s.range("FSDP::all_gather (a)", 195, 199);
    s.nccl(CollectiveKind::kAllGather, kGatherStream, 196, 200, 260);
    s.range("FSDP::all_gather_copy_out (a)", 270, 271);
    s.kernel(190, 200, 230);
    s.nccl(CollectiveKind::kAllToAll, stream, 210, 262, 300, group);
    return waste_of(s, WasteKind::kSharedCommunicator);
  };
  const auto waste = step("dp", kGatherStream);
  ASSERT_EQ(waste.size(), 1U);
  EXPECT_EQ(name_of(waste[0].kind), "shared_communicator");
  EXPECT_EQ(waste[0].where, "all_to_all behind all_gather on mesh_dp");
  EXPECT_EQ(waste[0].lost, 30 * kUs);
  EXPECT_TRUE(step("ep", kReduceStream).empty());
}

}  // namespace
}  // namespace shardlens::analysis
