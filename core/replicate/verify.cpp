#include "core/replicate/verify.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "core/base/error.h"

namespace shardlens::replicate {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// All-gathers `values` (the same length on every rank), int64 [ranks][values].
std::vector<std::vector<int64_t>> gather(const Group& group, const std::vector<int64_t>& values) {
  const c10::Device device(group->getDeviceTypes().front());
  std::vector<at::Tensor> input{at::empty({static_cast<int64_t>(values.size())}, at::kLong)};
  std::copy(values.begin(), values.end(), input[0].mutable_data_ptr<int64_t>());
  input[0] = input[0].to(device);
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    outputs[0].push_back(at::empty_like(input[0]));
  }
  group->allgather(outputs, input)->wait();
  std::vector<std::vector<int64_t>> rows;
  for (const at::Tensor& each : outputs[0]) {
    const at::Tensor row = each.cpu();
    const auto* data = row.const_data_ptr<int64_t>();
    rows.emplace_back(data, data + row.numel());
  }
  return rows;
}

// For each parameter: its number of dimensions, then its sizes.
std::vector<int64_t> shapes_of(const std::vector<NamedParameter>& parameters) {
  std::vector<int64_t> shapes;
  for (const NamedParameter& each : parameters) {
    shapes.push_back(each.tensor.dim());
    shapes.insert(shapes.end(), each.tensor.sizes().begin(), each.tensor.sizes().end());
  }
  return shapes;
}

std::vector<std::vector<int64_t>> split(const std::vector<int64_t>& shapes, int64_t count) {
  std::vector<std::vector<int64_t>> out;
  for (size_t at = 0; static_cast<int64_t>(out.size()) < count;) {
    const auto begin = shapes.begin() + static_cast<std::ptrdiff_t>(at) + 1;
    out.emplace_back(begin, begin + shapes[at]);
    at += static_cast<size_t>(shapes[at]) + 1;
  }
  return out;
}

[[noreturn]] void fail(const Group& group, const std::string& message) {
  throw UsageError(fmt::format("[rank {}] replicate: {}", group->getRank(), message));
}

// c10d's own check broadcasts one buffer with all sizes and strides, so their number must be equal.
// It never fails on rank 0, which would then wait for ranks that failed.
void verify_shapes(const Group& group, const std::vector<NamedParameter>& parameters) {
  std::vector<int64_t> shapes = shapes_of(parameters);
  const auto numbers =
      gather(group, {static_cast<int64_t>(parameters.size()), static_cast<int64_t>(shapes.size())});
  int64_t longest = 0;
  for (const auto& row : numbers) {
    longest = std::max(longest, row[1]);
  }
  shapes.resize(static_cast<size_t>(longest));
  const auto rows = gather(group, shapes);
  const auto differs = [&](size_t rank) {
    return numbers[rank] != numbers[0] || rows[rank] != rows[0];
  };
  size_t other = 0;
  for (size_t rank = 1; rank < rows.size() && other == 0; ++rank) {
    other = differs(rank) ? rank : 0;
  }
  if (other == 0) {
    return;
  }
  try {  // a barrier: every rank gets the difference before any rank ends; the last ones may fail
    gather(group, {0});
  } catch (const RuntimeFault&) {
  }
  const auto self = static_cast<size_t>(group->getRank());
  const size_t peer = self != 0 && differs(self) ? 0 : other;
  const auto ours = split(rows[self], numbers[self][0]);
  const auto theirs = split(rows[peer], numbers[peer][0]);
  size_t i = 0;
  while (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) {
    ++i;
  }
  const auto shown = [&](const std::vector<std::vector<int64_t>>& of) {
    return i < of.size() ? fmt::format("of shape [{}]", fmt::join(of[i], ", ")) : "missing";
  };
  fail(group, fmt::format("parameter {} ({}) is {} here and {} on rank {}; this rank has {} "
                          "parameters, the other rank {}",
                          i, i < parameters.size() ? "'" + parameters[i].name + "'" : "none",
                          shown(ours), shown(theirs), peer, ours.size(), theirs.size()));
}

}  // namespace

void verify_parameters(const Group& group, const std::vector<NamedParameter>& parameters) {
  verify_shapes(group, parameters);
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& each : parameters) {
    tensors.push_back(each.tensor);
  }
  try {
    c10d::verify_params_across_processes(group, tensors, std::nullopt);
  } catch (const c10::Error& error) {
    // The message names parameters by index: "params[3] in this process with sizes …".
    std::string message = error.what_without_backtrace();
    const size_t at = message.find("params[");
    size_t index = 0;
    if (at != std::string::npos) {
      const char* const digits = message.data() + at + 7;
      std::from_chars(digits, message.data() + message.size(), index);
      const size_t close = message.find(']', at);
      if (index < parameters.size() && close != std::string::npos) {
        message.replace(at, close + 1 - at, "parameter '" + parameters[index].name + "'");
      }
    }
    fail(group, message);
  }
}

}  // namespace shardlens::replicate
