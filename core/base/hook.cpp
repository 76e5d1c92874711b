#include "core/base/hook.h"

#include <array>

namespace shardlens {
namespace {
constexpr std::array<std::string_view, kHookCount> kNames{
    "root_pre_forward", "pre_forward",  "post_forward",   "pre_backward",
    "grads_ready",      "backward_end", "optimizer_done", "unshard",
    "wait_unshard",     "reshard",      "abort"};
constexpr std::array<std::string_view, kGradsCount> kGradsNames{"none", "some", "all", "last",
                                                                "others"};
}  // namespace

std::string_view name_of(Hook hook) {
  return kNames[static_cast<size_t>(hook)];
}

std::string_view name_of(Grads grads) {
  return kGradsNames[static_cast<size_t>(grads)];
}

std::optional<Grads> parse_grads(std::string_view name) {
  for (size_t i = 0; i < kGradsNames.size(); ++i) {
    if (kGradsNames[i] == name) {
      return static_cast<Grads>(i);
    }
  }
  return std::nullopt;
}

std::optional<Hook> parse_hook(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) {
      return static_cast<Hook>(i);
    }
  }
  return std::nullopt;
}

}  // namespace shardlens
