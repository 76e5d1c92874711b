#include "core/dist/process_group.h"

#include <optional>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"

namespace shardlens::dist {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAverage;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    default:
      throw RuntimeFault("a process group over a communicator reduces by sum, average or maximum");
  }
}

std::vector<c10::Device> devices_of(const Communicator& on) {
  return on.device().is_cpu() ? std::vector<c10::Device>() : std::vector<c10::Device>{on.device()};
}

// On a device, it must be constructed with the collective's stream as the current stream.
class CommunicatorWork final : public c10d::Work {
 public:
  CommunicatorWork(Communicator& on, CompletionPtr completion, std::vector<at::Tensor> result)
      : on_(on),
        completion_(std::move(completion)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), devices_of(on))) {
    if (!on.device().is_cpu()) {
      issued_.emplace(on.device().type());
      issued_->record(current_stream(on.device()));
    }
    completion_->on_done([future = future_, result = std::move(result)](std::exception_ptr error) {
      if (error != nullptr) {
        future->setError(error);
      } else {
        future->markCompleted(c10::IValue(result));
      }
    });
  }

  bool isCompleted() override { return completion_->done(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    on_.wait(completion_);  // uses the communicator's timeout
    if (issued_) {
      issued_->block(current_stream(on_.device()));
    }
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Communicator& on_;
  CompletionPtr completion_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::optional<c10::Event> issued_;
};

class CommunicatorBackend final : public c10d::Backend {
 public:
  CommunicatorBackend(Communicator& communicator, PurposeOf purpose_of)
      : Backend(communicator.rank(), communicator.size()),
        communicator_(communicator),
        purpose_of_(std::move(purpose_of)) {
    if (!communicator.device().is_cpu()) {
      stream_ = c10::impl::VirtualGuardImpl(communicator.device().type())
                    .getStreamFromGlobalPool(communicator.device(), /*isHighPriority=*/false);
    }
  }

  const std::string getBackendName() const override { return "communicator"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = tensors.at(0);
    const Purpose purpose = purpose_of_(CollectiveKind::kAllReduce, tensor);
    const c10::OptionalStreamGuard beside = beside_compute();
    return work(communicator_.all_reduce(tensor, reduce_op(options.reduceOp), purpose), tensors);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = tensors.at(0);
    const Purpose purpose = purpose_of_(CollectiveKind::kBroadcast, tensor);
    return work(communicator_.broadcast(tensor, static_cast<int>(options.rootRank), purpose),
                tensors);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& /*options*/) override {
    const at::Tensor input = inputs.at(0).contiguous();
    const at::Tensor gathered = at::empty({getSize(), input.numel()}, input.options());
    const Purpose purpose = purpose_of_(CollectiveKind::kAllGather, input);
    communicator_.wait(communicator_.all_gather(gathered.view({-1}), input.view({-1}), purpose));
    for (int rank = 0; rank < getSize(); ++rank) {
      outputs.at(0).at(static_cast<size_t>(rank)).copy_(gathered[rank].view(input.sizes()));
    }
    return work(communicator_.run([] {}, purpose), outputs.at(0));
  }

 private:
  // On a device all-reduces run on a separate stream, after the work that is issued so far.
  c10::OptionalStreamGuard beside_compute() {
    if (!stream_) {
      return c10::OptionalStreamGuard();
    }
    c10::Event ready(stream_->device_type());
    ready.record(current_stream(stream_->device()));
    ready.block(*stream_);
    return c10::OptionalStreamGuard(*stream_);
  }

  c10::intrusive_ptr<c10d::Work> work(CompletionPtr completion, std::vector<at::Tensor> result) {
    return c10::make_intrusive<CommunicatorWork>(communicator_, std::move(completion),
                                                 std::move(result));
  }

  Communicator& communicator_;
  PurposeOf purpose_of_;
  std::optional<c10::Stream> stream_;
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Communicator& communicator,
                                                          PurposeOf purpose_of) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(communicator.rank(), communicator.size());
  constexpr auto kCustom = c10d::ProcessGroup::BackendType::CUSTOM;
  c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<CommunicatorBackend>(communicator, std::move(purpose_of));
  group->setBackend(communicator.device().type(), kCustom, backend);
  group->setDefaultBackend(kCustom);
  return group;
}

}  // namespace shardlens::dist
