#include "profiler/record/host/now_page.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include "core/base/error.h"
#include "core/schedule/collective_of.h"
#include "profiler/record/host/now_layout.h"

namespace shardlens::record {
namespace {

// Makes `version` odd for the duration of a scope.
class Writing {
 public:
  explicit Writing(std::atomic<uint32_t>& version) : version_(version) {
    version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Writing() {
    version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  std::atomic<uint32_t>& version_;
};

template <typename T, typename U>
void put(std::atomic<T>& field, U value) {
  field.store(static_cast<T>(value), std::memory_order_relaxed);
}

}  // namespace

NowPage::NowPage(const std::filesystem::path& path) {
  std::optional<OutputFile> file;
  try {
    file.emplace(OutputFile::temporary(OutputFolder::of(path), path.filename().string(), 0644));
  } catch (const WriteFault& fault) {
    throw RuntimeFault(fmt::format("cannot create {}: {}", path.string(), fault.reason()));
  }
  // Reserve the space before mapping: a store to a page for which the disk has no room raises
  // SIGBUS.
  int no_room = 0;
  do {
    no_room = ::posix_fallocate(file->descriptor(), 0, static_cast<off_t>(kNowBytes));
  } while (no_room == EINTR);
  int flags = MAP_SHARED;
  if (no_room != 0) {
    error_ =
        fmt::format("cannot create {}: {}; the state of the rank when it ends will not be known",
                    path.string(), std::strerror(no_room));
    file.reset();
    flags = MAP_PRIVATE | MAP_ANONYMOUS;
  }
  void* memory =
      ::mmap(nullptr, kNowBytes, PROT_READ | PROT_WRITE, flags, file ? file->descriptor() : -1, 0);
  if (memory == MAP_FAILED) {
    throw RuntimeFault(fmt::format("cannot create {}: {}", path.string(), std::strerror(errno)));
  }
  page_ = new (memory) NowLayout();
  std::fill(std::begin(last_issued_unit_), std::end(last_issued_unit_), kNoUnit);
  page_->magic.store(kNowMagic, std::memory_order_release);
  if (file) {
    publish(*file, path);
  }
}

// A whole page gets the name, in place of that of an earlier run.
void NowPage::publish(OutputFile& file, const std::filesystem::path& path) {
  try {
    file.publish(path.filename().string());
    folder_ = file.folder();
    name_ = file.name();
    made_ = file.identity();
  } catch (const WriteFault& fault) {
    ::munmap(page_, kNowBytes);
    throw RuntimeFault(fmt::format("cannot create {}: {}", path.string(), fault.reason()));
  }
}

void NowPage::remove() noexcept {
  if (folder_) {
    folder_->remove(name_, *made_);
  }
}

NowPage::~NowPage() {
  ::munmap(page_, kNowBytes);
}

void NowPage::units(std::span<const std::string> fqns) {
  const Writing writing(page_->version);
  size_t used = 0;
  uint32_t count = 0;
  for (const std::string& fqn : fqns) {
    if (used + fqn.size() + 1 > NowLayout::kNameBytes) {
      break;
    }
    std::memcpy(page_->names.data() + used, fqn.c_str(), fqn.size() + 1);
    used += fqn.size() + 1;
    ++count;
  }
  put(page_->unit_count, count);
}

void NowPage::step(int64_t step, bool inside) {
  const Writing writing(page_->version);
  put(page_->step, step);
  put(page_->in_step, inside);
}

void NowPage::hook(Hook hook, UnitId unit) {
  const Writing writing(page_->version);
  put(page_->hook, hook);
  put(page_->hook_unit, unit);
}

void NowPage::action(uint32_t seq, const schedule::Action& action) {
  const Writing writing(page_->version);
  put(page_->action, seq);
  put(page_->op, action.op);
  put(page_->stream, action.stream);
  put(page_->unit, action.unit);
  put(page_->event, action.event);
  const auto stream = static_cast<size_t>(action.stream);
  if (schedule::collective_of(action.op)) {
    put(page_->issued, page_->issued.load(std::memory_order_relaxed) + 1);
    last_issued_[stream] = action.op;
    last_issued_unit_[stream] = action.unit;
  } else if (action.op == schedule::Op::kRecord && schedule::collective_of(last_issued_[stream])) {
    EventSource& source = page_->events[action.event % NowLayout::kEvents];
    put(source.event, action.event);
    put(source.op, last_issued_[stream]);
    put(source.unit, last_issued_unit_[stream]);
  }
}

void NowPage::completed(CollectiveKind kind, UnitId unit) {
  page_->completed.fetch_add(1, std::memory_order_relaxed);
  put(page_->last_completed, static_cast<uint64_t>(kind) << 32 | unit);
}

void NowPage::finish() {
  put(page_->finished, 1U);
}

}  // namespace shardlens::record
