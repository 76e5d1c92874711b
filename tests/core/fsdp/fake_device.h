#pragma once

#include <map>
#include <string>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace shardlens::test {

// A device of the tests' own, for one thread: streams whose order is kept, and whose end the test
// decides. It has no memory: tensors stay on the CPU.
inline const c10::Device kFakeDevice(c10::DeviceType::PrivateUse1, 0);

struct FakeDevice {
  std::vector<std::string> log;  // what was asked of it, by stream id
  std::map<void*, int> events;
  c10::StreamId next = 1, current = 0;
  bool finished = false;  // whether events are seen to be complete
};
// Defined where the device is registered (fake_device.cpp).
extern thread_local FakeDevice fake;

}  // namespace shardlens::test
