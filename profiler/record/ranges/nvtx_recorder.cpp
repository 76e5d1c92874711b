#include "profiler/record/ranges/nvtx_recorder.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <nvtx3/nvToolsExt.h>

#include "profiler/record/ranges/nvtx_domain.h"

namespace shardlens::record {

// Texts are registered in advance, so that NVTX does not copy them and a range costs one call.
class NvtxRecorder::Domain {
 public:
  Domain() : domain_(::nvtxDomainCreateA(std::string(kNvtxDomain).c_str())) {
    for (int i = 0; i < kRangeCount; ++i) {
      const auto range = static_cast<Range>(i);
      names_[static_cast<size_t>(i)] = registered(std::string(name_of(range)));
    }
  }
  ~Domain() { ::nvtxDomainDestroy(domain_); }
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  void units(std::span<const std::string> fqns) {
    units_.clear();
    for (const std::string& fqn : fqns) {
      const std::string suffix = fqn.empty() ? "" : fmt::format(" ({})", fqn);
      Unit& unit = units_.emplace_back();
      for (int i = 0; i < kRangeCount; ++i) {
        const auto range = static_cast<Range>(i);
        if (names_unit(range)) {
          unit.ranges[static_cast<size_t>(i)] =
              registered(fmt::format("{}{}", name_of(range), suffix));
        }
      }
      unit.forward = registered("forward" + suffix);
      unit.backward = registered("backward" + suffix);
    }
  }

  void push(Range range, UnitId unit) {
    const auto index = static_cast<size_t>(range);
    const bool named = names_unit(range) && unit < units_.size();
    push(named ? units_[unit].ranges[index] : names_[index]);
  }
  void push(const std::string& text) { push(registered(text)); }
  void pop() {
    ::nvtxDomainRangePop(domain_);
    ended_ += counting_ ? 1 : 0;
  }

  void hook(const HookEvent& event) {
    if (event.recompute || event.unit >= units_.size()) {
      return;
    }
    Unit& unit = units_[event.unit];
    switch (event.hook) {
      case Hook::kPreForward:
        end(unit);
        begin(unit, unit.forward);
        break;
      case Hook::kPreBackward:
        end(unit);
        begin(unit, unit.backward);
        break;
      case Hook::kPostForward:
      case Hook::kGradsReady:
        end(unit);
        break;
      default:
        break;
    }
  }
  void end_all() {
    for (Unit& unit : units_) {
      end(unit);
    }
  }
  void count(bool on) { counting_ = on; }
  [[nodiscard]] int64_t ended() const { return ended_; }

 private:
  struct Unit {
    std::array<nvtxStringHandle_t, kRangeCount> ranges{};
    nvtxStringHandle_t forward = nullptr, backward = nullptr;
    // Id of the open forward or backward range; units end these in any order.
    nvtxRangeId_t open = 0;
    bool is_open = false;
  };

  nvtxStringHandle_t registered(const std::string& text) {
    return ::nvtxDomainRegisterStringA(domain_, text.c_str());
  }
  static nvtxEventAttributes_t attributes(nvtxStringHandle_t name) {
    nvtxEventAttributes_t a{};
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = name;
    return a;
  }
  void push(nvtxStringHandle_t name) {
    const nvtxEventAttributes_t a = attributes(name);
    ::nvtxDomainRangePushEx(domain_, &a);
  }
  void begin(Unit& unit, nvtxStringHandle_t name) {
    const nvtxEventAttributes_t a = attributes(name);
    unit.open = ::nvtxDomainRangeStartEx(domain_, &a);
    unit.is_open = true;
  }
  void end(Unit& unit) {
    if (std::exchange(unit.is_open, false)) {
      ::nvtxDomainRangeEnd(domain_, unit.open);
      ended_ += counting_ ? 1 : 0;
    }
  }

  nvtxDomainHandle_t domain_;
  std::array<nvtxStringHandle_t, kRangeCount> names_{};
  std::vector<Unit> units_;
  int64_t ended_ = 0;
  bool counting_ = true;
};

NvtxRecorder::NvtxRecorder(Recorder* next, std::function<bool()> counts)
    : ForwardingRecorder(next), counts_(std::move(counts)), domain_(std::make_unique<Domain>()) {}
NvtxRecorder::~NvtxRecorder() = default;

void NvtxRecorder::units(std::span<const std::string> fqns) {
  domain_->units(fqns);
  ForwardingRecorder::units(fqns);
}

void NvtxRecorder::step_begin(int64_t step) {
  ForwardingRecorder::step_begin(step);
  domain_->count(!counts_ || counts_());
  domain_->push(fmt::format("step {}", step));
}

void NvtxRecorder::step_end() {
  domain_->end_all();
  domain_->pop();
  ForwardingRecorder::step_end();
}

uint32_t NvtxRecorder::hook(const HookEvent& event) {
  domain_->hook(event);
  return ForwardingRecorder::hook(event);
}

void NvtxRecorder::range_begin(Range range, UnitId unit) {
  domain_->push(range, unit);
  ForwardingRecorder::range_begin(range, unit);
}

void NvtxRecorder::range_end() {
  ForwardingRecorder::range_end();
  domain_->pop();
}

int64_t NvtxRecorder::ended() const {
  return domain_->ended();
}

}  // namespace shardlens::record
