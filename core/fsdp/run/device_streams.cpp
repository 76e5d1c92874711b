#include "core/fsdp/run/device_streams.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/base/error.h"

namespace shardlens::fsdp {

using schedule::EventId;
using schedule::Stream;

DeviceStreams::DeviceStreams(c10::Device device, std::chrono::milliseconds timeout)
    : device_(device), timeout_(timeout) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  for (int i = 0; i < schedule::kStreamCount; ++i) {
    const auto stream = static_cast<Stream>(i);
    if (stream != Stream::kCompute) {
      streams_[index(stream)] =
          guard.getStreamFromGlobalPool(device, /*isHighPriority=*/stream != Stream::kAllReduce);
    }
  }
  enter();
}

DeviceStreams::~DeviceStreams() {
  try {
    drain();
  } catch (const std::exception&) {  // the device is stuck or lost; its memory is released anyway
  }
}

void DeviceStreams::enter() {
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  std::optional<c10::Stream>& compute = streams_[index(Stream::kCompute)];
  if (compute && *compute != current) {
    c10::Event before(device_.type());
    before.record(*compute);
    before.block(current);
  }
  compute = current;
}

void DeviceStreams::record(EventId event, Stream stream) {
  if (event >= events_.size()) {
    events_.resize(event + 1);
  }
  record(events_[event], stream);
}

void DeviceStreams::record(Recorded& recorded, Stream stream) {
  if (stream == Stream::kCompute) {
    issued(stream);  // the model's own work since the last action
  }
  if (!recorded.event) {
    recorded.event.emplace(device_.type());
  }
  recorded.event->record(of(stream));
  recorded.clock = position(stream);
}

void DeviceStreams::wait(EventId event, Stream stream) {
  const Recorded& recorded = events_.at(event);
  SHARDLENS_CHECK(recorded.event.has_value(), "a wait for an event that was not recorded");
  wait(recorded, stream);
}

void DeviceStreams::order(Stream stream, Stream before) {
  Recorded now;
  record(now, before);
  wait(now, stream);
}

void DeviceStreams::wait(const Recorded& recorded, Stream stream) {
  recorded.event->block(of(stream));
  Clock& clock = position(stream);
  for (size_t i = 0; i < clock.size(); ++i) {
    clock[i] = std::max(clock[i], recorded.clock[i]);
  }
  let_go();
}

void DeviceStreams::host_wait(EventId event) {
  const Recorded& recorded = events_.at(event);
  SHARDLENS_CHECK(recorded.event.has_value(), "a wait for an event that was not recorded");
  wait_on_host(*recorded.event);
  // All later work, on any stream, is ordered after the event.
  for (Clock& clock : clocks_) {
    for (size_t i = 0; i < clock.size(); ++i) {
      clock[i] = std::max(clock[i], recorded.clock[i]);
    }
  }
  let_go();
}

void DeviceStreams::retire(std::shared_ptr<void> memory,
                           Stream first,
                           Stream last,
                           std::optional<uint64_t> used) {
  if (first == last || memory == nullptr || (used && position(first)[index(last)] >= *used)) {
    return;
  }
  if (last == Stream::kCompute && !used) {
    issued(last);  // the model's own work since the last action
  }
  Held held{std::move(memory), first, last, used.value_or(now(last)), c10::Event(device_.type())};
  held.through.record(of(last));
  held_.push_back(std::move(held));
  let_go();
}

void DeviceStreams::let_go() {
  std::erase_if(held_, [this](const Held& each) {
    return position(each.first)[index(each.last)] >= each.position || each.through.query();
  });
}

// Does not use Event::synchronize(), which has no timeout.
void DeviceStreams::wait_on_host(const c10::Event& event) const {
  const auto end = std::chrono::steady_clock::now() + timeout_;
  while (!event.query()) {
    if (std::chrono::steady_clock::now() >= end) {
      throw RuntimeFault("the device did not finish within " +
                         std::to_string(timeout_.count() / 1000) +
                         " s: a peer is stuck, or runs its units in another order");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

void DeviceStreams::wait_on_host(Stream stream) {
  c10::Event through(device_.type());
  through.record(of(stream));
  wait_on_host(through);
}

void DeviceStreams::drain() {
  for (int i = 0; i < schedule::kStreamCount; ++i) {
    wait_on_host(static_cast<Stream>(i));
  }
  held_.clear();
}

}  // namespace shardlens::fsdp
