#include "core/dist/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core/base/error.h"
#include "core/dist/backend.h"

namespace shardlens::dist {
namespace {

Nanoseconds now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

c10d::ReduceOp c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAverage:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

DType dtype_of(const at::Tensor& tensor) {
  return parse_dtype(c10::toString(tensor.scalar_type())).value_or(DType::kF32);
}

// A backend that issues on the current stream may return no Work.
void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work != nullptr) {
    work->wait();
  }
}

std::string shown(const std::string& what) {
  return what.empty() ? "the run" : what;
}

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& failure) {
    return failure.what_without_backtrace();
  } catch (const std::exception& failure) {
    return failure.what();
  }
}

}  // namespace

bool Completion::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Completion::on_done(std::function<void(std::exception_ptr)> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(error_);
}

struct Communicator::Request {
  std::function<void(Communicator&)> work;
  CollectiveRecord record;
  bool collective = true;  // false: local work, not recorded
  CompletionPtr completion;
  std::string what;
};

Communicator::Communicator(c10::intrusive_ptr<c10d::Backend> backend, Options options)
    : backend_(std::move(backend)), options_(std::move(options)) {
  if (!on_device()) {
    thread_ = std::thread([this] { loop(); });
    pthread_setname_np(thread_.native_handle(), ("comm " + options_.name).substr(0, 15).c_str());
  }
}

// [Note: Leaving] With check_ranks, a rank that has finished sends "has left" to the others, whose
// next collective would otherwise wait for it: they then fail with this message instead of a lost
// connection or a timeout. Not done during the unwinding after an error.
Communicator::~Communicator() {
  if (checks_ranks() && std::uncaught_exceptions() == 0) {
    try {
      agree("has left");
    } catch (const std::exception&) {  // the other ranks report it
    }
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  available_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
  close();
}

// NCCL's communicators must be closed before the process ends. After an error the peers may not
// come to a common end, so they are aborted instead.
void Communicator::close() {
  if (!on_device()) {
    return;
  }
  try {
    if (broken_ == nullptr && std::uncaught_exceptions() == 0) {
      backend_->shutdown();
    } else {
      backend_->abort();
    }
  } catch (const std::exception&) {  // the process ends with or without them
  }
}

CompletionPtr Communicator::submit(Request request) {
  request.completion = std::make_shared<Completion>();
  request.completion->kind_ = request.record.kind;
  request.completion->what_ = request.what;
  CompletionPtr completion = request.completion;
  {
    std::unique_lock lock(mutex_);
    if (request.collective) {
      request.record.sequence = next_sequence_++;
      request.record.issued = now();
      request.record.group_size = options_.size;
      request.record.group = options_.name;
      request.record.emulated = options_.emulated;
      request.record.on_device = on_device();
    }
    queue_.push_back(std::move(request));
    if (on_device()) {
      run_front(lock);
    }
  }
  if (on_device()) {
    wait(completion);  // it is done; throws its error, if any
  }
  available_.notify_one();
  return completion;
}

void Communicator::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    available_.wait(lock, [this] { return !running_ && (stopping_ || !queue_.empty()); });
    if (queue_.empty()) {
      return;
    }
    run_front(lock);
  }
}

// `lock` holds mutex_ on entry and exit. No other thread runs a request at the same time, so that
// requests stay in FIFO order.
void Communicator::run_front(std::unique_lock<std::mutex>& lock) {
  Request request = std::move(queue_.front());
  queue_.pop_front();
  std::exception_ptr error = broken_;
  if (stopping_ && error == nullptr) {  // no caller waits for it, and the peers may have ended
    error = std::make_exception_ptr(RuntimeFault("the communicator was closed"));
  }
  running_ = true;
  current_ = &request;
  lock.unlock();
  std::exception_ptr fault;
  const auto began = std::chrono::steady_clock::now();
  if (error == nullptr) {
    try {
      if (checks_ranks() && request.collective) {
        compare(fmt::format("{} of {}, {} elements of {} in and {} out",
                            name_of(request.record.kind), shown(request.what),
                            request.record.in_nelems, safetensors_name(request.record.dtype),
                            request.record.out_nelems));
      }
      request.record.start = now();
      request.work(*this);
      request.record.end = now();
    } catch (...) {
      error = fault = std::current_exception();
    }
  }
  if (error == nullptr && request.collective && options_.recorder != nullptr) {
    options_.recorder->collective(request.record);
  }
  request.work = nullptr;  // release the tensors before waiters are notified
  Completion& completion = *request.completion;
  if (error != nullptr) {
    std::string message = where(completion) + " failed: " + reason_of(error);
    const bool late = std::chrono::steady_clock::now() - began >= options_.timeout * 9 / 10;
    error = std::make_exception_ptr(RuntimeFault(late ? after_timeout(message) : message));
  }
  lock.lock();
  running_ = false;
  current_ = nullptr;
  if (request.collective) {
    last_ = request.completion;
  }
  if (fault != nullptr) {
    broken_ = fault;
  }
  std::vector<std::function<void(std::exception_ptr)>> callbacks;
  {
    const std::lock_guard done(completion.mutex_);
    completion.done_ = true;
    completion.error_ = error;
    callbacks.swap(completion.callbacks_);
  }
  completion.changed_.notify_all();
  if (!queue_.empty() || stopping_) {
    available_.notify_one();
  }
  if (!callbacks.empty()) {
    lock.unlock();
    for (const auto& callback : callbacks) {
      callback(error);
    }
    lock.lock();
  }
}

std::string Communicator::where(const Completion& completion) const {
  return fmt::format("[rank {}] {} of {} over group '{}'", options_.global_rank,
                     name_of(completion.kind_), shown(completion.what_), options_.name);
}

std::string Communicator::doing() const {
  const std::lock_guard lock(mutex_);
  if (current_ != nullptr) {
    return fmt::format("waits for {} of {} over group '{}'", name_of(current_->record.kind),
                       shown(current_->what), options_.name);
  }
  return last_ == nullptr
             ? ""
             : fmt::format("is not waiting; the last collective that it ended is {} of {}",
                           name_of(last_->kind_), shown(last_->what_));
}

std::string Communicator::after_timeout(const std::string& message) const {
  const std::string peers = options_.peers ? options_.peers() : "";
  return peers.empty() ? message : message + "; " + peers;
}

namespace {

// `text` in at most `size` bytes. What is cut off is in the hash (FNV-1a), so that two texts that
// differ anywhere stay different.
std::string shortened(const std::string& text, size_t size) {
  if (text.size() <= size) {
    return text;
  }
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  const std::string end = fmt::format("… ({} bytes, hash {:016x})", text.size(), hash);
  return text.substr(0, size - end.size()) + end;
}

}  // namespace

// [Note: Comparing ranks] With check_ranks, this all-gather precedes every collective. All ranks
// take part in it even if the collectives that follow are different.
void Communicator::compare(const std::string& what) {
  constexpr size_t kBytes = 512;
  at::Tensor mine = at::empty({static_cast<int64_t>(kBytes)}, at::kByte).zero_();
  const std::string text = shortened(what, kBytes - 1);
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  mine = mine.to(options_.device);
  at::Tensor all = at::empty({static_cast<int64_t>(kBytes) * options_.size}, mine.options());
  c10d::AllgatherOptions options;
  options.asyncOp = !on_device();
  finish(backend_->_allgather_base(all, mine, options));
  all = all.cpu();
  std::map<std::string, std::vector<int>> ranks;
  for (int rank = 0; rank < options_.size; ++rank) {
    ranks[static_cast<const char*>(all.data_ptr()) + kBytes * static_cast<size_t>(rank)].push_back(
        rank);
  }
  if (ranks.size() == 1) {
    return;
  }
  std::string differences;
  for (const auto& [said, by] : ranks) {
    differences += fmt::format("{}rank{} {}: {}", differences.empty() ? "" : "; ",
                               by.size() > 1 ? "s" : "", fmt::join(by, ", "), said);
  }
  throw RuntimeFault(
      fmt::format("ranks of group '{}' are not at the same point: {}", options_.name, differences));
}

void Communicator::agree(const std::string& what) {
  if (checks_ranks()) {
    require_same(what);
  }
}

void Communicator::require_same(const std::string& what) {
  if (options_.size > 1) {
    wait(run([this, what] { compare(what); }, {kNoUnit, "a comparison of ranks"}));
  }
}

// [Note: Waiting is running] A thread that waits runs the queued requests itself, up to the one it
// waits for, unless another thread is running one. It would only sleep until the communication
// thread has woken up and done the work. For a small unit, these two thread switches cost more than
// the collective.
void Communicator::run_until(const CompletionPtr& completion) {
  std::unique_lock lock(mutex_);
  while (!running_ && !queue_.empty() && queue_.front().collective && !completion->done()) {
    run_front(lock);
  }
}

// [Note: A host that stays awake] In an emulated world, a thread that waits yields in a loop
// instead of sleeping. A core is slower after it slept: the same matrix products took 3 to 6 %
// longer after waits, so that step times depended on the amount of waiting, which is not so on a
// GPU.
void Communicator::wait(const CompletionPtr& completion) {
  run_until(completion);
  std::chrono::milliseconds asleep = options_.timeout;
  if (options_.emulated) {
    const auto limit = std::chrono::steady_clock::now() + std::exchange(asleep, {});
    while (!completion->done() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
  }
  std::unique_lock lock(completion->mutex_);
  const bool finished =
      completion->changed_.wait_for(lock, asleep, [&] { return completion->done_; });
  if (!finished) {
    throw RuntimeFault(after_timeout(where(*completion) + " did not finish within " +
                                     std::to_string(options_.timeout.count() / 1000) +
                                     " s: a peer is stuck, or runs its units in another order"));
  }
  if (completion->error_ != nullptr) {
    std::rethrow_exception(completion->error_);
  }
}

void Communicator::wait_for_device() {
  if (!on_device()) {
    return;
  }
  c10::Event done(options_.device.type());
  done.record(c10::impl::VirtualGuardImpl(options_.device.type()).getStream(options_.device));
  const auto end = std::chrono::steady_clock::now() + options_.timeout;
  while (!done.query()) {
    if (std::chrono::steady_clock::now() >= end) {
      throw RuntimeFault(after_timeout(fmt::format(
          "[rank {}] the device did not finish within {} s: a peer is stuck, or runs its units in "
          "another order",
          options_.global_rank, options_.timeout.count() / 1000)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

void Communicator::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (broken_ == nullptr) {
    broken_ = std::make_exception_ptr(RuntimeFault(reason));
  }
}

namespace {
std::string describe(const Purpose& purpose) {
  if (purpose.unit == kNoUnit) {
    return std::string(purpose.what);
  }
  return purpose.what.empty() ? "the root unit" : "unit '" + std::string(purpose.what) + "'";
}

CollectiveRecord record_of(CollectiveKind kind,
                           const Purpose& purpose,
                           const at::Tensor& in,
                           int64_t out_nelems) {
  CollectiveRecord record;
  record.kind = kind;
  record.dtype = dtype_of(in);
  record.unit = purpose.unit;
  record.action = purpose.action;
  record.in_nelems = in.numel();
  record.out_nelems = out_nelems;
  return record;
}
}  // namespace

CompletionPtr Communicator::all_gather(const at::Tensor& output,
                                       const at::Tensor& input,
                                       const Purpose& purpose) {
  return submit(
      {[output = at::Tensor(output), input = at::Tensor(input)](Communicator& self) mutable {
         c10d::AllgatherOptions options;
         options.asyncOp = !self.on_device();
         finish(self.backend_->_allgather_base(output, input, options));
       },
       record_of(CollectiveKind::kAllGather, purpose, input, output.numel()), true, nullptr,
       describe(purpose)});
}

bool Communicator::gathers_parts() const {
  const auto* backend = dynamic_cast<const PartsGather*>(backend_.get());
  return backend != nullptr && backend->gathers_parts();
}

CompletionPtr Communicator::all_gather_parts(const at::Tensor& output,
                                             const at::Tensor& input,
                                             std::vector<int64_t> parts,
                                             const Purpose& purpose) {
  return submit({[output, input, parts = std::move(parts)](Communicator& self) {
                   dynamic_cast<PartsGather&>(*self.backend_).gather_parts(output, input, parts);
                 },
                 record_of(CollectiveKind::kAllGather, purpose, input, output.numel()), true,
                 nullptr, describe(purpose)});
}

CompletionPtr Communicator::reduce_scatter(const at::Tensor& output,
                                           const at::Tensor& input,
                                           ReduceOp op,
                                           const Purpose& purpose) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d_op(op);
  options.asyncOp = !on_device();
  return submit({[output = at::Tensor(output), input = at::Tensor(input),
                  options](Communicator& self) mutable {
                   finish(self.backend_->_reduce_scatter_base(output, input, options));
                 },
                 record_of(CollectiveKind::kReduceScatter, purpose, input, output.numel()), true,
                 nullptr, describe(purpose)});
}

CompletionPtr Communicator::all_reduce(const at::Tensor& tensor,
                                       ReduceOp op,
                                       const Purpose& purpose) {
  c10d::AllreduceOptions options;
  options.reduceOp = c10d_op(op);
  options.asyncOp = !on_device();
  return submit({[tensor, options](Communicator& self) {
                   std::vector<at::Tensor> tensors{tensor};
                   finish(self.backend_->allreduce(tensors, options));
                 },
                 record_of(CollectiveKind::kAllReduce, purpose, tensor, tensor.numel()), true,
                 nullptr, describe(purpose)});
}

CompletionPtr Communicator::broadcast(const at::Tensor& tensor, int root, const Purpose& purpose) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.asyncOp = !on_device();
  return submit({[tensor, options](Communicator& self) {
                   std::vector<at::Tensor> tensors{tensor};
                   finish(self.backend_->broadcast(tensors, options));
                 },
                 record_of(CollectiveKind::kBroadcast, purpose, tensor, tensor.numel()), true,
                 nullptr, describe(purpose)});
}

CompletionPtr Communicator::barrier(const Purpose& purpose) {
  CollectiveRecord record;
  record.kind = CollectiveKind::kBarrier;
  record.unit = purpose.unit;
  return submit({[](Communicator& self) { finish(self.backend_->barrier()); }, record, true,
                 nullptr, describe(purpose)});
}

CompletionPtr Communicator::run(std::function<void()> work, const Purpose& purpose) {
  return submit(
      {[work = std::move(work)](Communicator&) { work(); }, {}, false, nullptr, describe(purpose)});
}

}  // namespace shardlens::dist
