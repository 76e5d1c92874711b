#include "tests/core/fsdp/fake_device.h"

#include <cstdlib>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tests/core/fsdp/fake_machine.h"

namespace shardlens::test {

FakeDevice fake;

namespace {

struct FakeEvent {
  Machine::Position at;
};

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
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    const std::lock_guard lock(machine().mutex);
    fake.log.push_back((high ? "high " : "low ") + std::to_string(fake.next));
    return c10::Stream(c10::Stream::UNSAFE, device, fake.next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::UNSAFE, kFakeDevice,
                       std::exchange(current_stream(), stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event,
              const c10::Stream& stream,
              c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    const std::lock_guard lock(machine().mutex);
    if (*event == nullptr) {
      *event = new FakeEvent;
    }
    static_cast<FakeEvent*>(*event)->at = machine().end_of(stream.id());
    fake.events.try_emplace(*event, static_cast<int>(fake.events.size()));
    log_event("record " + number(*event) + " on " + std::to_string(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    const std::lock_guard lock(machine().mutex);
    log_event(std::to_string(stream.id()) + " waits for " + number(event));
    machine().wait_on_stream(stream.id(), at(event));
  }
  bool queryEvent(void* event) const override {
    return machine().has_teeth() ? machine().query(at(event)) : fake.finished;
  }
  void synchronizeEvent(void* event) const override {
    machine().wait_on_host(at(event), "synchronize");
  }
  bool queryStream(const c10::Stream& stream) const override {
    return machine().query(machine().end_of(stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    machine().wait_on_host(machine().end_of(stream.id()), "synchronize");
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    machine().record_use(data.get(), stream.id());
  }

 private:
  static Machine& machine() { return Machine::get(); }
  static Machine::Position at(void* event) { return static_cast<FakeEvent*>(event)->at; }
  static std::string number(void* event) { return std::to_string(fake.events[event]); }
  static void log_event(std::string what) { fake.log.push_back(std::move(what)); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard)

class FakeAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, kFakeDevice};
    }
    Machine::Block* block = Machine::get().allocate(bytes);
    return {block->data, block, &release, kFakeDevice};
  }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {
    TORCH_CHECK(false, "the fake device copies by operators only");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Machine::get().record_use(data.get(), stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*index*/) override {
    const std::lock_guard lock(Machine::get().mutex);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes.front() = Machine::get().bytes;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex /*index*/) override {
    const std::lock_guard lock(Machine::get().mutex);
    Machine::get().bytes.reset_peak();
  }

 private:
  static void release(void* block) { Machine::get().free(static_cast<Machine::Block*>(block)); }
};
FakeAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator)

// Pinned memory of the host. It is not freed before the operations that read it have run, because
// these keep its tensor, as CUDA's allocator does with events.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = std::malloc(bytes == 0 ? 1 : bytes);
    const std::lock_guard lock(Machine::get().mutex);
    pinned().insert(data);
    return {data, data, &release, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static std::set<const void*>& pinned() {
    static std::set<const void*> pointers;
    return pointers;
  }

 private:
  static void release(void* data) {
    const std::lock_guard lock(Machine::get().mutex);
    pinned().erase(data);
    std::free(data);
  }
};

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex /*device*/) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*index*/) const override {
    static const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
    return generator;
  }
  at::Device getDeviceFromPtr(void* /*data*/) const override { return kFakeDevice; }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(Machine::get().mutex);
    return PinnedAllocator::pinned().contains(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator pinned;
    return &pinned;
  }
};

const bool registered = [] {
  static FakeHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::register_privateuse1_backend("fake");
  return true;
}();

}  // namespace

c10::Stream new_stream_after_current() {
  const c10::impl::VirtualGuardImpl device(kFakeDevice.type());
  const c10::Stream stream = device.getStreamFromGlobalPool(kFakeDevice, true);
  c10::Event ready(kFakeDevice.type());
  ready.record(device.getStream(kFakeDevice));
  ready.block(stream);
  return stream;
}

}  // namespace shardlens::test
