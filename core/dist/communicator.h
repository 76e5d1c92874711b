#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "core/base/collective.h"
#include "core/base/live_count.h"
#include "core/base/recorder.h"
#include "core/base/units.h"

namespace c10d {
class Backend;
}

namespace shardlens::dist {

enum class ReduceOp : uint8_t { kSum, kAverage, kMax };

// The purpose of a collective. It is stored in the collective's record and is part of the message
// if the collective fails or times out.
struct Purpose {
  UnitId unit = kNoUnit;
  std::string_view what =
      "";               // FQN of the unit or a phrase such as "loss"; must outlive the collective
  uint32_t action = 0;  // seq of the action that issued it
};

// Completion of one request on a communicator. Shared between the issuer and the communication
// thread.
class Completion : LiveCount<Completion> {
 public:
  using LiveCount::live;
  [[nodiscard]] bool done() const;
  // Calls `callback` once, with the error of the request (null: none), on the thread that ran the
  // request, or at once if the request is already done. `callback` must not throw.
  void on_done(std::function<void(std::exception_ptr)> callback);

 private:
  friend class Communicator;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void(std::exception_ptr)>> callbacks_;
  CollectiveKind kind_ = CollectiveKind::kBarrier;
  std::string what_;
};
using CompletionPtr = std::shared_ptr<Completion>;

// One process group with one communication thread. Requests run one after the other in issue order,
// so a group is FIFO like a stream of NCCL (ProcessGroupGloo itself is not). On CPU this thread is
// the communication stream of the schedule. On a device there is no such thread: a request is
// issued at once on the caller's current stream, which orders it, and wait() does not block.
//
// Ownership  keeps tensors of pending requests alive.
// Threads    issue and wait from the thread that trains; the requests run on the communication
//            thread or in wait(), and their start and end times go to the Recorder.
// Errors     after a failed collective every later request fails too; wait() throws RuntimeFault
//            with rank, collective, purpose and reason. Every wait ends after `timeout`.
class Communicator {
 public:
  struct Options {
    std::string name = "shard";  // process group name in traces
    int rank = 0;                // rank within the group
    int size = 1;
    int global_rank = 0;  // for messages
    std::chrono::milliseconds timeout{std::chrono::minutes(5)};
    Recorder* recorder = nullptr;
    bool emulated = false;
    c10::Device device{c10::kCPU};  // device of the tensors
    // Before each collective, all ranks compare what they are about to do. If it differs, all of
    // them fail with a message that names ranks and units (WorldOptions::check_ranks).
    bool check_ranks = false;
    std::function<std::string()> peers = {};  // what the other ranks are doing; for timeouts
  };
  Communicator(c10::intrusive_ptr<c10d::Backend> backend, Options options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return options_.rank; }
  [[nodiscard]] int size() const { return options_.size; }
  [[nodiscard]] const std::string& name() const { return options_.name; }
  [[nodiscard]] c10::Device device() const { return options_.device; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return options_.timeout; }
  void set_recorder(Recorder* recorder) {
    options_.recorder = recorder;
  }  // while no request is pending

  // `output` [size · n], `input` [n], both contiguous; `input` may be this rank's slice of
  // `output`.
  CompletionPtr all_gather(const at::Tensor& output,
                           const at::Tensor& input,
                           const Purpose& purpose);
  // The same for an input of several parts with `parts` elements each: `output` has the first part
  // of every rank, then the second of every rank, and so on. Only if gathers_parts().
  CompletionPtr all_gather_parts(const at::Tensor& output,
                                 const at::Tensor& input,
                                 std::vector<int64_t> parts,
                                 const Purpose& purpose);
  [[nodiscard]] bool gathers_parts() const;
  // `output` [n], `input` [size · n].
  CompletionPtr reduce_scatter(const at::Tensor& output,
                               const at::Tensor& input,
                               ReduceOp op,
                               const Purpose& purpose);
  CompletionPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const Purpose& purpose);
  // Copies rank `root`'s values into every rank's `tensor`.
  CompletionPtr broadcast(const at::Tensor& tensor, int root, const Purpose& purpose);
  CompletionPtr barrier(const Purpose& purpose);
  // Runs local work in order with the collectives, e.g. storing a reduced gradient.
  CompletionPtr run(std::function<void()> work, const Purpose& purpose);

  [[nodiscard]] bool checks_ranks() const { return options_.check_ranks && options_.size > 1; }
  // Checks that all ranks pass the same text, such as "parameter 'w' [3, 4]"; a collective. Does
  // nothing unless checks_ranks().
  void agree(const std::string& what);
  // The same without check_ranks, for comparisons that a run makes once. Not in an emulated world.
  void require_same(const std::string& what);

  void wait(const CompletionPtr& completion);
  // On a device: waits until the work of the current stream is done. Unlike a copy to the host it
  // ends after the timeout, with a message that says what the other ranks do. Errors: RuntimeFault.
  void wait_for_device();
  // "waits for all_gather of unit 'layers.0' over group 'shard'", or the last collective that
  // ended. Threads: any.
  [[nodiscard]] std::string doing() const;
  // Makes pending requests fail instead of run; for the shutdown after an error.
  void abort(const std::string& reason);

 private:
  struct Request;
  CompletionPtr submit(Request request);
  [[nodiscard]] bool on_device() const { return !options_.device.is_cpu(); }
  void loop();
  void close();
  void run_front(std::unique_lock<std::mutex>& lock);
  void run_until(const CompletionPtr& completion);
  // "[rank 0] all_reduce of bucket 1 over group 'world'".
  [[nodiscard]] std::string where(const Completion& completion) const;
  void compare(const std::string& what);
  [[nodiscard]] std::string after_timeout(const std::string& message) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable available_;
  std::deque<Request> queue_;
  bool stopping_ = false;
  bool running_ = false;  // a request runs, on the communication thread or on one that waits
  const Request* current_ = nullptr;  // the request that runs
  CompletionPtr last_;                // completion of the last collective that ended
  uint32_t next_sequence_ = 0;
  std::exception_ptr broken_;
  std::thread thread_;
};

}  // namespace shardlens::dist
