#pragma once

#include <c10/core/Device.h>

namespace shardlens::dist {

// A device without an index is every device of its type: "cuda" is the same as "cuda:1".
[[nodiscard]] inline bool same_device(c10::Device some, c10::Device other) {
  return some.type() == other.type() &&
         (!some.has_index() || !other.has_index() || some.index() == other.index());
}

}  // namespace shardlens::dist
