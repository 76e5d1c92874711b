#include "profiler/record/ranges/nvtx_recorder.h"

namespace shardlens::record {

class NvtxRecorder::Domain {};

// NOLINTNEXTLINE(performance-unnecessary-value-param): as in the header
NvtxRecorder::NvtxRecorder(Recorder* next, std::function<bool()> /*counts*/)
    : ForwardingRecorder(next) {}
NvtxRecorder::~NvtxRecorder() = default;
void NvtxRecorder::units(std::span<const std::string> fqns) {
  ForwardingRecorder::units(fqns);
}
void NvtxRecorder::step_begin(int64_t step) {
  ForwardingRecorder::step_begin(step);
}
void NvtxRecorder::step_end() {
  ForwardingRecorder::step_end();
}
uint32_t NvtxRecorder::hook(const HookEvent& event) {
  return ForwardingRecorder::hook(event);
}
void NvtxRecorder::range_begin(Range range, UnitId unit) {
  ForwardingRecorder::range_begin(range, unit);
}
void NvtxRecorder::range_end() {
  ForwardingRecorder::range_end();
}
int64_t NvtxRecorder::ended() const {
  return 0;
}

}  // namespace shardlens::record
