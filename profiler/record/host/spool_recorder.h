#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/recorder.h"
#include "core/base/units.h"
#include "profiler/record/host/now_page.h"
#include "profiler/record/host/spool_file.h"
#include "profiler/record/host/thread_records.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::record {

// A process group, for the trace's distributedInfo. `name` is the same as in
// CollectiveRecord::group.
struct GroupInfo {
  std::string name;
  std::string description;  // "shard axis", …
  std::vector<int> ranks;
};

struct SpoolOptions {               // of one rank's spool
  std::filesystem::path directory;  // must exist
  int rank = 0, world_size = 1;
  std::string backend = {};  // "gloo", "nccl", "emulated"
  std::vector<GroupInfo> groups = {};
  int64_t warmup = 0;  // first steps (counted from 0) that are not recorded
  // If either of these is set, only those steps are recorded at whose start the file exists, or
  // that request() asked for.
  std::filesystem::path trigger_file = {};
  bool on_request = false;
  // Size limit of the spool; further records are dropped and counted.
  Bytes budget = Bytes{256} << 20;
  // Instead, remove the oldest steps before the limit is reached: the newest ones are kept, at
  // least those in a third of the budget. The file and its copy meanwhile stay within the budget.
  // Records are still dropped if a single step takes more than two thirds of it.
  bool keep_newest = false;
  size_t buffer_records = size_t{1} << 15;
};

// Shapes of an operator's inputs; at most SpoolOperator::kMaxInputs inputs and kMaxDims dimensions
// in total.
struct InputShapes {
  uint8_t inputs = 0;
  uint8_t ranks[trace::SpoolOperator::kMaxInputs] = {};
  int32_t dims[trace::SpoolOperator::kMaxDims] = {};
};

// Recorder that appends to DIR/rank<r>.spool and keeps DIR/rank<r>.now up to date. finish() and
// host/finish.h convert the spool to a trace; after a fault the spool remains.
//
// Writing     each thread adds to a batch of its own, without a lock. A thread of the recorder's
//             own writes the file, after every step and whenever the buffer is full; no other
//             thread waits for it, except in flush() and finish(). If the process is killed, what
//             was recorded in the last moments may be missing.
// Threads     as Recorder; op(), text(), collective(), device() and note() from any thread.
// Errors      the constructor throws RuntimeFault; recording never throws. If the disk is full, the
//             spool ends: see error().
class SpoolRecorder final : public Recorder {
 public:
  explicit SpoolRecorder(SpoolOptions options);
  // Writes the buffer; without finish() the spool has no end marker.
  ~SpoolRecorder() override;

  void units(std::span<const std::string> fqns) override;
  void groups(std::span<const std::string> names) override;
  void step_begin(int64_t step) override;
  void step_end() override;
  uint32_t hook(const HookEvent& event) override;
  void action(uint32_t seq, const schedule::Action& action) override;
  void range_begin(Range range, UnitId unit) override;
  void range_end() override;
  void collective(const CollectiveRecord& record) override;

  // Whether the current step is recorded. Observers check this before they read the clock.
  [[nodiscard]] bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }
  // Id of a text for op(); the same text has the same id.
  uint32_t text(std::string_view text);
  // An operator that ran on the calling thread. `shapes` may be null.
  void op(uint32_t name, Nanoseconds start, Nanoseconds end, const InputShapes* shapes);

  // Adds a record of the device; its type must be one of the device types.
  void device(const trace::SpoolRecord& record) { append(record); }
  // Reports how many device records have been lost since the start; the largest value is used.
  void device_dropped(int64_t records);
  // Adds a message to the trace's diagnostics, once even if called several times.
  void note(std::string_view message);
  // Adds a text of any length under an id, e.g. a device's properties.
  void append_text(trace::SpoolType type, uint32_t id, std::string_view text);

  // With SpoolOptions::on_request, also records the next `steps` steps. From any thread or signal
  // handler.
  void request(int64_t steps) noexcept { requested_.fetch_add(steps, std::memory_order_relaxed); }

  // `listener` is called before an operator runs, on the operator's thread, while recording; null:
  // none.
  void set_launch_listener(void (*listener)()) noexcept {
    launch_listener_.store(listener, std::memory_order_relaxed);
  }
  void before_launch() const {
    if (void (*listener)() = launch_listener_.load(std::memory_order_relaxed)) {
      listener();
    }
  }

  // `listener` is called on the training thread, at the end of a step, with a sentence about the
  // spool: most of its budget is used, records are being dropped or steps removed, the device's
  // recorder lost some, or writing failed. Each once.
  void set_warning_listener(std::function<void(const std::string&)> listener) {
    warning_listener_ = std::move(listener);
  }

  // `listener` is called after each recorded step, on the training thread; empty: none.
  void set_step_listener(std::function<void()> listener) { step_listener_ = std::move(listener); }

  // Waits until all that was recorded is in the file, e.g. before exiting after a fault; from any
  // thread.
  void flush();

  // Writes the end marker. Nothing is recorded afterwards.
  void finish();
  // Removes the spool and the page, when a trace has replaced them. Only after finish().
  void remove_files() noexcept;
  [[nodiscard]] std::filesystem::path path() const;
  [[nodiscard]] const SpoolOptions& options() const { return options_; }
  [[nodiscard]] int64_t kept();  // records; SpoolOptions::keep_newest may have removed some
  [[nodiscard]] int64_t dropped();
  [[nodiscard]] std::string error() const;  // why the spool ended early; "" if it did not
  // A sentence about what was lost so far; "": nothing.
  [[nodiscard]] std::string losses();
  [[nodiscard]] const std::string& page_error() const { return now_.error(); }  // NowPage::error

 private:
  struct OpenRange {
    Range range;
    UnitId unit;
    Nanoseconds start;  // 0: began while not recording
  };

  void append(const trace::SpoolRecord& record);  // within the budget
  void append_always(const trace::SpoolRecord& record);
  void make_space();
  void collect();
  size_t take_first(std::span<const trace::SpoolRecord> added);
  size_t take_first(std::span<const RanOperator> added);
  [[nodiscard]] bool wanted(int64_t step);
  void ask_to_write();
  void write_when_asked();
  void make_room();
  void warn_once();
  [[nodiscard]] std::string metadata() const;

  const SpoolOptions options_;
  SpoolFile file_;  // the writer's only; locked before the page replaces that of another process
  NowPage now_;
  std::atomic<bool> recording_{false};
  std::atomic<Nanoseconds> recording_since_{0};
  std::atomic<int64_t> requested_{0};  // number of steps still to be recorded
  std::atomic<void (*)()> launch_listener_{nullptr};
  ThreadRecords records_;  // taken by who holds mutex_

  // Training thread only.
  int64_t step_ = -1;
  bool in_step_ = false;
  uint32_t hooks_ = 0;
  std::vector<OpenRange> open_;
  std::function<void()> step_listener_;
  std::function<void(const std::string&)> warning_listener_;
  int64_t recorded_steps_ = 0;
  bool said_nearly_full_ = false, said_removed_ = false, said_dropped_ = false;
  bool said_device_ = false;

  mutable std::mutex mutex_;  // guards the members below; not held while the file is written
  std::condition_variable asked_changed_, written_changed_;
  std::vector<trace::SpoolRecord> buffer_;
  Bytes accepted_ = 0;  // written or in the buffer
  std::string error_;   // of the file
  int64_t kept_ = 0, dropped_ = 0, device_dropped_ = 0, removed_steps_ = 0;
  // Requests to write: made, taken by the writer, and done.
  uint64_t asked_ = 0, taken_ = 0, written_ = 0;
  bool finished_ = false, stop_ = false;
  std::unordered_map<std::string, uint32_t> texts_, notes_;

  std::thread writer_;  // last: it uses all others
};

}  // namespace shardlens::record
