#include "core/train/training_metrics.h"

#include <cmath>

#include <fmt/format.h>

#include "core/files/output_folder.h"

namespace shardlens::train {
namespace {

// JSON has no infinity and no NaN.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, bool emulated)
    : file_(OutputFile::temporary(OutputFolder::of(path), path.filename().string())),
      emulated_(emulated) {
  file_.publish(path.filename().string());
}

void MetricsFile::write(const StepReport& report) {
  const std::string numerics =
      emulated_ ? R"("numerics": "emulated")" : fmt::format(R"("loss": {})", number(report.loss));
  const std::string scale = report.loss_scale
                                ? fmt::format(R"(, "loss_scale": {}, "skipped": {})",
                                              number(*report.loss_scale), report.skipped)
                                : "";
  const std::string memory =
      report.memory
          ? fmt::format(R"(, "allocated_bytes": {}, "peak_allocated_bytes": {})",
                        report.memory->allocated_bytes, report.memory->peak_allocated_bytes)
          : "";
  file_.write(fmt::format(
      R"({{"step": {}, {}, "grad_norm": {}{}, "step_ms": {}, "tokens_per_s": {}, "unsharded_bytes": {}{}}})"
      "\n",
      report.step, numerics, number(report.grad_norm), scale, number(report.step_ms),
      number(report.tokens_per_s), report.unsharded_bytes, memory));
}

}  // namespace shardlens::train
