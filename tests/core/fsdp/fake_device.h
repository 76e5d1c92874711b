#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace torch::nn {
class Module;
}

namespace shardlens::test {

// A device for tests; its memory is host memory.
//
// [Note: Teeth] After start_device() operators and collectives on its tensors are queued on the
// current stream, and run late: when the host waits for them, or earlier, at the device's own
// choice. Nothing but streams and events orders them. The seed determines for each stream whether
// it runs as soon as it can, only when something waits for it, or at random. A caching allocator
// has one pool for each stream, as CUDA's has. Memory that is freed is the first to be allocated
// again, and the next allocation on its stream fills it with NaN, as its new owner could. So work
// that an event should have ordered reads NaN with some seed. Every wait of the host is counted.
//
// Without teeth (before start_device() and after stop_device()) there are no queues: a test reads
// the log of operations on streams, and decides itself whether events are complete.
//
// Threads  any: autograd's thread of the device issues work too.
inline const c10::Device kFakeDevice(c10::DeviceType::PrivateUse1, 0);

struct FakeDevice {
  std::vector<std::string> log;  // operations on streams and events, with their numbers
  std::map<void*, int> events;
  c10::StreamId next = 1;
  bool finished = false;  // without teeth: whether events are complete
};
extern FakeDevice fake;

void start_device(uint64_t seed);
// Runs what is still queued.
void stop_device();
// Both.
class DeviceScope {
 public:
  explicit DeviceScope(uint64_t seed) { start_device(seed); }
  ~DeviceScope() { stop_device(); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
};

// Moves the parameters and buffers in place. (Module::to() cannot move them to such a device.)
void move_to_device(torch::nn::Module& module);

// A time at which the host waited for the device.
struct HostWait {
  std::string what;
  std::thread::id thread;
};
[[nodiscard]] std::vector<HostWait> host_waits();
void forget_host_waits();

// A new stream, whose work runs after all that is queued on the current stream.
[[nodiscard]] c10::Stream new_stream_after_current();
// `stream` runs nothing until something waits for its work, whatever the seed.
void stall(c10::Stream stream);
// Number of operations that are queued and have not run.
[[nodiscard]] size_t queued();
// The largest number of blocks that were allocated on `stream` and in use at the same time.
[[nodiscard]] size_t most_blocks(c10::StreamId stream);
// Operators that ran on the device since start_device(), by name.
[[nodiscard]] std::map<std::string, int> operators();

}  // namespace shardlens::test
