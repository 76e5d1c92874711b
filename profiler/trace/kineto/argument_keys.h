#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardlens::trace {

// Members of an event's "args" that the reader understands.
enum class Argument : uint8_t {
  kCollectiveName,
  kDtype,
  kGroup,
  kGroupDescription,
  kGroupRanks,
  kUnit,
  kBufferUnit,
  kOp,
  kHook,
  kStream,
  kBuffer,
  kCause,
  kAxis,
  kGrads,
  kName,
  kLabels,
  kSyncKind,
  kInNelems,
  kOutNelems,
  kGroupSize,
  kSeq,
  kKinetoSeq,
  kCommsId,
  kHookSeq,
  kAction,
  kIssued,
  kCorrelation,
  kGeneration,
  kEvent,
  kInvocation,
  kSortIndex,
  kEmulated,
  kGradMode,
  kRecompute,
  kExternalId,
  kDevice,
  kContext,
  kBytes,
  kGraph,
  kGraphNode,
  kModuleFqn,
  kAnnotation,
  kAutogradPhase,
  kEventId,
  kWaitOnStream,
  kWaitOnRecord,
  kWaitOnEvent,
  kAddress,
  kMemoryBytes,
  kTotalAllocated,
  kTotalReserved,
  kDeviceType,
  kDeviceId,
  kCount
};
inline constexpr size_t kArgumentCount = static_cast<size_t>(Argument::kCount);

inline constexpr std::array<std::string_view, kArgumentCount> kArgumentNames{
    "Collective name",
    "dtype",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "unit",
    "buffer_unit",
    "op",
    "hook",
    "stream",
    "buffer",
    "cause",
    "axis",
    "grads",
    "name",
    "labels",
    "cuda_sync_kind",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "seq",
    "Seq",
    "Comms Id",
    "hook_seq",
    "action",
    "issued_ns",
    "correlation",
    "generation",
    "event",
    "invocation",
    "sort_index",
    "emulated",
    "grad_mode",
    "recompute",
    "External id",
    "device",
    "context",
    "bytes",
    "graph id",
    "graph node id",
    "module_fqn",
    "str",
    "autograd_phase",
    "event id",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
    "wait_on_cuda_event_id",
    "Addr",
    "Bytes",
    "Total Allocated",
    "Total Reserved",
    "Device Type",
    "Device Id",
};

// Finds a key with a perfect hash (no collisions), whose seed is searched for at compile time.
class ArgumentKeys {
 public:
  constexpr ArgumentKeys() {
    while (!fill()) {
      ++seed_;
    }
  }
  // kCount if the key is not one of kArgumentNames.
  [[nodiscard]] constexpr Argument find(std::string_view key) const {
    if (key.empty()) {
      return Argument::kCount;
    }
    const Argument found = slots_[slot_of(key)];
    return found != Argument::kCount && kArgumentNames[static_cast<size_t>(found)] == key
               ? found
               : Argument::kCount;
  }

 private:
  static constexpr size_t kSlots = 256;

  [[nodiscard]] constexpr size_t slot_of(std::string_view key) const {
    const auto at = [&](size_t i) {
      return static_cast<uint32_t>(static_cast<unsigned char>(key[i]));
    };
    const uint32_t parts = at(0) | at(key.size() / 2) << 8 | at(key.size() - 1) << 16 |
                           static_cast<uint32_t>(key.size()) << 24;
    return (parts * (seed_ * 2 + 1)) >> 24;
  }
  constexpr bool fill() {
    slots_.fill(Argument::kCount);
    for (size_t i = 0; i < kArgumentCount; ++i) {
      Argument& slot = slots_[slot_of(kArgumentNames[i])];
      if (slot != Argument::kCount) {
        return false;
      }
      slot = static_cast<Argument>(i);
    }
    return true;
  }

  uint32_t seed_ = 0x4F1BBCD;
  std::array<Argument, kSlots> slots_{};
};
inline constexpr ArgumentKeys kArgumentKeys;

}  // namespace shardlens::trace
