#pragma once

#include <filesystem>
#include <fstream>

#include "core/train/trainer.h"

namespace shardlens::train {

// metrics.jsonl: one JSON object a line and step, flushed at once so that a run can be followed:
// {"step", "loss", "grad_norm", "step_ms", "tokens_per_s", "unsharded_bytes"}; an emulated run has
// no loss and says "numerics": "emulated"; an fp16 run has "loss_scale" and "skipped" too, one on a
// device "allocated_bytes" and "peak_allocated_bytes".
// Errors: RuntimeFault naming the path and the system's reason.
class MetricsFile {
 public:
  MetricsFile(const std::filesystem::path& path, bool emulated);
  void write(const StepReport& report);

 private:
  std::filesystem::path path_;
  bool emulated_;
  std::ofstream out_;
};

}  // namespace shardlens::train
