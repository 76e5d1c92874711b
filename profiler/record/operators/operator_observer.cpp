#include "profiler/record/operators/operator_observer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "core/base/error.h"
#include "profiler/record/host/clock.h"

namespace shardlens::record {
namespace {

constexpr std::array<std::string_view, 4> kGemms{"aten::mm", "aten::addmm", "aten::bmm",
                                                 "aten::baddbmm"};
constexpr size_t kKnownNames = 1024;  // a model's step has less than a hundred

// A RecordFunction callback is a plain function without user data, so the recorder is a global
// variable.
std::atomic<SpoolRecorder*> active{nullptr};
// Counts changes of `active`: ids cached for an earlier recorder are stale.
std::atomic<uint64_t> generation{0};

struct Name {
  std::string text;
  uint32_t id = 0;
  bool gemm = false;
};

// Names by their text: an operator's is at a fixed address, but an autograd node's is a temporary
// string. Open addressing; all are forgotten when there are too many.
class Names {
 public:
  const Name& of(std::string_view text, SpoolRecorder& recorder) {
    for (size_t slot = std::hash<std::string_view>()(text);; ++slot) {
      std::unique_ptr<Name>& name = slots_[slot % kSlots];
      if (name != nullptr && name->text == text) {
        return *name;
      }
      if (name == nullptr) {
        return added(text, recorder);
      }
    }
  }

 private:
  const Name& added(std::string_view text, SpoolRecorder& recorder) {
    if (++count_ > kKnownNames) {
      slots_ = std::vector<std::unique_ptr<Name>>(kSlots);
      count_ = 1;
    }
    size_t slot = std::hash<std::string_view>()(text);
    while (slots_[slot % kSlots] != nullptr) {
      ++slot;
    }
    slots_[slot % kSlots] = std::make_unique<Name>(
        Name{std::string(text), recorder.text(text), std::ranges::count(kGemms, text) > 0});
    return *slots_[slot % kSlots];
  }

  static constexpr size_t kSlots = 2 * kKnownNames;
  std::vector<std::unique_ptr<Name>> slots_ = std::vector<std::unique_ptr<Name>>(kSlots);
  size_t count_ = 0;
};

struct Frame {
  const at::RecordFunction* function = nullptr;
  Nanoseconds start = 0;
  uint32_t name = 0;

  bool has_shapes = false;
  InputShapes shapes;
};

struct ThreadState {
  uint64_t generation = 0;

  std::vector<Frame> frames;
  Names names;
};

ThreadState& state_of_thread() {
  thread_local ThreadState state;
  return state;
}

// False if the shapes do not fit into a record; then none are recorded.
bool read_shapes(c10::ArrayRef<const c10::IValue> inputs, InputShapes& shapes) {
  shapes = InputShapes{};
  size_t used = 0;
  for (const c10::IValue& input : inputs) {
    if (shapes.inputs == trace::SpoolOperator::kMaxInputs) {
      return false;
    }
    uint8_t& rank = shapes.ranks[shapes.inputs++];
    if (!input.isTensor() || !input.toTensor().defined()) {
      continue;
    }
    for (const int64_t size : input.toTensor().sizes()) {
      if (used == trace::SpoolOperator::kMaxDims || size > INT32_MAX) {
        return false;
      }
      shapes.dims[used++] = static_cast<int32_t>(size);
      ++rank;
    }
  }
  return true;
}

// If a callback requests inputs, torch boxes those of every operator, which costs as much as the
// rest of the record. So inputs are requested only while shapes are recorded.
template <bool kShapes>
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  SpoolRecorder* recorder = active.load(std::memory_order_acquire);
  if (recorder == nullptr || !recorder->recording()) {
    return nullptr;
  }
  recorder->before_launch();
  ThreadState& state = state_of_thread();
  const uint64_t current = generation.load(std::memory_order_relaxed);
  if (state.generation != current) {
    state = ThreadState{};
    state.generation = current;
  }
  const Name& name = state.names.of(function.name(), *recorder);
  Frame& frame = state.frames.emplace_back();
  frame.function = &function;
  frame.name = name.id;
  if constexpr (kShapes) {
    frame.has_shapes = name.gemm && read_shapes(function.inputs(), frame.shapes);
  }
  frame.start = now_ns();
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  const Nanoseconds end = now_ns();
  SpoolRecorder* recorder = active.load(std::memory_order_acquire);
  if (recorder == nullptr) {
    return;
  }
  ThreadState& state = state_of_thread();
  // An operator that began before the recording has no frame; one that an exception ended is found
  // below later ones.
  size_t depth = state.frames.size();
  while (depth > 0 && state.frames[depth - 1].function != &function) {
    --depth;
  }
  if (depth == 0) {
    return;
  }
  const Frame& frame = state.frames[depth - 1];
  recorder->op(frame.name, frame.start, end, frame.has_shapes ? &frame.shapes : nullptr);
  state.frames.resize(depth - 1);
}

// Thread-local: communication threads are not observed; autograd's threads inherit the callback.
template <bool kShapes>
uint64_t add_callback() {
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_start<kShapes>, on_end)
          .needsInputs(kShapes)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

}  // namespace

OperatorObserver::OperatorObserver(SpoolRecorder& recorder) : recorder_(recorder) {
  SpoolRecorder* expected = nullptr;
  if (!active.compare_exchange_strong(expected, &recorder)) {
    throw UsageError("OperatorObserver: another observer records this process; destroy it first");
  }
  ++generation;
  handle_ = add_callback<true>();
  recorder_.set_step_listener([this] {
    at::removeCallback(handle_);
    handle_ = add_callback<false>();
    recorder_.set_step_listener(nullptr);
  });
}

OperatorObserver::~OperatorObserver() {
  recorder_.set_step_listener(nullptr);
  at::removeCallback(handle_);
  active.store(nullptr, std::memory_order_release);
}

void wait_for_devices() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    return;
  }
  const auto* devices = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  for (c10::DeviceIndex i = 0; i < devices->deviceCount(); ++i) {
    devices->synchronizeDevice(i);
  }
}

}  // namespace shardlens::record
