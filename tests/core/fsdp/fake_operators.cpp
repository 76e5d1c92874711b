// The operators of the fake device: each runs LibTorch's CPU kernel, later. See [Note: Teeth].
#include <set>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include "tests/core/fsdp/fake_machine.h"

namespace shardlens::test {
namespace {

using Values = std::vector<c10::IValue>;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Allocator* device_allocator() {
  return c10::GetAllocator(c10::DeviceType::PrivateUse1);
}

at::Tensor empty(at::IntArrayRef size,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> /*device*/,
                 std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, device_allocator(), kKeys,
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(at::IntArrayRef size,
                         at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys,
                                           dtype.value_or(at::get_default_dtype_as_scalartype()));
}

// The memory of a tensor of the device, as a CPU tensor that does not keep it.
at::Tensor memory_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (tensor.is_cpu()) {
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : tensor.clone();
  }
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  if (tensor.numel() == 0) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  }
  TORCH_CHECK(tensor.storage().data() != nullptr, "an operator uses memory that was freed");
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor stand_in(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;
  }
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  return at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
}

template <typename Map>
c10::IValue mapped(const c10::IValue& value, Map map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) {
      list.push_back(map(each));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      list.push_back(each ? std::optional(map(*each)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice()) {
    return c10::Device(c10::kCPU);
  }
  return value.isGenerator() ? c10::IValue() : value;
}

// The CPU's default generator with the state `seed`; the destructor restores it.
class SeededScope {
 public:
  explicit SeededScope(uint64_t seed) : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SeededScope() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(before_);
  }
  SeededScope(const SeededScope&) = delete;
  SeededScope& operator=(const SeededScope&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

uint64_t random_seed() {
  at::Generator generator = at::globalContext().defaultGenerator(kFakeDevice);
  const std::lock_guard lock(generator.mutex());
  return at::get_generator_or_default<at::CPUGeneratorImpl>(generator, generator)->random64();
}

// Calls the operator with CPU tensors. For an operator that writes several arguments and returns
// them, LibTorch (make_boxed_from_unboxed_functor.h) keeps references to the arguments, drops
// these, and then copies the references: hence the second list, which keeps the tensors alive.
Values call(const c10::OperatorHandle& op, Values arguments) {
  const Values alive = arguments;
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::DisableRecordFunctionGuard unrecorded;
  op.callBoxed(&arguments);
  return arguments;
}

Values mapped_all(const Values& values, at::Tensor (*map)(const at::Tensor&)) {
  Values out;
  for (const c10::IValue& each : values) {
    out.push_back(mapped(each, map));
  }
  return out;
}

at::Tensor on_device_like(const at::Tensor& tensor) {
  return tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(),
                                              tensor.options().device(kFakeDevice))
                          : tensor;
}

// Operators whose results depend on values: the host waits for these.
bool reads_values(const std::string& name) {
  static const std::set<std::string> names{"aten::equal", "aten::nonzero", "aten::masked_select",
                                           "aten::_unique2"};
  return names.contains(name);
}

// An empty tensor that an operator enlarges: `out` of arange and others.
void enlarge(const at::Tensor& given, const at::Tensor& dummy, const std::string& name) {
  if (given.sizes() == dummy.sizes()) {
    return;
  }
  TORCH_CHECK(given.numel() == 0, name, " resizes a tensor of the fake device");
  at::StorageImpl* storage = given.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(device_allocator()->allocate(dummy.nbytes()));
  storage->set_nbytes(dummy.nbytes());
  given.unsafeGetTensorImpl()->set_sizes_and_strides(dummy.sizes(), dummy.strides());
}

void fallback(const c10::OperatorHandle& op,
              c10::DispatchKeySet /*keys*/,
              torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = schema.name();
  const size_t count = schema.arguments().size();
  const Values given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  if (reads_values(name)) {
    Machine::get().wait_for_current(name);
    for (const c10::IValue& result : call(op, mapped_all(given, memory_of))) {
      stack->push_back(result.isTensor() ? c10::IValue(result.toTensor().to(kFakeDevice)) : result);
    }
    return;
  }
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
  Values dummies = mapped_all(given, stand_in);
  Values shapes;
  {
    const SeededScope unchanged(0);
    shapes = call(op, dummies);
  }
  for (size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && given[i].isTensor()) {
      enlarge(given[i].toTensor(), dummies[i].toTensor(), name);
    }
  }
  // A result is an argument that was written, or new.
  Values results;
  std::vector<std::pair<size_t, c10::IValue>> fresh;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    size_t same = count;
    for (size_t k = 0; alias != nullptr && k < count; ++k) {
      const auto* other = schema.arguments()[k].alias_info();
      same = other != nullptr && *other == *alias ? k : same;
    }
    TORCH_CHECK(alias == nullptr || (alias->isWrite() && same < count), name,
                ": the fake device has no view of this kind");
    if (alias != nullptr) {
      results.push_back(given[same]);
    } else {
      TORCH_CHECK(shapes[i].isTensor() || shapes[i].isTensorList() || shapes[i].isNone(), name,
                  " returns a value of the host");
      results.push_back(mapped(shapes[i], on_device_like));
      fresh.emplace_back(i, mapped(results.back(), memory_of));
    }
  }
  const uint64_t seed = random ? random_seed() : 0;
  Machine::get().enqueue(
      current_stream(), name,
      [op, arguments = mapped_all(given, memory_of), fresh, random, seed]() mutable {
        std::optional<SeededScope> seeded;
        if (random) {
          seeded.emplace(seed);
        }
        const Values computed = call(op, std::move(arguments));
        const at::AutoDispatchBelowADInplaceOrView below;
        for (const auto& [i, to] : fresh) {
          if (to.isTensor() && to.toTensor().defined()) {
            to.toTensor().copy_(computed[i].toTensor());
          } else if (to.isTensorList()) {
            const std::vector<at::Tensor> from = computed[i].toTensorVector();
            for (size_t k = 0; k < from.size(); ++k) {
              to.toTensorVector()[k].copy_(from[k]);
            }
          }
        }
      });
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

// As CUDA: only a copy to or from pinned memory that is `non_blocking` does not wait.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor host = from.is_cpu() ? from : to;
  const bool waits = host.is_cpu() && !(non_blocking && host.is_pinned());
  // A pinned tensor is not copied: the host must not write it before the device has read it.
  const at::Tensor source = from.is_cpu() ? (waits ? from.clone() : from) : memory_of(from);
  const at::Tensor target = to.is_cpu() ? to : memory_of(to);
  const char* name = !host.is_cpu() ? "copy" : from.is_cpu() ? "copy to device" : "copy to host";
  Machine::get().enqueue(current_stream(), name, [source, target] {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::DisableRecordFunctionGuard unrecorded;
    target.copy_(source);
  });
  if (waits) {
    Machine::get().wait_for_current(name);
  }
  return to;
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  Machine::get().wait_for_current("item");
  const at::Tensor value = memory_of(tensor);
  const at::AutoDispatchBelowADInplaceOrView below;
  return value.item();
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  Machine::get().record_use(tensor.storage().mutable_data(), stream.id());
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("view", at::native::view);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("_copy_from", copy_from);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("record_stream", record_stream);
  // One kernel, as on CUDA; LibTorch would otherwise use several operators.
  library.impl("_chunk_cat.out", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Gives access to the members of a tensor that Module::to() would have to change.
struct Members : c10::TensorImpl {
  static constexpr auto keys() { return &Members::key_set_; }
  static constexpr auto device() { return &Members::device_opt_; }
};

void move(const at::Tensor& tensor) {
  const at::Tensor moved = tensor.detach().to(kFakeDevice);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->*Members::keys() = moved.key_set();
  impl->*Members::device() = kFakeDevice;
  impl->set_storage_keep_dtype(moved.storage());
  impl->set_sizes_and_strides(moved.sizes(), moved.strides(), moved.storage_offset());
}

}  // namespace

void move_to_device(torch::nn::Module& module) {
  for (const at::Tensor& each : module.parameters()) {
    if (each.is_cpu()) {  // not shared with one that was moved
      move(each);
    }
  }
  for (const at::Tensor& each : module.buffers()) {
    move(each);
  }
}

}  // namespace shardlens::test
