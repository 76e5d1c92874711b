#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/base/collective.h"
#include "core/base/hook.h"
#include "core/schedule/action.h"

namespace shardlens::record {

// A rank's present activity, for a supervisor that reads it after the rank died or while it hangs.
struct RankNow {
  int64_t step = -1;                  // -1: before the first
  int64_t issued = 0, completed = 0;  // number of the schedule's collectives
  std::string hook_unit;              // FQN of the unit that raised `hook`; "": the root
  std::string unit;                   // unit of the action
  std::string waits_for_unit;
  std::string last_completed_unit;
  uint32_t action = 0;  // seq of the last action; 0: none yet
  schedule::Op op = schedule::Op::kAlloc;
  schedule::Stream stream = schedule::Stream::kCompute;
  std::optional<Hook> hook;  // last one raised
  // What the training thread's last action waits for: the last collective that was issued before
  // the awaited event was recorded.
  std::optional<schedule::Op> waits_for;
  std::optional<CollectiveKind> last_completed;
  bool in_step = false;
  bool finished = false;  // the run ended normally
  bool torn = false;      // the rank died while writing this

  // "step 7, hook pre_backward (layers.3), action 214 stream_wait (layers.3) waiting for all_gather
  // (layers.3); 12 of 13 collectives complete, the last was all_gather (layers.2)".
  [[nodiscard]] std::string sentence() const;
};

// nullopt if there is no such file or it is not a .now page. Can be read while the rank runs and
// after it died.
[[nodiscard]] std::optional<RankNow> read_rank_now(const std::filesystem::path& path);

// DIR/rank<r>.now and DIR/rank<r>.spool.
[[nodiscard]] std::filesystem::path now_path(const std::filesystem::path& directory, int rank);
[[nodiscard]] std::filesystem::path spool_path(const std::filesystem::path& directory, int rank);

}  // namespace shardlens::record
