#include "profiler/record/device/owner_tracker.h"

#include <algorithm>

namespace shardlens::record {

using trace::Owner;
using trace::Section;

void OwnerTracker::step_begin() {
  forward_.clear();
  backward_.clear();
  ranges_.clear();
  gathered_.clear();
  stage_ = Section::kNone;
}

void OwnerTracker::hook(const HookEvent& event) {
  if (event.recompute) {
    return;  // a forward that a checkpoint repeats belongs to its unit's backward
  }
  switch (event.hook) {
    case Hook::kPreForward:
      backward_.clear();
      std::erase(forward_, event.unit);
      forward_.push_back(event.unit);
      stage_ = Section::kForward;
      break;
    case Hook::kPostForward:
      std::erase(forward_, event.unit);
      stage_ = forward_.empty() ? Section::kLoss : Section::kForward;
      break;
    case Hook::kPreBackward:
      forward_.clear();
      std::erase(backward_, event.unit);
      backward_.push_back(event.unit);
      stage_ = Section::kBackward;
      break;
    case Hook::kGradsReady:
      // The unit's reduction still belongs to it, through the range of the reduction: see
      // range_begin().
      std::erase(backward_, event.unit);
      break;
    case Hook::kBackwardEnd:
    case Hook::kAbort:
      forward_.clear();
      backward_.clear();
      stage_ = Section::kNone;
      break;
    default:
      break;
  }
}

void OwnerTracker::range_begin(Range range, UnitId unit) {
  const bool of_unit = range == Range::kAllGather || range == Range::kAllGatherCopyOut ||
                       range == Range::kPostBackwardReshard || range == Range::kPostBackwardReduce;
  ranges_.push_back(range);
  gathered_.push_back(of_unit ? unit : kNoUnit);
}

void OwnerTracker::range_end() {
  if (!ranges_.empty()) {
    ranges_.pop_back();
    gathered_.pop_back();
  }
}

Owner OwnerTracker::owner() const {
  for (size_t i = ranges_.size(); i-- > 0;) {
    if (ranges_[i] == Range::kOptimizer) {
      return {Section::kOptimizer, kNoUnit};
    }
    if (ranges_[i] == Range::kClip) {
      return {Section::kClip, kNoUnit};
    }
    if (gathered_[i] != kNoUnit) {
      const bool forward = stage_ == Section::kForward || stage_ == Section::kNone;
      return {forward ? Section::kForward : Section::kBackward, gathered_[i]};
    }
  }
  switch (stage_) {
    case Section::kForward:
      return {stage_, forward_.empty() ? 0 : forward_.back()};
    case Section::kBackward:
      return {stage_, backward_.empty() ? 0 : backward_.back()};
    case Section::kLoss:
      return {stage_, kNoUnit};
    default:
      return {};
  }
}

}  // namespace shardlens::record
