#include "profiler/record/operators/operator_observer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
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
// are not among them. Of those, kReshapes call a view or a copy: there, only views are left out.
constexpr std::array<std::string_view, 15> kClosed{
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::zero_",
    "aten::item",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "shardlens::rms_norm",
    "shardlens::rotary",
    "shardlens::rotary_backward",
    "shardlens::silu_multiply",
    "shardlens::silu_multiply_backward"};
constexpr std::array<std::string_view, 27> kHelpers{// closed too
                                                    "aten::as_strided",
                                                    "aten::view",
                                                    "aten::_unsafe_view",
                                                    "aten::_reshape_alias",
                                                    "aten::view_as",
                                                    "aten::t",
                                                    "aten::transpose",
                                                    "aten::permute",
                                                    "aten::select",
                                                    "aten::slice",
                                                    "aten::narrow",
                                                    "aten::squeeze",
                                                    "aten::unsqueeze",
                                                    "aten::expand",
                                                    "aten::expand_as",
                                                    "aten::detach",
                                                    "aten::alias",
                                                    "aten::split",
                                                    "aten::split_with_sizes",
                                                    "aten::chunk",
                                                    "aten::unbind",
                                                    "aten::unflatten",
                                                    "aten::empty",
                                                    "aten::empty_like",
                                                    "aten::empty_strided",
                                                    "aten::resolve_conj",
                                                    "aten::resolve_neg"};
constexpr std::array<std::string_view, 2> kReshapes{"aten::reshape", "aten::flatten"};
constexpr size_t kKnownNames = 1024;  // a model's step has less than a hundred

// A RecordFunction callback is a plain function without user data, so the recorder is a global
// variable.
std::atomic<SpoolRecorder*> active{nullptr};
// Counts changes of `active`: ids cached for an earlier recorder are stale.
std::atomic<uint64_t> generation{0};

struct Name {
  uint32_t id = 0;
  bool gemm = false, helper = false, closed = false, reshapes = false;  // [Note: Closed operators]
};

Name make_name(std::string_view text, SpoolRecorder& recorder) {
  const bool helper = std::ranges::count(kHelpers, text) > 0;
  return {.id = recorder.text(text),
          .gemm = std::ranges::count(kGemms, text) > 0,
          .helper = helper,
          .closed = helper || std::ranges::count(kClosed, text) > 0,
          .reshapes = std::ranges::count(kReshapes, text) > 0};
}

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

// An operator's name is at a fixed address, by which it is found without reading it. That of an
// autograd node or a range is a temporary string, and found by its text. Texts are in a table with
// open addressing; all are forgotten when there are too many.
class Names {
 public:
  Name of(const at::RecordFunction& function, SpoolRecorder& recorder) {
    const char* text = function.name();
    const auto address = reinterpret_cast<uintptr_t>(text);
    Operator& known = operators_[address * 0x9e3779b97f4a7c15ULL >> 54U];
    if (known.at == text) {
      return known.name;
    }
    const Name name = by_text(text, recorder);
    if (function.operator_name()) {
      known = {text, name};
    }
    return name;
  }

 private:
  struct Operator {
    const char* at = nullptr;
    Name name;
  };
  struct Text {
    std::string text;
    Name name;
  };

  Name by_text(std::string_view text, SpoolRecorder& recorder) {
    size_t slot = hash_of(text);
    for (; texts_[slot % kSlots] != nullptr; ++slot) {
      if (texts_[slot % kSlots]->text == text) {
        return texts_[slot % kSlots]->name;
      }
    }
    if (++count_ > kKnownNames) {
      texts_ = std::vector<std::unique_ptr<Text>>(kSlots);
      count_ = 1;
      slot = hash_of(text);
    }
    texts_[slot % kSlots] =
        std::make_unique<Text>(Text{std::string(text), make_name(text, recorder)});
    return texts_[slot % kSlots]->name;
  }

  static constexpr size_t kSlots = 2 * kKnownNames;
  std::array<Operator, 1024> operators_{};
  std::vector<std::unique_ptr<Text>> texts_ = std::vector<std::unique_ptr<Text>>(kSlots);
  size_t count_ = 0;
};

struct Frame {  // a function that runs now and is recorded when it ends
  const at::RecordFunction* function = nullptr;
  Nanoseconds start = 0;
  uint32_t name = 0;
  bool reshapes = false;
};

struct ThreadState {
  uint64_t generation = 0;

  std::vector<Frame> frames;
  // Runs now; what it calls is not recorded, and it neither unless it has a frame.
  const at::RecordFunction* closed = nullptr;
  Names names;
};

struct Shapes final : at::ObserverContext {
  InputShapes shapes;
};

ThreadState& state_of_thread() {
  thread_local ThreadState state;
  return state;
}

// Null if the shapes do not fit into a record; then none are recorded.
std::unique_ptr<Shapes> read_shapes(c10::ArrayRef<const c10::IValue> inputs) {
  auto read = std::make_unique<Shapes>();
  InputShapes& shapes = read->shapes;
  size_t used = 0;
  for (const c10::IValue& input : inputs) {
    if (shapes.inputs == trace::SpoolOperator::kMaxInputs) {
      return nullptr;
    }
    uint8_t& rank = shapes.ranks[shapes.inputs++];
    if (!input.isTensor() || !input.toTensor().defined()) {
      continue;
    }
    for (const int64_t size : input.toTensor().sizes()) {
      if (used == trace::SpoolOperator::kMaxDims || size > INT32_MAX) {
        return nullptr;
      }
      shapes.dims[used++] = static_cast<int32_t>(size);
      ++rank;
    }
  }
  return read;
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
  const Name name = state.names.of(function, *recorder);
  state.closed = name.closed ? &function : nullptr;
  if (name.helper && !state.frames.empty() && state.frames.back().reshapes) {
    return nullptr;
  }
  std::unique_ptr<at::ObserverContext> shapes;
  if constexpr (kShapes) {
    shapes = name.gemm ? read_shapes(function.inputs()) : nullptr;
  }
  state.frames.push_back({&function, now_ns(), name.id, name.reshapes});
  return shapes;
}

void on_end(const at::RecordFunction& function, at::ObserverContext* shapes) {
  ThreadState& state = state_of_thread();
  if (state.closed != nullptr) {
    if (state.closed != &function) {
      return;
    }
    state.closed = nullptr;
  }
  // An operator that began before the recording has no frame; one that an exception ended is found
  // below later ones.
  size_t depth = state.frames.size();
  while (depth > 0 && state.frames[depth - 1].function != &function) {
    --depth;
  }
  SpoolRecorder* recorder = active.load(std::memory_order_acquire);
  if (depth == 0 || recorder == nullptr) {
    return;
  }
  const Frame& frame = state.frames[depth - 1];
  recorder->op(frame.name, frame.start, now_ns(),
               shapes == nullptr ? nullptr : &static_cast<Shapes*>(shapes)->shapes);
  state.frames.resize(depth - 1);
}

// Thread-local: communication threads are not observed; autograd's threads inherit the callback.
// Not observed is RecordScope::BACKWARD_FUNCTION, a node within "autograd::engine::
// evaluate_function: <node>", which is a FUNCTION.
template <bool kShapes>
uint64_t add_callback() {
  return at::addThreadLocalCallback(at::RecordFunctionCallback(on_start<kShapes>, on_end)
                                        .needsInputs(kShapes)
                                        .scopes({at::RecordScope::FUNCTION}));
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
