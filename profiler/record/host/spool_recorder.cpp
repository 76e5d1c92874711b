#include "profiler/record/host/spool_recorder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/format_bytes.h"
#include "core/schedule/action.h"
#include "profiler/record/host/clock.h"
#include "profiler/record/host/quiet_thread.h"
#include "profiler/record/host/rank_now.h"

namespace shardlens::record {
namespace {

using trace::SpoolRecord;
using trace::SpoolType;

SpoolRecord step_record(SpoolType type, int64_t step, int64_t dropped) {
  SpoolRecord record;
  record.type = type;
  record.step = {.step = step, .time = now_ns(), .dropped = dropped, .reserved = {}};
  return record;
}

uint16_t group_size(const CollectiveRecord& r) {
  constexpr int32_t kMaxRanks = std::numeric_limits<uint16_t>::max();
  return static_cast<uint16_t>(std::clamp(r.group_size, 0, kMaxRanks));
}

}  // namespace

SpoolRecorder::SpoolRecorder(SpoolOptions options)
    : options_(std::move(options)),
      file_(spool_path(options_.directory, options_.rank), options_.rank, options_.world_size),
      now_(now_path(options_.directory, options_.rank)),
      records_(options_.buffer_records) {
  buffer_.reserve(options_.buffer_records);
  open_.reserve(64);
  accepted_ = file_.bytes();
  append_text(SpoolType::kMetadata, 0, metadata());
  writer_ = thread_without_signals([this] { write_when_asked(); });
}

SpoolRecorder::~SpoolRecorder() {
  {
    const std::lock_guard lock(mutex_);
    collect();
    stop_ = true;
    ask_to_write();
  }
  writer_.join();
}

std::string SpoolRecorder::metadata() const {
  nlohmann::json groups = nlohmann::json::array();
  for (const GroupInfo& group : options_.groups) {
    groups.push_back(
        {{"name", group.name}, {"description", group.description}, {"ranks", group.ranks}});
  }
  return nlohmann::json{{"backend", options_.backend}, {"groups", std::move(groups)}}.dump();
}

void SpoolRecorder::units(std::span<const std::string> fqns) {
  for (size_t i = 0; i < fqns.size(); ++i) {
    append_text(SpoolType::kUnit, static_cast<uint32_t>(i), fqns[i]);
  }
  now_.units(fqns);
}

void SpoolRecorder::groups(std::span<const std::string> names) {
  for (size_t i = 0; i < names.size(); ++i) {
    append_text(SpoolType::kGroup, static_cast<uint32_t>(i), names[i]);
  }
}

void SpoolRecorder::step_begin(int64_t step) {
  step_ = step;
  in_step_ = true;
  now_.step(step, true);
  const bool was = recording();
  const bool on = wanted(step);
  if (on && !was) {
    recording_since_.store(now_ns(), std::memory_order_relaxed);
  }
  recording_.store(on, std::memory_order_relaxed);
  if (on) {
    append_always(step_record(SpoolType::kStepBegin, step, 0));
  }
}

bool SpoolRecorder::wanted(int64_t step) {
  if (step < options_.warmup) {
    return false;
  }
  const bool always = options_.trigger_file.empty() && !options_.on_request;
  const bool triggered =
      !options_.trigger_file.empty() && ::access(options_.trigger_file.c_str(), F_OK) == 0;
  const bool requested = options_.on_request && requested_.load(std::memory_order_relaxed) > 0 &&
                         requested_.fetch_sub(1, std::memory_order_relaxed) > 0;
  return always || triggered || requested;
}

void SpoolRecorder::step_end() {
  in_step_ = false;
  now_.step(step_, false);
  if (!recording()) {
    return;
  }
  append_always(step_record(SpoolType::kStepEnd, step_, dropped()));
  ++recorded_steps_;
  {
    const std::lock_guard lock(mutex_);
    ask_to_write();
  }
  if (warning_listener_) {
    warn_once();
  }
  if (const auto listener = step_listener_) {  // a copy, because it may remove itself
    listener();
  }
}

uint32_t SpoolRecorder::hook(const HookEvent& event) {
  const uint32_t seq = ++hooks_;
  now_.hook(event.hook, event.unit);
  if (recording()) {
    SpoolRecord record;
    record.type = SpoolType::kHook;
    record.hook = {.seq = seq,
                   .unit = event.unit,
                   .invocation = event.invocation,
                   .thread = records_.thread(),
                   .time = now_ns(),
                   .hook = static_cast<uint8_t>(event.hook),
                   .grad_mode = static_cast<uint8_t>(event.grad_mode),
                   .recompute = static_cast<uint8_t>(event.recompute),
                   .grads = static_cast<uint8_t>(event.grads),
                   .reserved = {}};
    append(record);
  }
  return seq;
}

void SpoolRecorder::action(uint32_t seq, const schedule::Action& action) {
  now_.action(seq, action);
  if (!recording()) {
    return;
  }
  SpoolRecord record;
  record.type = SpoolType::kAction;
  record.action = {.seq = seq,
                   .hook_seq = hooks_,
                   .unit = action.unit,
                   .buffer_unit = action.buffer.unit,
                   .generation = action.buffer.generation,
                   .event = action.event,
                   .thread = records_.thread(),
                   .op = static_cast<uint8_t>(action.op),
                   .stream = static_cast<uint8_t>(action.stream),
                   .group = action.group,
                   .cause = static_cast<uint8_t>(action.cause),
                   .time = now_ns(),
                   .buffer_kind = static_cast<uint8_t>(action.buffer.kind),
                   .reserved = {}};
  append(record);
}

void SpoolRecorder::range_begin(Range range, UnitId unit) {
  open_.push_back({range, unit, recording() ? now_ns() : 0});
}

void SpoolRecorder::range_end() {
  if (open_.empty()) {
    return;
  }
  const OpenRange open = open_.back();
  open_.pop_back();
  if (open.start == 0 || !recording()) {
    return;
  }
  SpoolRecord record;
  record.type = SpoolType::kRange;
  record.range = {.unit = open.unit,
                  .thread = records_.thread(),
                  .start = open.start,
                  .end = std::max(open.start, now_ns()),
                  .range = static_cast<uint8_t>(open.range),
                  .reserved = {}};
  append(record);
}

void SpoolRecorder::collective(const CollectiveRecord& r) {
  if (r.action != 0) {
    now_.completed(r.kind, r.unit);
  }
  if (!recording() || r.issued < recording_since_.load(std::memory_order_relaxed)) {
    return;
  }
  SpoolRecord record;
  record.type = r.on_device ? SpoolType::kCollectiveCall : SpoolType::kCollective;
  record.a = static_cast<uint8_t>(r.kind);
  record.b = static_cast<uint8_t>(r.dtype);
  record.c = static_cast<uint8_t>(r.emulated);
  // The clock may have been set back between the time stamps. They are corrected here, because the
  // reader would take the record for damaged.
  const Nanoseconds start = r.on_device ? r.issued : std::max(r.issued, r.start);
  record.collective = {.unit = r.unit,
                       .sequence = r.sequence,
                       .action = r.action,
                       .group_size = group_size(r),
                       .group = static_cast<uint16_t>(text(r.group)),
                       .in_nelems = r.in_nelems,
                       .out_nelems = r.out_nelems,
                       .issued = r.on_device ? 0 : r.issued,
                       .start = start,
                       .end = std::max(start, r.end)};
  if (r.on_device) {
    record.collective.thread = records_.thread();
  }
  append(record);
}

uint32_t SpoolRecorder::text(std::string_view text) {
  std::string key(text);
  uint32_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto [it, added] = texts_.try_emplace(key, static_cast<uint32_t>(texts_.size()));
    if (!added) {
      return it->second;
    }
    id = it->second;
  }
  append_text(SpoolType::kText, id, text);
  return id;
}

void SpoolRecorder::op(uint32_t name,
                       Nanoseconds start,
                       Nanoseconds end,
                       const InputShapes* shapes) {
  end = std::max(start, end);
  if (shapes == nullptr) {
    if (!records_.add_operator(name, start, end)) {
      make_space();
      records_.add_operator(name, start, end);
    }
    return;
  }
  SpoolRecord record = operator_record({name, records_.thread(), start, end});
  record.a = shapes->inputs;
  std::memcpy(record.op.ranks, shapes->ranks, sizeof(record.op.ranks));
  std::memcpy(record.op.dims, shapes->dims, sizeof(record.op.dims));
  append(record);
}

void SpoolRecorder::device_dropped(int64_t records) {
  {
    const std::lock_guard lock(mutex_);
    device_dropped_ = std::max(device_dropped_, records);
  }
  append_always(step_record(SpoolType::kDeviceDropped, step_, records));
}

void SpoolRecorder::note(std::string_view message) {
  uint32_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto [it, added] =
        notes_.try_emplace(std::string(message), static_cast<uint32_t>(notes_.size()));
    if (!added) {
      return;
    }
    id = it->second;
  }
  append_text(SpoolType::kNote, id, message);
}

void SpoolRecorder::flush() {
  std::unique_lock lock(mutex_);
  collect();
  ask_to_write();
  written_changed_.wait(lock, [this, mine = asked_] { return written_ >= mine; });
}

void SpoolRecorder::finish() {
  if (recording_.exchange(false) || step_ >= 0) {
    now_.step(step_, false);
  }
  append_always(step_record(SpoolType::kEnd, step_, dropped()));
  now_.finish();
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  flush();
}

void SpoolRecorder::remove_files() noexcept {
  file_.remove();
  now_.remove();
}

std::filesystem::path SpoolRecorder::path() const {
  return spool_path(options_.directory, options_.rank);
}

int64_t SpoolRecorder::kept() {
  const std::lock_guard lock(mutex_);
  collect();
  return kept_;
}

int64_t SpoolRecorder::dropped() {
  const std::lock_guard lock(mutex_);
  collect();
  return dropped_;
}

std::string SpoolRecorder::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::string SpoolRecorder::losses() {
  const std::lock_guard lock(mutex_);
  collect();
  if (dropped_ == 0) {
    return "";
  }
  return fmt::format("{} records were not kept: {}", dropped_,
                     error_.empty()
                         ? fmt::format("the spool's budget is {}", format_bytes(options_.budget))
                         : "writing the spool failed: " + error_);
}

// Texts are kept beyond the budget, because earlier records cannot be used without them.
void SpoolRecorder::append_text(SpoolType type, uint32_t id, std::string_view text) {
  size_t offset = 0;
  do {
    const size_t length = std::min(text.size() - offset, trace::SpoolText::kPiece);
    SpoolRecord record;
    record.type = type;
    record.text = {.id = id,
                   .length = static_cast<uint32_t>(text.size()),
                   .offset = static_cast<uint32_t>(offset),
                   .piece = {}};
    std::memcpy(record.text.piece, text.data() + offset, length);
    append_always(record);
    offset += length;
  } while (offset < text.size());
}

void SpoolRecorder::append(const SpoolRecord& record) {
  if (!records_.add(record)) {
    make_space();
    records_.add(record);
  }
}

// In the batches of threads.
void SpoolRecorder::make_space() {
  const std::lock_guard lock(mutex_);
  collect();
}

// After what all threads have added before.
void SpoolRecorder::append_always(const SpoolRecord& record) {
  const std::lock_guard lock(mutex_);
  collect();
  if (finished_) {
    return;  // not counted: the recording is over and the count has been written
  }
  buffer_.push_back(record);
  accepted_ += static_cast<Bytes>(sizeof(SpoolRecord));
  ++kept_;
}

// Takes what the threads have added, within the budget. The caller holds mutex_.
void SpoolRecorder::collect() {
  records_.take([this](auto added) {
    for (; !finished_ && !added.empty(); added = added.subspan(take_first(added))) {
    }
  });
  if (buffer_.size() >= options_.buffer_records && asked_ == taken_) {
    ask_to_write();
  }
}

// Takes or drops a first part of records; returns its size.
size_t SpoolRecorder::take_first(std::span<const SpoolRecord> added) {
  constexpr auto kSize = static_cast<Bytes>(sizeof(SpoolRecord));
  const Bytes room = std::max<Bytes>(0, (options_.budget - accepted_) / kSize);
  const auto count = std::min(static_cast<Bytes>(added.size()), room);
  buffer_.insert(buffer_.end(), added.begin(), added.begin() + count);
  accepted_ += count * kSize;
  kept_ += count;
  dropped_ += static_cast<int64_t>(added.size()) - count;
  return added.size();
}

size_t SpoolRecorder::take_first(std::span<const RanOperator> added) {
  constexpr auto kSize = static_cast<Bytes>(sizeof(SpoolRecord));
  if (accepted_ + kSize > options_.budget) {
    dropped_ += static_cast<int64_t>(added.size());
    return added.size();
  }
  const SpoolRecord& packed = buffer_.emplace_back(pack_first(added));
  accepted_ += kSize;
  kept_ += events_in(packed);
  return static_cast<size_t>(events_in(packed));
}

// The caller holds mutex_.
void SpoolRecorder::ask_to_write() {
  ++asked_;
  asked_changed_.notify_one();
}

// The writer's thread.
void SpoolRecorder::write_when_asked() {
  std::vector<SpoolRecord> batch;
  batch.reserve(options_.buffer_records);
  std::unique_lock lock(mutex_);
  do {
    asked_changed_.wait(lock, [this] { return asked_ > taken_; });
    taken_ = asked_;
    const uint64_t mine = taken_;
    batch.swap(buffer_);
    lock.unlock();
    const size_t written = file_.append(batch);
    if (options_.keep_newest) {
      make_room();
    }
    lock.lock();
    if (written < batch.size()) {
      int64_t lost = 0;
      std::for_each(batch.begin() + static_cast<std::ptrdiff_t>(written), batch.end(),
                    [&lost](const SpoolRecord& record) { lost += events_in(record); });
      dropped_ += lost;
      kept_ -= lost;
      error_ = file_.error();
    }
    batch.clear();
    written_ = mine;
    written_changed_.notify_all();
  } while (!stop_ || asked_ > taken_);
}

// The writer's thread; mutex_ is not held.
void SpoolRecorder::make_room() {
  const Bytes before = file_.bytes();
  const Bytes part = options_.budget / 3;
  const size_t removed = before > 2 * part ? file_.keep_newest(part) : 0;
  if (removed == 0) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    accepted_ -= before - file_.bytes();
    removed_steps_ += static_cast<int64_t>(removed);
  }
  note(fmt::format("the spool keeps the newest steps in {}; earlier recorded steps were removed",
                   format_bytes(options_.budget)));
}

void SpoolRecorder::warn_once() {
  Bytes used = 0;
  int64_t dropped = 0, device_dropped = 0, removed = 0;
  std::string error;
  {
    const std::lock_guard lock(mutex_);
    used = accepted_;
    dropped = dropped_;
    device_dropped = device_dropped_;
    removed = removed_steps_;
    error = error_;
  }
  const std::string budget = format_bytes(options_.budget);
  if (dropped > 0 && !std::exchange(said_dropped_, true)) {
    said_nearly_full_ = true;
    warning_listener_(
        error.empty() ? fmt::format("the spool's budget of {} is used up in step {}: from now on "
                                    "records are dropped; record fewer steps or raise the budget",
                                    budget, step_)
                      : fmt::format("writing the spool failed before the end of step {}, records "
                                    "are dropped: {}",
                                    step_, error));
  }
  if (removed > 0 && !std::exchange(said_removed_, true)) {
    warning_listener_(
        fmt::format("the spool has reached its budget of {} in step {}: from now on the oldest "
                    "recorded steps are removed",
                    budget, step_));
  }
  if (!options_.keep_newest && used > options_.budget / 4 * 3 &&
      !std::exchange(said_nearly_full_, true)) {
    const Bytes per_step = std::max<Bytes>(1, used / recorded_steps_);
    warning_listener_(fmt::format(
        "the spool has {} of its budget of {} after step {}: there is room for about {} more steps "
        "like these, then records are dropped",
        format_bytes(used), budget, step_, std::max<Bytes>(0, options_.budget - used) / per_step));
  }
  if (device_dropped > 0 && !std::exchange(said_device_, true)) {
    warning_listener_(fmt::format(
        "{} records of the device were lost until step {}: its recorder's buffers were full",
        device_dropped, step_));
  }
}

}  // namespace shardlens::record
