#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "core/schedule/action.h"

namespace shardlens::fsdp {

// The schedule's streams and events on a device, one to one, through LibTorch's device-independent
// interface. Priorities are PyTorch FSDP2's: copy-in, all-gather and reduce-scatter high, the
// all-reduce's the default. The compute stream is the thread's current one at enter().
//
// [Note: Memory of two streams] A caching allocator gives a block back to the stream that it was
// allocated on, at once. One that another stream still reads must be held until the first is
// ordered behind that: retire() holds it, and the waits that the schedule issues anyway let it go.
// So the bytes in flight follow from the schedule alone, where Tensor::record_stream() leaves them
// to how fast the device was. A block is also let go once the device is seen to be through with it.
//
// Threads  the thread that trains, or what is serialised with it.
// Errors   RuntimeFault from host_wait() and drain() after `timeout`.
class DeviceStreams {
 public:
  DeviceStreams(c10::Device device, std::chrono::milliseconds timeout);
  ~DeviceStreams();
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  void enter();
  [[nodiscard]] c10::Stream of(schedule::Stream stream) const { return *streams_[index(stream)]; }
  // Work was issued on `stream`.
  void issued(schedule::Stream stream) { ++position(stream)[index(stream)]; }
  void record(schedule::EventId event, schedule::Stream stream);
  void wait(schedule::EventId event, schedule::Stream stream);
  // What is issued on `stream` from here on runs after what was issued on `before`.
  void order(schedule::Stream stream, schedule::Stream before);
  void host_wait(schedule::EventId event);
  // Holds `memory`, allocated on `first` and used last on `last`, as long as the note says.
  void retire(std::shared_ptr<void> memory, schedule::Stream first, schedule::Stream last);
  // Waits for all streams and holds nothing any more.
  void drain();
  [[nodiscard]] size_t held() const { return held_.size(); }

 private:
  // Per stream, how much of its work something is ordered behind.
  using Clock = std::array<uint64_t, schedule::kStreamCount>;
  struct Recorded {
    std::optional<c10::Event> event;
    Clock clock{};
  };
  struct Held {
    std::shared_ptr<void> memory;
    schedule::Stream first, last;
    uint64_t position = 0;  // of `last`, when it was retired
    c10::Event through;
  };
  static size_t index(schedule::Stream stream) { return static_cast<size_t>(stream); }
  Clock& position(schedule::Stream stream) { return clocks_[index(stream)]; }
  void record(Recorded& recorded, schedule::Stream stream);
  void wait(const Recorded& recorded, schedule::Stream stream);
  void wait_on_host(const c10::Event& event) const;
  void let_go();

  c10::Device device_;
  std::chrono::milliseconds timeout_;
  std::array<std::optional<c10::Stream>, schedule::kStreamCount> streams_;  // all there
  std::array<Clock, schedule::kStreamCount> clocks_{};
  std::vector<Recorded> events_;  // by EventId
  std::vector<Held> held_;
};

}  // namespace shardlens::fsdp
