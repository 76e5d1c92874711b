#include "tests/core/fsdp/fake_device.h"

#include <utility>

namespace shardlens::test {

thread_local FakeDevice fake;

namespace {

class FakeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = c10::DeviceType::PrivateUse1;
  explicit FakeGuard(c10::DeviceType /*type*/) {}
  FakeGuard() = default;
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return kFakeDevice; }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, fake.current);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    fake.log.push_back((high ? "high " : "low ") + std::to_string(fake.next));
    return c10::Stream(c10::Stream::UNSAFE, device, fake.next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::UNSAFE, kFakeDevice, std::exchange(fake.current, stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event,
              const c10::Stream& stream,
              c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new char;
    }
    fake.events.try_emplace(*event, static_cast<int>(fake.events.size()));
    fake.log.push_back("record " + std::to_string(fake.events[*event]) + " on " +
                       std::to_string(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    fake.log.push_back(std::to_string(stream.id()) + " waits for " +
                       std::to_string(fake.events[event]));
  }
  bool queryEvent(void* /*event*/) const override { return fake.finished; }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<char*>(event);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard)

}  // namespace
}  // namespace shardlens::test
