#pragma once

#include <cstdint>
#include <optional>

#include <QString>

#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// Why a device had nothing to do in RankData::idle()[index].
struct IdleReason {
  // The operator or call that the launching thread spent most of the time in; kNoIndex: in none.
  uint32_t host = trace::kNoIndex;
  // Position in Timeline::device_events of the event that ended the idle time; nullopt: none.
  std::optional<size_t> ended_by;
};
[[nodiscard]] IdleReason idle_reason(const RankData& rank, uint32_t index);

[[nodiscard]] QString idle_words(analysis::IdleCause cause);        // "host late"
[[nodiscard]] QString idle_explanation(analysis::IdleCause cause);  // a sentence
// What is written in the lane: "host late: aten::item".
[[nodiscard]] QString idle_text(const RankData& rank, uint32_t index);

}  // namespace shardlens::gui
