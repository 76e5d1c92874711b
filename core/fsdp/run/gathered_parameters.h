#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/run/root_units.h"
#include "core/fsdp/run/summon_options.h"

namespace shardlens::fsdp {

// Parameters that are gathered outside of a step, without the schedule: one for a caller, or all of
// some units in the scope FullParameters.
//
// Threads  the thread that trains.
class GatheredParameters {
 public:
  explicit GatheredParameters(RootUnits& units) : units_(units) {}

  // ShardedModel::full_parameter(). A caller that goes through the parameters in order gathers each
  // unit once: what was gathered is kept until forget().
  [[nodiscard]] at::Tensor parameter(uint32_t parameter);
  void forget();

  // The scope FullParameters. Errors: UsageError for units that cannot be shown; show() leaves no
  // unit shown after an error.
  void require_showable(const std::vector<UnitId>& units, const SummonOptions& options) const;
  void show(const std::vector<UnitId>& units, const SummonOptions& options);
  void hide(const std::vector<UnitId>& units, bool writeback);
  [[nodiscard]] bool are_shown() const { return shown_; }
  void require_hidden() const;

 private:
  RootUnits& units_;
  bool shown_ = false;
  uint32_t unit_ = kNoUnit;  // the unit whose flat parameter is in gathered_
  size_t slot_ = 0;          // the last parameter that was read from it
  at::Tensor gathered_;
};

}  // namespace shardlens::fsdp
