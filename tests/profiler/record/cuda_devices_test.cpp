#include "profiler/record/device/cuda_devices.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiler/record/device/cupti_records.h"
#include "profiler/trace/spool/spool_trace.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

constexpr const char* kDriver = SHARDLENS_FAKE_DRIVER;

TEST(CudaDevicesTest, AMachineWithoutADriverHasNone) {
  for_each_cuda_device([](const CUpti_ActivityDevice5&) { FAIL(); }, "libno-such-driver.so.1");
}

// What torch.profiler wrote for an H200 (traces/fsdp2-h200).
TEST(CudaDevicesTest, TheTraceHasTheirProperties) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  ActivityParser parser(recorder);
  for_each_cuda_device(
      [&parser](const CUpti_ActivityDevice5& device) {
        parser.take(reinterpret_cast<const CUpti_Activity&>(device));
        parser.take(reinterpret_cast<const CUpti_Activity&>(device));  // CUPTI may have it as well
      },
      kDriver);
  recorder.finish();
  const trace::Trace trace = spool_to_trace(trace::read_spool(recorder.path()));
  const auto devices = nlohmann::json::parse(trace.metadata.device_properties);
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[1].at("id"), 1);
  const auto expected = nlohmann::json::parse(R"({"name": "NVIDIA H200",
      "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536,
      "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": 132, "regsPerMultiprocessor": 65536,
      "sharedMemPerMultiprocessor": 233472})");
  for (const auto& [key, value] : expected.items()) {
    EXPECT_EQ(devices[0].at(key), value) << key;
  }
}

}  // namespace
}  // namespace shardlens::record
