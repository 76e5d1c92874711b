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

// Maps each stream and event of the schedule to one of a device, through LibTorch's
// device-independent interface. Priorities are those of PyTorch FSDP2: high for copy-in, all-gather
// and reduce-scatter, default for the all-reduce. The compute stream is the thread's current stream
// at the last enter().
//
// [Note: Memory of two streams] When a block is freed, a caching allocator immediately reuses it on
// the stream that it was allocated on. If another stream still reads the block, it must be kept
// until the first stream is ordered after this read. retire() keeps it, and the waits that the
// schedule issues anyway release it. So the memory in flight depends only on the schedule; with
// Tensor::record_stream() it would depend on the speed of the device. A block is also released when
// a query shows that the device has finished with it.
//
// Threads  the thread that trains, or threads that are serialised with it.
// Errors   RuntimeFault from host_wait() and drain() after `timeout`.
class DeviceStreams {
 public:
  DeviceStreams(c10::Device device, std::chrono::milliseconds timeout);
  ~DeviceStreams();
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  // Makes the thread's current stream the compute stream. If it is another one than before, it is
  // put behind that one, because memory and events of the compute stream refer to both.
  void enter();
  [[nodiscard]] c10::Stream of(schedule::Stream stream) const { return *streams_[index(stream)]; }
  // Call when work was issued on `stream`.
  void issued(schedule::Stream stream) { ++position(stream)[index(stream)]; }
  void record(schedule::EventId event, schedule::Stream stream);
  void wait(schedule::EventId event, schedule::Stream stream);
  // Later work on `stream` runs after all earlier work on `before`.
  void order(schedule::Stream stream, schedule::Stream before);
  void host_wait(schedule::EventId event);
  void wait_on_host(schedule::Stream stream);  // for all work of the stream
  // Number of pieces of work issued on `stream` until now.
  [[nodiscard]] uint64_t now(schedule::Stream stream) { return position(stream)[index(stream)]; }
  // Keeps `memory`, allocated on `first` and last used on `last`, as [Note: Memory of two streams]
  // describes. `used`: now(last) when the last use was issued; nullopt: it may have been just now.
  void retire(std::shared_ptr<void> memory,
              schedule::Stream first,
              schedule::Stream last,
              std::optional<uint64_t> used = std::nullopt);
  // Releases what the waits so far, or queries, show that the device has finished with.
  void let_go();
  // Waits for all streams and releases all kept memory.
  void drain();
  [[nodiscard]] size_t held() const { return held_.size(); }

 private:
  // By stream: position in its work after which something is ordered.
  using Clock = std::array<uint64_t, schedule::kStreamCount>;
  struct Recorded {
    std::optional<c10::Event> event;
    Clock clock{};
  };
  struct Held {
    std::shared_ptr<void> memory;
    schedule::Stream first, last;
    uint64_t position = 0;  // position in `last` at retire()
    c10::Event through;
  };
  static size_t index(schedule::Stream stream) { return static_cast<size_t>(stream); }
  Clock& position(schedule::Stream stream) { return clocks_[index(stream)]; }
  void record(Recorded& recorded, schedule::Stream stream);
  void wait(const Recorded& recorded, schedule::Stream stream);
  void wait_on_host(const c10::Event& event) const;

  c10::Device device_;
  std::chrono::milliseconds timeout_;
  std::array<std::optional<c10::Stream>, schedule::kStreamCount> streams_;  // all have values
  std::array<Clock, schedule::kStreamCount> clocks_{};
  std::vector<Recorded> events_;  // by EventId
  std::vector<Held> held_;
};

}  // namespace shardlens::fsdp
