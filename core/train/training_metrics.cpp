#include "core/train/training_metrics.h"

#include <cerrno>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::train {
namespace {

// JSON has no infinity and no NaN.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, bool emulated)
    : path_(path), emulated_(emulated) {
  errno = 0;
  out_.open(path, std::ios::trunc);
  if (!out_) {
    throw RuntimeFault(fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)));
  }
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
  out_
      << fmt::format(
             R"({{"step": {}, {}, "grad_norm": {}{}, "step_ms": {}, "tokens_per_s": {}, "unsharded_bytes": {}{}}})",
             report.step, numerics, number(report.grad_norm), scale, number(report.step_ms),
             number(report.tokens_per_s), report.unsharded_bytes, memory)
      << '\n'
      << std::flush;
  if (!out_) {
    throw RuntimeFault(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
  }
}

}  // namespace shardlens::train
