// A tool attached to NVTX records the calls that a recorder makes.

#include "profiler/record/ranges/nvtx_recorder.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nvtx3/nvToolsExt.h>

namespace shardlens::record {
namespace {

struct Tool {
  std::vector<std::string> calls;
  std::vector<std::string> texts;  // handle: index + 1
  std::map<nvtxRangeId_t, std::string> open;
  nvtxRangeId_t next = 0;
};
Tool& tool() {
  static Tool instance;
  return instance;
}

std::string text_of(const nvtxEventAttributes_t* event) {
  return tool().texts.at(reinterpret_cast<size_t>(event->message.registered) - 1);
}

nvtxDomainHandle_t NVTX_API create(const char* name) {
  tool().calls.push_back(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(size_t{1});
}
nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t /*domain*/, const char* text) {
  tool().texts.emplace_back(text);
  return reinterpret_cast<nvtxStringHandle_t>(tool().texts.size());
}
int NVTX_API push(nvtxDomainHandle_t /*domain*/, const nvtxEventAttributes_t* event) {
  tool().calls.push_back("push " + text_of(event));
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t /*domain*/) {
  tool().calls.emplace_back("pop");
  return 0;
}
nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t /*domain*/, const nvtxEventAttributes_t* event) {
  const nvtxRangeId_t id = ++tool().next;
  tool().open[id] = text_of(event);
  tool().calls.push_back("start " + text_of(event));
  return id;
}
void NVTX_API end(nvtxDomainHandle_t /*domain*/, nvtxRangeId_t id) {
  tool().calls.push_back("end " + tool().open.at(id));
  tool().open.erase(id);
}

template <typename F>
void put(NvtxFunctionTable table, size_t index, F* function) {
  *table[index] = reinterpret_cast<NvtxFunctionPointer>(function);
}

int NVTX_API attach(NvtxGetExportTableFunc_t get) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  put(table, NVTX_CBID_CORE2_DomainCreateA, create);
  put(table, NVTX_CBID_CORE2_DomainRegisterStringA, register_string);
  put(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  put(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  put(table, NVTX_CBID_CORE2_DomainRangeStartEx, start);
  put(table, NVTX_CBID_CORE2_DomainRangeEnd, end);
  return 1;
}

// NVTX's first call runs the function in this variable of the program, which its headers declare as
// weak, unless NVTX_INJECTION64_PATH is set.
const bool attached = [] {
  InitializeInjectionNvtx2_fnptr = attach;
  return true;
}();

TEST(NvtxRecorderTest, OpensUnitsRangesWithNoOtherRecorder) {
  ASSERT_TRUE(attached);
  NvtxRecorder recorder;
  const std::vector<std::string> units{"", "layers.0"};
  recorder.units(units);
  tool().calls.clear();
  recorder.step_begin(4);
  recorder.range_begin(Range::kPreForward, 1);
  recorder.hook({.hook = Hook::kPreForward, .unit = 1});
  recorder.range_end();
  recorder.hook({.hook = Hook::kPostForward, .unit = 1});
  recorder.hook({.hook = Hook::kPreBackward, .unit = 0});
  recorder.range_begin(Range::kPreForward, 0);
  recorder.range_end();
  recorder.range_begin(Range::kOptimizer, kNoUnit);
  recorder.range_end();
  recorder.step_end();  // the root's gradients never came
  EXPECT_THAT(tool().calls,
              testing::ElementsAre("push step 4", "push FSDP::pre_forward (layers.0)",
                                   "start forward (layers.0)", "pop", "end forward (layers.0)",
                                   "start backward", "push FSDP::pre_forward", "pop",
                                   "push Optimizer.step", "pop", "end backward", "pop"));
  EXPECT_EQ(recorder.ended(), 6);
}

TEST(NvtxRecorderTest, CountsRangesOfRecordedSteps) {
  bool recording = false;
  NvtxRecorder recorder(nullptr, [&] { return recording; });
  for (int step = 0; step < 4; ++step) {
    recording = step == 2;
    recorder.step_begin(step);
    recorder.range_begin(Range::kOptimizer, kNoUnit);
    recorder.range_end();
    recorder.step_end();
  }
  EXPECT_EQ(recorder.ended(), 2);
}

TEST(NvtxRecorderTest, HasADomainOfItsOwn) {
  tool().calls.clear();
  const NvtxRecorder recorder;
  EXPECT_THAT(tool().calls, testing::ElementsAre("domain shardlens"));
}

}  // namespace
}  // namespace shardlens::record
