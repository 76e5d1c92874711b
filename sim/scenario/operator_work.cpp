#include "sim/scenario/operator_work.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <tuple>

#include "core/schedule/planned/planned.h"
#include "sim/cost/gemm_model.h"

namespace shardlens::sim {
namespace {

// Sums operators by what they are.
class WorkSums {
 public:
  explicit WorkSums(const std::vector<std::string>& units) : units_(units) {}
  void add(const plan::Operator& op, double time, double share) {
    const std::string unit = op.unit < units_.size() ? units_[op.unit] : std::string();
    const auto [at, is_new] = rows_.try_emplace(
        {unit, op.module, op.phase, op.kind, op.name, op.dtype, op.matmul_dtype}, list_.size());
    if (is_new) {
      list_.push_back({unit, op.module, op.phase, op.kind, op.name, op.dtype, op.matmul_dtype});
    }
    OperatorWork& row = list_[at->second];
    row.count += share;
    const bool half = op.kind == plan::OperatorKind::kAttention && op.causal;
    row.flops += share * static_cast<double>(op.flops) * (half ? 0.5 : 1);
    row.bytes += share * static_cast<double>(op.read + op.written);
    row.time += share * time;
  }
  [[nodiscard]] std::vector<OperatorWork> take() { return std::move(list_); }

 private:
  using Key = std::tuple<std::string,
                         std::string,
                         plan::Phase,
                         plan::OperatorKind,
                         std::string,
                         DType,
                         std::optional<plan::MatmulDType>>;
  const std::vector<std::string>& units_;
  std::map<Key, size_t> rows_;
  std::vector<OperatorWork> list_;
};

// The words of a device's name, in capitals: "NVIDIA", "A100", "SXM4", "80GB".
std::vector<std::string> device_words(std::string_view name) {
  std::vector<std::string> out(1);
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out.back() += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    } else if (!out.back().empty()) {
      out.emplace_back();
    }
  }
  return out;
}

// What distinguishes a GPU of a spec: "H100" of "H100 SXM5 80GB"; "RTX", "PRO", "6000".
std::vector<std::string> gpu_type_words(const GpuSpec& gpu) {
  std::vector<std::string> out = device_words(gpu.name);
  out.resize(out.front() == "RTX" ? std::min<size_t>(out.size(), 3) : 1);
  return out;
}

}  // namespace

std::vector<OperatorWork> measured_work(const Observation& observation) {
  WorkSums sums(observation.planned.unit_names);
  using Kind = schedule::PlannedItem::Kind;
  const double share = 1 / std::max<double>(1, static_cast<double>(observation.steps.size()));
  for (const ObservedStep& step : observation.steps) {
    const size_t items = std::min(step.items.size(), observation.planned.order.size());
    for (size_t i = 0; i < items; ++i) {
      const schedule::PlannedItem& item = observation.planned.order[i];
      if (item.kind == Kind::kOperator && step.items[i].run >= 0) {
        sums.add(observation.workload.operators[item.index], static_cast<double>(step.items[i].run),
                 share);
      }
    }
  }
  return sums.take();
}

std::vector<OperatorWork> simulated_work(const Prediction& prediction) {
  const schedule::PlannedStep& step = *prediction.priced.planned;
  WorkSums sums(step.unit_names);
  const std::vector<ItemTimes>& items = prediction.step.ranks.front().items;
  for (size_t i = 0; i < std::min(items.size(), step.order.size()); ++i) {
    const schedule::PlannedItem& item = step.order[i];
    if (item.kind == schedule::PlannedItem::Kind::kOperator && items[i].stream.start >= 0) {
      sums.add(prediction.priced.workload->operators[item.index],
               static_cast<double>(items[i].stream.end - items[i].stream.start), 1);
    }
  }
  return sums.take();
}

LeastTime least_time(const OperatorWork& work, const GpuSpec& gpu) {
  const double tflops =
      work.matmul_dtype ? tflops_of(gpu, *work.matmul_dtype) : peak_tflops(gpu, work.dtype);
  // 1 TFLOP/s is 1e3 operations per nanosecond, 1 GB/s one byte.
  return {tflops > 0 ? work.flops / (tflops * 1e3) : 0,
          gpu.memory_gbps > 0 ? work.bytes / gpu.memory_gbps : 0};
}

std::optional<HardwareSpec> hardware_of_device(std::string_view device, Bytes memory) {
  const std::vector<std::string> words = device_words(device);
  const auto has = [&words](const std::string& word) {
    return std::ranges::find(words, word) != words.end();
  };
  std::optional<HardwareSpec> out;
  if (has("PCIE") || has("NVL")) {
    return out;  // slower than the boards of the specs
  }
  const auto order = [memory](const HardwareSpec& spec) {
    const auto ratio = static_cast<double>(spec.gpu.memory) / static_cast<double>(memory);
    return std::pair(memory > 0 ? std::abs(std::log(ratio)) : 0, -spec.gpus);
  };
  for (const std::string& name : hardware_names()) {
    HardwareSpec spec = load_hardware(name);
    if (std::ranges::all_of(gpu_type_words(spec.gpu), has) && (!out || order(spec) < order(*out))) {
      out = std::move(spec);
    }
  }
  return out;
}

}  // namespace shardlens::sim
