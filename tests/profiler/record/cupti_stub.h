#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <cupti.h>

#include "tests/profiler/record/cupti_bytes.h"

namespace shardlens::record {

// In place of CUPTI's library: the program that links cupti_stub.cpp has CUPTI's functions, and
// what the device did is what a test says. Records go through the callbacks that the tracer
// registered, as buffers that the tracer gave.
//
// Threads  any; callbacks run without the stub's lock.
class CuptiStub {
 public:
  static CuptiStub& get();
  // Forgets everything but the buffers that it still has.
  void reset();

  // A buffer of the tracer with records, not delivered yet.
  struct Batch {
    uint8_t* buffer = nullptr;  // null: the tracer had none, and the records are lost
    size_t capacity = 0, valid = 0;
    bool running = false;
    bool delivered = false;
  };
  // Asks for a buffer and fills it. `running`: the device is still at it, so a flush leaves it
  // alone; a forced one delivers its kernels without times. Returns the batch's number.
  size_t fill(Buffer records, bool running = false);
  // Hands a batch to the tracer, whether or not it was delivered already.
  void deliver(size_t batch);
  void deliver_stale(uint8_t* buffer, size_t capacity);
  // The device becomes idle.
  void finish_running();
  [[nodiscard]] Batch batch(size_t number);

  // Settings.
  bool flush_in_reverse = false;
  bool hold = false;               // flushes deliver nothing
  std::string subscriber;          // another tool that holds the subscription; "": none
  std::function<void()> on_flush;  // called in every flush, before it delivers

  // What the tracer did.
  [[nodiscard]] bool enabled(CUpti_ActivityKind kind);
  int64_t flushes = 0, forced = 0;
  // Buffers that the tracer says are zero, and how many of those that it gave were not.
  bool zeroed = false;
  int64_t dirty = 0;

  // CUPTI's functions.
  CUptiResult subscribe(CUpti_SubscriberParams* params);
  void register_callbacks(CUpti_BuffersCallbackRequestFunc request,
                          CUpti_BuffersCallbackCompleteFunc complete);
  void enable(CUpti_ActivityKind kind, bool on);
  void flush(bool force);
  size_t take_dropped();

 private:
  std::mutex mutex_;  // guards the members below
  CUpti_BuffersCallbackRequestFunc request_ = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete_ = nullptr;
  std::vector<Batch> batches_;
  std::vector<bool> enabled_;
  size_t dropped_ = 0;
};

}  // namespace shardlens::record
