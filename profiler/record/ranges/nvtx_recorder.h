#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "profiler/record/host/forwarding_recorder.h"

namespace shardlens::record {

// Opens the ranges of units also in the NVTX domain "shardlens", independently of other recorders,
// so that Nsight Systems and other tools show them. Names are those of the trace; in addition,
// there is "forward (fqn)" from a unit's pre-forward to its post-forward, and "backward (fqn)" from
// its pre-backward until its gradients are ready. Without a tool a call costs a few nanoseconds. In
// a build without NVTX's headers it only forwards calls.
//
// Threads  as Recorder.
class NvtxRecorder final : public ForwardingRecorder {
 public:
  // `counts`: called at the start of each step; whether ended() counts the ranges of that step.
  // Empty: always.
  explicit NvtxRecorder(Recorder* next = nullptr, std::function<bool()> counts = {});
  ~NvtxRecorder() override;

  void units(std::span<const std::string> fqns) override;
  void step_begin(int64_t step) override;
  void step_end() override;
  uint32_t hook(const HookEvent& event) override;
  void range_begin(Range range, UnitId unit) override;
  void range_end() override;

  // Number of counted ranges that have ended.
  [[nodiscard]] int64_t ended() const;

 private:
  class Domain;
  std::function<bool()> counts_;
  std::unique_ptr<Domain> domain_;
};

}  // namespace shardlens::record
