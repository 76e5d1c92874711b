#pragma once

#include <map>
#include <string>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace shardlens::test {

// A fake device, for one thread: it logs the operations on its streams, and the test decides when
// they complete. It has no memory: tensors stay on the CPU.
inline const c10::Device kFakeDevice(c10::DeviceType::PrivateUse1, 0);

struct FakeDevice {
  std::vector<std::string> log;  // the operations, with stream ids
  std::map<void*, int> events;
  c10::StreamId next = 1, current = 0;
  bool finished = false;  // whether events are complete
};
// Defined where the device is registered (fake_device.cpp).
extern thread_local FakeDevice fake;

}  // namespace shardlens::test
