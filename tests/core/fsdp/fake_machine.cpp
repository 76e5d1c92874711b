#include "tests/core/fsdp/fake_machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"

namespace shardlens::test {

c10::StreamId& current_stream() {
  thread_local c10::StreamId stream = 0;
  return stream;
}

Machine& Machine::get() {
  static auto* machine = new Machine;  // outlives all tensors
  return *machine;
}

void Machine::start(uint64_t seed) {
  const std::lock_guard lock(mutex);
  stop();
  teeth_ = true;
  seed_ = seed;
  random_.seed(seed);
  queues_.clear();
  used.clear();
  ran.clear();
  waits.clear();
  bytes = {};
}

void Machine::stop() {
  const std::lock_guard lock(mutex);
  for (auto& [id, each] : queues_) {
    force({id, each.issued});
  }
  release_recorded();
  for (auto& [key, blocks] : free_) {
    for (Block* block : blocks) {
      blocks_.erase(block->data);
      std::free(block->data);
      delete block;
    }
  }
  free_.clear();
  unpoisoned_.clear();
  teeth_ = false;
}

Machine::Queue& Machine::queue(c10::StreamId stream) {
  const auto [found, fresh] = queues_.try_emplace(stream);
  if (fresh) {
    std::mt19937_64 random(seed_ * 1000003 + static_cast<uint64_t>(stream));
    random.discard(4);
    found->second.pace = static_cast<Pace>(random() % 3);
  }
  return found->second;
}

void Machine::enqueue(c10::StreamId stream, const std::string& name, std::function<void()> work) {
  const std::lock_guard lock(mutex);
  ++activity_;
  if (!teeth_) {
    return work();
  }
  Queue& on = queue(stream);
  on.tasks.push_back({name, std::move(work), {}});
  ++on.issued;
  go_on();
}

Machine::Position Machine::end_of(c10::StreamId stream) {
  const std::lock_guard lock(mutex);
  ++activity_;
  return {stream, queue(stream).issued};
}

void Machine::wait_on_stream(c10::StreamId stream, Position position) {
  const std::lock_guard lock(mutex);
  ++activity_;
  if (teeth_ && stream != position.stream) {
    Queue& on = queue(stream);
    on.tasks.push_back({"", nullptr, position});
    ++on.issued;
    go_on();
  }
}

bool Machine::ready(Queue& on) {
  if (on.tasks.empty()) {
    return false;
  }
  const Task& task = on.tasks.front();
  return task.run != nullptr || queue(task.after.stream).done >= task.after.count;
}

void Machine::step(Queue& on) {
  const Task task = std::move(on.tasks.front());
  on.tasks.pop_front();
  if (task.run != nullptr) {
    ++ran[task.name];
    task.run();
  }
  ++on.done;
}

// Runs what the streams' paces allow.
void Machine::go_on() {
  for (bool progress = true; progress;) {
    progress = false;
    for (auto& [id, each] : queues_) {
      while (each.pace == Pace::kSoon && ready(each)) {
        step(each);
        progress = true;
      }
      if (each.pace == Pace::kRandom && ready(each) && chance(0.3)) {
        step(each);
        progress = true;
      }
    }
  }
}

void Machine::force(Position position) {
  Queue& on = queue(position.stream);
  while (on.done < position.count) {
    if (chance(0.2)) {
      go_on();
    }
    if (on.done >= position.count) {
      return;
    }
    SHARDLENS_CHECK(!on.tasks.empty(), "the fake device lost an operation");
    if (!ready(on)) {
      force(on.tasks.front().after);
    } else {
      step(on);
    }
  }
}

bool Machine::query(Position position) {
  const std::lock_guard lock(mutex);
  if (queue(position.stream).done >= position.count) {
    return true;
  }
  const bool polls = queried_at_ == activity_ && queried_.stream == position.stream &&
                     queried_.count == position.count;
  queried_ = position;
  queried_at_ = activity_;
  if (polls) {
    wait_on_host(position, "event");
    return true;
  }
  go_on();
  return queue(position.stream).done >= position.count;
}

void Machine::wait_on_host(Position position, const std::string& what) {
  const std::lock_guard lock(mutex);
  waits.push_back({what, std::this_thread::get_id()});
  force(position);
}

void Machine::wait_for_current(const std::string& what) {
  const std::lock_guard lock(mutex);
  wait_on_host(end_of(current_stream()), what);
}

void Machine::stall(c10::StreamId stream) {
  const std::lock_guard lock(mutex);
  queue(stream).pace = Pace::kLast;
}

size_t Machine::queued() {
  const std::lock_guard lock(mutex);
  size_t count = 0;
  for (const auto& [id, each] : queues_) {
    count += each.tasks.size();
  }
  return count;
}

Machine::Block* Machine::allocate(size_t wanted) {
  const std::lock_guard lock(mutex);
  ++activity_;
  release_recorded();
  const size_t size = (wanted + 63) / 64 * 64;
  const c10::StreamId stream = current_stream();
  // The new owner may get any of the blocks, and the stream may have been made to wait since.
  for (Block* freed : std::exchange(unpoisoned_[stream], {})) {
    enqueue(stream, "reuse", [freed] { std::memset(freed->data, 0xff, freed->bytes); });
  }
  std::vector<Block*>& pool = free_[{stream, size}];
  Block* block = nullptr;
  if (!pool.empty()) {
    block = pool.back();
    pool.pop_back();
  } else {
    block = new Block{std::aligned_alloc(64, size), size, stream, {}};
    std::memset(block->data, 0xff, size);
    blocks_[block->data] = block;
  }
  auto& [now, most] = used[stream];
  most = std::max(most, ++now);
  bytes.increase(size);
  return block;
}

void Machine::free(Block* block) {
  const std::lock_guard lock(mutex);
  ++activity_;
  auto& [now, most] = used[block->stream];
  now -= now > 0 ? 1 : 0;  // it may be from before start()
  bytes.decrease(std::min(block->bytes, static_cast<size_t>(bytes.current)));
  if (block->uses.empty()) {
    return give_back(block);
  }
  recorded_.push_back(block);
}

// All bits set are NaN in every floating-point type.
void Machine::give_back(Block* block) {
  unpoisoned_[block->stream].push_back(block);
  free_[{block->stream, block->bytes}].push_back(block);
}

void Machine::record_use(void* data, c10::StreamId stream) {
  const std::lock_guard lock(mutex);
  const auto found = blocks_.find(data);
  if (found != blocks_.end() && found->second->stream != stream) {
    found->second->uses.push_back(end_of(stream));
  }
}

// As CUDA's allocator does when it is asked for memory.
void Machine::release_recorded() {
  for (Block* block : std::exchange(recorded_, {})) {
    const bool done = std::all_of(block->uses.begin(), block->uses.end(), [this](Position use) {
      return queue(use.stream).done >= use.count;
    });
    if (done) {
      block->uses.clear();
      give_back(block);
    } else {
      recorded_.push_back(block);
    }
  }
}

void start_device(uint64_t seed) {
  Machine::get().start(seed);
}

void stop_device() {
  Machine::get().stop();
}

std::vector<HostWait> host_waits() {
  const std::lock_guard lock(Machine::get().mutex);
  return Machine::get().waits;
}

void forget_host_waits() {
  const std::lock_guard lock(Machine::get().mutex);
  Machine::get().waits.clear();
}

void stall(c10::Stream stream) {
  Machine::get().stall(stream.id());
}

size_t queued() {
  return Machine::get().queued();
}

size_t most_blocks(c10::StreamId stream) {
  const std::lock_guard lock(Machine::get().mutex);
  return Machine::get().used[stream].second;
}

std::map<std::string, int> operators() {
  const std::lock_guard lock(Machine::get().mutex);
  return Machine::get().ran;
}

}  // namespace shardlens::test
