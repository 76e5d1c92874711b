#pragma once

#include <filesystem>

#include "core/files/output_file.h"
#include "core/train/trainer.h"

namespace shardlens::train {

// Writes metrics.jsonl: one line with a JSON object per step, flushed at once so that a run can be
// followed: {"step", "loss", "grad_norm", "step_ms", "tokens_per_s", "unsharded_bytes"}. An
// emulated run has "numerics": "emulated" instead of "loss"; an fp16 run also has "loss_scale" and
// "skipped"; a run on a device also has "allocated_bytes" and "peak_allocated_bytes". Errors:
// RuntimeFault naming the path and the system's reason.
class MetricsFile {
 public:
  MetricsFile(const std::filesystem::path& path, bool emulated);
  void write(const StepReport& report);

 private:
  OutputFile file_;
  bool emulated_;
};

}  // namespace shardlens::train
