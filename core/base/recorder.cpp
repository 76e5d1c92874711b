#include "core/base/recorder.h"

#include <array>

namespace shardlens {
namespace {
struct RangeRow {
  std::string_view name;
  bool unit;
};
constexpr std::array<RangeRow, kRangeCount> kRangeRows{{
    {"FSDP::root_pre_forward", false},
    {"FSDP::pre_forward", true},
    {"FSDP::all_gather", true},
    {"FSDP::all_gather_copy_out", true},
    {"FSDP::post_forward", true},
    {"FSDP::pre_backward", true},
    {"FSDP::post_backward_reshard", true},
    {"FSDP::post_backward_reduce", true},
    {"FSDP::root_post_backward_callback", false},
    {"Optimizer.step", false},
    {"shardlens::forward", false},
    {"shardlens::backward", false},
    {"shardlens::clip_grad_norm", false},
}};
}  // namespace

std::string_view name_of(Range range) {
  return kRangeRows[static_cast<size_t>(range)].name;
}
bool names_unit(Range range) {
  return kRangeRows[static_cast<size_t>(range)].unit;
}

}  // namespace shardlens
