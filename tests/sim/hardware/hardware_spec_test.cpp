#include "sim/hardware/hardware_spec.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "sim/hardware/builtin_specs.h"

namespace shardlens::sim::test {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::string& json) {
  try {
    (void)parse_hardware(json, "node.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text;
  for (const BuiltinSpec& spec : builtin_specs()) {
    text = spec.name == "8xA100-80" ? spec.json : text;
  }
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(HardwareSpecTest, BuiltInNames) {
  EXPECT_THAT(hardware_names(),
              ::testing::UnorderedElementsAre("8xA100-40", "8xA100-80", "8xH100", "8xH100-96",
                                              "8xH200", "4xH200", "8xB200", "8xB300", "4xGB200",
                                              "4xGB300", "8xL40S", "8xRTXPRO6000", "4xPCIe"));
  for (const std::string& name : hardware_names()) {
    const HardwareSpec spec = load_hardware(name);
    EXPECT_EQ(spec.name, name);
    EXPECT_EQ(spec.gpus, name[0] - '0');
  }
  EXPECT_EQ(load_hardware("8xH100").gpu.sms, 132);
  EXPECT_EQ(load_hardware("8xH100").fabric.curves.size(), 9U);
}

TEST(HardwareSpecTest, ANumberBeforeANameIsThatOfItsNodes) {
  const HardwareSpec two = load_hardware("2x8xH100");
  EXPECT_EQ(two.name, "2x8xH100");
  EXPECT_EQ(two.nodes, 2);
  EXPECT_EQ(two.ranks(), 16);
  EXPECT_EQ(two.gpu.name, load_hardware("8xH100").gpu.name);
  EXPECT_EQ(load_hardware("1x4xPCIe").ranks(), 4);
  EXPECT_EQ(node_of("16x8xH100"), "8xH100");
  for (const char* other : {"x8xH100", "-2x8xH100", "2x8xH10", "12345x8xH100", "2x"}) {
    EXPECT_EQ(node_of(other), "") << other;
  }
  const auto refusal = [](const char* name) {
    try {
      (void)load_hardware(name);
      return std::string();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refusal("2x8xB200"), HasSubstr("network between its nodes is not known"));
  EXPECT_THAT(refusal("0x8xH100"), HasSubstr("one node or more"));
}

// The bandwidth that NCCL reaches is below that of the links, but not far below.
TEST(HardwareSpecTest, RingsThatWereMeasuredFitTheLinks) {
  for (const char* name :
       {"8xA100-40", "8xA100-80", "8xH100", "8xH200", "8xB200", "8xB300", "4xGB200", "4xGB300"}) {
    const HardwareSpec spec = load_hardware(name);
    ASSERT_EQ(spec.fabric.links.size(), static_cast<size_t>(spec.gpus)) << name;
    const double wires = ring_gbps(spec.fabric.links, static_cast<int>(spec.gpus));
    EXPECT_LT(spec.fabric.ring_gbps, wires) << name;
    EXPECT_GT(spec.fabric.ring_gbps, 0.7 * wires) << name;
  }
}

TEST(HardwareSpecTest, AnUnknownNameSuggestsTheNearest) {
  try {
    (void)load_hardware("8xH10");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean '8xH100'?"));
  }
}

TEST(HardwareSpecTest, EveryConstantNeedsItsSource) {
  EXPECT_THAT(message_of(changed("\"source\": \"NVIDIA A100 datasheet\"", "\"from\": \"\"")),
              HasSubstr("node.json#/gpu"));
  EXPECT_THAT(message_of(changed("\"source\": \"NVIDIA A100 datasheet\"", "\"source\": \"\"")),
              HasSubstr("expected where the value comes from"));
}

TEST(HardwareSpecTest, BadValuesAreNamed) {
  EXPECT_THAT(message_of(changed("\"value\": 108", "\"value\": -1")),
              HasSubstr("node.json#/gpu/sms/value: expected a number from 1"));
  EXPECT_THAT(message_of(changed("\"gpus\"", "\"gpu_count\"")), HasSubstr("gpu_count"));
  EXPECT_THAT(message_of(changed("[1024, ", "[999999999999, ")), HasSubstr("/fabric/curves/0"));
  EXPECT_THAT(message_of(changed("[1024, ", "[9223372036854775807, ")),
              HasSubstr("/points/0/0: expected an integer from 1 to 1125899906842624"));
  EXPECT_THAT(message_of(changed("\"value\": 24,", "\"value\": 108,")),
              HasSubstr("every SM of the GPU"));
  EXPECT_THAT(message_of("{"), HasSubstr("node.json"));
}

TEST(HardwareSpecTest, ComputeMaySlowCollectives) {
  const auto with = [](const char* value) {
    return changed("\"reduce_scatter_ratio\"",
                   "\"collective_slowdown\": {\"value\": " + std::string(value) +
                       ", \"source\": \"test\"}, \"reduce_scatter_ratio\"");
  };
  EXPECT_EQ(parse_hardware(with("1.25"), "node.json").fabric.collective_slowdown, 1.25);
  EXPECT_THAT(message_of(with("0.5")), HasSubstr("/fabric/collective_slowdown"));
  for (const std::string& name : hardware_names()) {
    EXPECT_EQ(load_hardware(name).fabric.collective_slowdown, 1) << name;
  }
}

TEST(HardwareSpecTest, LinksGiveTheRingWhereItWasNotMeasured) {
  const auto with_links = [](const std::string& links) {
    const std::string text = changed("\"links\"", "\"links\": [" + links + "], \"old\"");
    const size_t at = text.find("\"old\"");
    return text.substr(0, at) + text.substr(text.find("\"reduce_scatter_ratio\""));
  };
  std::string star;
  for (int gpu = 0; gpu < 8; ++gpu) {
    star +=
        std::string(gpu == 0 ? "" : ", ") + R"({"a": "gpu)" + std::to_string(gpu) +
        R"(", "b": "switch", "gbps": 240, "source": "12 links of 20 GB/s, as NCCL counts them"})";
  }
  EXPECT_DOUBLE_EQ(parse_hardware(with_links(star), "node.json").fabric.ring_gbps, 240);
  EXPECT_THAT(message_of(with_links(R"({"a": "gpu0", "b": "gpu1", "gbps": 1, "source": "x"})")),
              HasSubstr("no ring through all GPUs"));
  EXPECT_THAT(message_of(with_links(R"({"a": "gpu8", "b": "gpu1", "gbps": 1, "source": "x"})")),
              HasSubstr("expected gpu0 to gpu7"));
  EXPECT_THAT(message_of(with_links(R"({"a": "gpu0", "b": "gpu1", "gbps": 0, "source": "x"})")),
              HasSubstr("expected GB/s above 0"));
}

// By hand: 0.82 is the middle of 0.41 to 1.64 on a scale of factors, so half as fast takes ln 2
// longer. Host times are no rates: 30 is 2.7 times 11, more than what FSDP2's hooks may take
// longer.
TEST(HardwareSpecTest, AConstantMayStateItsRange) {
  const auto with = [](const std::string& range) {
    return changed("\"gemm_efficiency\": {", "\"gemm_efficiency\": {\"range\": " + range + ", ");
  };
  const ConstantRange range = parse_hardware(with("[0.41, 1.64]"), "node.json").ranges.products;
  EXPECT_NEAR(range.slower, std::log(2), 1e-12);
  EXPECT_NEAR(range.faster, std::log(2), 1e-12);
  EXPECT_NEAR(load_hardware("8xA100-80").ranges.host.slower, std::log(30.0 / 11), 1e-12);
  EXPECT_NEAR(load_hardware("8xA100-80").ranges.host.faster, std::log(2.2), 1e-12);
  EXPECT_THAT(message_of(with("[0.9, 1]")), HasSubstr("#/gpu/gemm_efficiency/range"));
  EXPECT_THAT(message_of(with("[0, 1]")), HasSubstr("expected [low, high] around 0.82"));
  EXPECT_THAT(message_of(with("[0.5]")), HasSubstr("expected [low, high]"));
}

}  // namespace
}  // namespace shardlens::sim::test
