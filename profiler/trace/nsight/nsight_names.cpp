#include "profiler/trace/nsight/nsight_names.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace shardlens::trace {
namespace {

template <size_t N>
std::string_view word(const std::array<std::string_view, N>& words, int64_t value) {
  return value >= 0 && value < static_cast<int64_t>(N) ? words[static_cast<size_t>(value)]
                                                       : "Unknown";
}

// ENUM_CUDA_MEM_KIND, in Kineto's words.
constexpr std::array<std::string_view, 7> kMemory{
    "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static"};

}  // namespace

std::string_view without_version(std::string_view call) {
  const size_t version = call.rfind("_v");
  if (version != std::string_view::npos && version + 2 < call.size() &&
      call.find_first_not_of("0123456789", version + 2) == std::string_view::npos) {
    call = call.substr(0, version);
  }
  for (const std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (call.ends_with(suffix)) {
      call.remove_suffix(suffix.size());
    }
  }
  return call;
}

NvtxRange parse_nvtx(std::string_view text) {
  constexpr std::array<std::string_view, 4> kParts{
      ", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = "};
  size_t end = text.size();
  for (const std::string_view part : kParts) {
    end = std::min(end, text.find(part));
  }
  NvtxRange out{.name = text.substr(0, end), .sizes = {}};
  const size_t sizes = text.find(", sizes = [");
  if (sizes != std::string_view::npos) {
    const size_t begin = sizes + std::string_view(", sizes = ").size();
    int depth = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
      if (depth == 0) {
        out.sizes = text.substr(begin, i + 1 - begin);
        break;
      }
    }
  }
  return out;
}

std::optional<int64_t> step_of_range(std::string_view name) {
  for (const std::string_view prefix :
       {"ProfilerStep", "train_step", "training_step", "iteration", "step", "iter"}) {
    if (!name.starts_with(prefix)) {
      continue;
    }
    std::string_view number = name.substr(prefix.size());
    number.remove_prefix(std::min(number.find_first_not_of(" _#:"), number.size()));
    int64_t out = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out);
    if (error == std::errc() && end == number.data() + number.size() && out >= 0) {
      return out;
    }
  }
  return std::nullopt;
}

std::string copy_name(int64_t copy_kind, int64_t source, int64_t destination) {
  // ENUM_CUDA_MEMCPY_OPER
  constexpr std::array<std::string_view, 11> kKinds{
      "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"};
  return fmt::format("Memcpy {} ({} -> {})", word(kKinds, copy_kind), word(kMemory, source),
                     word(kMemory, destination));
}

std::string memset_name(int64_t memory) {
  return fmt::format("Memset ({})", word(kMemory, memory));
}

}  // namespace shardlens::trace
