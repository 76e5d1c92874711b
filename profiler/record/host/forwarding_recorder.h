#pragma once

#include <span>
#include <string>

#include "core/base/recorder.h"

namespace shardlens::record {

// Forwards every call to another recorder, if there is one; a base class for recorders that add
// something.
//
// Ownership   `next` must outlive this recorder.
class ForwardingRecorder : public Recorder {
 public:
  explicit ForwardingRecorder(Recorder* next) : next_(next) {}

  void units(std::span<const std::string> fqns) override {
    if (next_ != nullptr) {
      next_->units(fqns);
    }
  }
  void groups(std::span<const std::string> names) override {
    if (next_ != nullptr) {
      next_->groups(names);
    }
  }
  void step_begin(int64_t step) override {
    if (next_ != nullptr) {
      next_->step_begin(step);
    }
  }
  void step_end() override {
    if (next_ != nullptr) {
      next_->step_end();
    }
  }
  uint32_t hook(const HookEvent& event) override {
    return next_ == nullptr ? 0 : next_->hook(event);
  }
  void action(uint32_t seq, const schedule::Action& action) override {
    if (next_ != nullptr) {
      next_->action(seq, action);
    }
  }
  void range_begin(Range range, UnitId unit) override {
    if (next_ != nullptr) {
      next_->range_begin(range, unit);
    }
  }
  void range_end() override {
    if (next_ != nullptr) {
      next_->range_end();
    }
  }
  void collective(const CollectiveRecord& record) override {
    if (next_ != nullptr) {
      next_->collective(record);
    }
  }

 private:
  Recorder* next_;
};

}  // namespace shardlens::record
