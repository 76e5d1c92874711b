#pragma once

#include <string_view>
#include <utility>

#include <QString>

#include "gui/model/base/shown_text.h"
#include "gui/model/run/run_data.h"

namespace shardlens::gui {

[[nodiscard]] inline QString table_text(std::string_view view) {
  return shown_text(view);
}

// `run` if it has the rank, else nullptr.
[[nodiscard]] inline RunPointer with_rank(RunPointer run, size_t rank) {
  return run != nullptr && rank < run->ranks.size() ? std::move(run) : nullptr;
}

}  // namespace shardlens::gui
