#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "profiler/record/forwarding_recorder.h"

namespace shardlens::record {

// Opens the ranges of units in NVTX's domain "shardlens" too, whatever else records: Nsight Systems
// and other tools show them. Names are those of the trace; besides, "forward (fqn)" from a unit's
// pre- to its post-forward and "backward (fqn)" from its pre-backward until its gradients are
// ready. Without a tool a call costs a few nanoseconds. In a build without NVTX's headers it only
// passes on.
//
// Threads  as Recorder.
class NvtxRecorder final : public ForwardingRecorder {
 public:
  // `counts`: whether ranges of the step that begins count in ended(); empty: always.
  explicit NvtxRecorder(Recorder* next = nullptr, std::function<bool()> counts = {});
  ~NvtxRecorder() override;

  void units(std::span<const std::string> fqns) override;
  void step_begin(int64_t step) override;
  void step_end() override;
  uint32_t hook(const HookEvent& event) override;
  void range_begin(Range range, UnitId unit) override;
  void range_end() override;

  // Ranges that have ended.
  [[nodiscard]] int64_t ended() const;

 private:
  class Domain;
  std::function<bool()> counts_;
  std::unique_ptr<Domain> domain_;
};

}  // namespace shardlens::record
