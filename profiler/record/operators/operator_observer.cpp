#include "profiler/record/operators/operator_observer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
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
// [Note: Closed operators] What they call are helpers: views of their arguments, allocations,
// resolve_conj. These take no time of their own, and of what is recorded they are a third. So what
// runs inside one of these operators is not recorded. Operators that may call others that compute
// (aten::reshape, aten::contiguous) are not among them.
constexpr std::array<std::string_view, 33> kClosed{
    "aten::mm",      "aten::addmm",      "aten::bmm",
    "aten::baddbmm", "aten::as_strided", "aten::view",
    "aten::view_as", "aten::t",          "aten::transpose",
    "aten::permute", "aten::select",     "aten::slice",
    "aten::narrow",  "aten::squeeze",    "aten::unsqueeze",
    "aten::expand",  "aten::expand_as",  "aten::detach",
    "aten::alias",   "aten::split",      "aten::split_with_sizes",
    "aten::chunk",   "aten::unbind",     "aten::unflatten",
    "aten::empty",   "aten::empty_like", "aten::empty_strided",
    "aten::zeros",   "aten::ones",       "aten::full",
    "aten::zero_",   "aten::item",       "aten::resolve_conj"};
constexpr size_t kKnownNames = 1024;  // a model's step has less than a hundred

// A RecordFunction callback is a plain function without user data, so the recorder is a global
// variable.
std::atomic<SpoolRecorder*> active{nullptr};
// Counts changes of `active`: ids cached for an earlier recorder are stale.
std::atomic<uint64_t> generation{0};

struct Name {
  std::string text;
  uint32_t id = 0;
  bool gemm = false, closed = false;
};

// Of the length and the last characters, in which names differ.
size_t hash_of(std::string_view text) {
  std::array<uint64_t, 2> last{};
  if (text.size() >= sizeof(last)) {
    std::memcpy(last.data(), text.data() + text.size() - sizeof(last), sizeof(last));
  } else {
    std::memcpy(last.data(), text.data(), text.size());
  }
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ULL;
  return ((last[0] + text.size()) * kFactor + last[1]) * kFactor >> 32U;
}

// Names by their text: an operator's is at a fixed address, but an autograd node's is a temporary
// string. Open addressing; all are forgotten when there are too many.
class Names {
 public:
  const Name& of(std::string_view text, SpoolRecorder& recorder) {
    for (size_t slot = hash_of(text);; ++slot) {
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
    size_t slot = hash_of(text);
    while (slots_[slot % kSlots] != nullptr) {
      ++slot;
    }
    slots_[slot % kSlots] = std::make_unique<Name>(Name{std::string(text), recorder.text(text),
                                                        std::ranges::count(kGemms, text) > 0,
                                                        std::ranges::count(kClosed, text) > 0});
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
  const at::RecordFunction* closed = nullptr;  // runs now, and what it calls is not recorded
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
  if (state.closed != nullptr) {
    return nullptr;
  }
  const Name& name = state.names.of(function.name(), *recorder);
  Frame& frame = state.frames.emplace_back();
  frame.function = &function;
  frame.name = name.id;
  state.closed = name.closed ? &function : nullptr;
  if constexpr (kShapes) {
    frame.has_shapes = name.gemm && read_shapes(function.inputs(), frame.shapes);
  }
  frame.start = now_ns();
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  ThreadState& state = state_of_thread();
  if (state.closed != nullptr && state.closed != &function) {
    return;
  }
  const Nanoseconds end = now_ns();
  state.closed = nullptr;
  SpoolRecorder* recorder = active.load(std::memory_order_acquire);
  if (recorder == nullptr) {
    return;
  }
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
