#pragma once

#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::gui {

// A GPU's trace by hand: the host launches "a" in nested operators, waits for the device, launches
// "b" late, then "c", "d" and a copy at once.
inline trace::Trace small_gpu_trace() {
  using trace::Category;
  test::TraceBuilder b;
  b.op("aten::linear", 100, 200);
  b.op("aten::addmm", 110, 190);
  b.device(Category::kKernel, "a", 7, 150, 300, 400);
  b.op("aten::item", 450, 690);
  b.op("aten::_local_scalar_dense", 460, 680);
  b.op("aten::mul", 700, 790);
  b.device(Category::kKernel, "b", 7, 750, 760, 800);
  b.op("aten::add", 800, 890);
  b.device(Category::kKernel, "c", 7, 810, 820, 1000);
  b.device(Category::kKernel, "d", 7, 850, 1000, 1200);
  b.device(Category::kGpuMemcpy, "Memcpy HtoD", 8, 860, 1300, 1400);
  return b.finish();
}

}  // namespace shardlens::gui
