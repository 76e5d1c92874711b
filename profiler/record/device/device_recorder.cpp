#include "profiler/record/device/device_recorder.h"

#include <atomic>

namespace shardlens::record {
namespace {

// See [Note: Threads that launch].
std::atomic<uint32_t> current_owner{0};
std::atomic<DeviceTracer*> active{nullptr};
// Counts changes of `active`: marks that a thread set on an earlier tracer are void.
std::atomic<uint32_t> generation{0};

void take_over_owner() {
  thread_local uint32_t pushed = 0, pushed_generation = 0;
  const uint32_t owner = current_owner.load(std::memory_order_relaxed);
  const uint32_t now = generation.load(std::memory_order_relaxed);
  if (pushed_generation != now) {
    pushed = 0;
    pushed_generation = now;
  }
  DeviceTracer* tracer = active.load(std::memory_order_acquire);
  if (owner == pushed || tracer == nullptr) {
    return;
  }
  if (pushed != 0) {
    tracer->pop();
  }
  if (owner != 0) {
    tracer->push(owner);
  }
  pushed = owner;
}

}  // namespace

DeviceRecorder::DeviceRecorder(SpoolRecorder& next, DeviceTracer* tracer)
    : ForwardingRecorder(&next), spool_(next), tracer_(tracer) {
  if (tracer_ != nullptr) {
    current_owner = 0;
    ++generation;
    active.store(tracer_, std::memory_order_release);
    spool_.set_launch_listener(take_over_owner);
  }
}

DeviceRecorder::~DeviceRecorder() {
  if (tracer_ != nullptr) {
    spool_.set_launch_listener(nullptr);
    active.store(nullptr, std::memory_order_release);
  }
}

void DeviceRecorder::follow() {
  if (tracer_ != nullptr && enabled_) {
    current_owner.store(external_id_of(owners_.owner()), std::memory_order_relaxed);
    take_over_owner();
  }
}

void DeviceRecorder::step_begin(int64_t step) {
  ForwardingRecorder::step_begin(step);
  owners_.step_begin();
  if (tracer_ == nullptr) {
    return;
  }
  const bool wanted = spool_.recording();
  idle_steps_ = wanted ? 0 : idle_steps_ + 1;
  if (wanted && !enabled_) {
    tracer_->enable(true);
    enabled_ = true;
  }
  if (wanted != in_window_) {
    in_window_ = wanted;
    wanted ? tracer_->begin_window() : tracer_->end_window();
  }
  if (enabled_ && idle_steps_ == 2) {
    tracer_->enable(false);
    enabled_ = false;
  }
  follow();
}

void DeviceRecorder::step_end() {
  owners_.step_begin();
  follow();
  if (enabled_) {
    tracer_->flush();
  }
  ForwardingRecorder::step_end();
}

uint32_t DeviceRecorder::hook(const HookEvent& event) {
  owners_.hook(event);
  follow();
  return ForwardingRecorder::hook(event);
}

void DeviceRecorder::range_begin(Range range, UnitId unit) {
  ForwardingRecorder::range_begin(range, unit);
  owners_.range_begin(range, unit);
  follow();
}

void DeviceRecorder::range_end() {
  owners_.range_end();
  follow();
  ForwardingRecorder::range_end();
}

}  // namespace shardlens::record
