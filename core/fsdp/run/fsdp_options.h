#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include "core/base/recorder.h"
#include "core/fsdp/unit/all_gather_extension.h"

namespace shardlens::dist {
class World;
}

namespace shardlens::fsdp {

class Collectives;
class Executor;
class FlatParamHandle;

struct Options {                 // settings of fully_shard besides the plan
  dist::World* world = nullptr;  // not owned; must outlive the ShardedModel
  Recorder* recorder = nullptr;  // not owned; may be null
  // Check every action with schedule::Ledger and fail on a broken invariant.
  bool check_ledger = false;
  // Shards of parameters without storage (models::Init::kNone) get no storage until
  // ShardedModel::materialize(): sharding then needs no memory for any size of the model.
  bool deferred = false;
  // Every rank starts with rank 0's parameters and buffers.
  bool sync_module_states = false;
  // The world's device, to which a model that is on the CPU is brought: buffers are moved, and of
  // the parameters each rank's part is copied. nullopt: the model must be on the device.
  std::optional<c10::Device> device_id = {};
  // Issue collectives over groups of one rank too, so that their streams and error paths are used.
  bool force_collectives = false;
  // All-gathers that send something else than the shard, as fp8. Plans and simulations do not have
  // it: they count the bytes of param_dtype, and one copy-out less in layout flat.
  MakeAllGatherExtension all_gather_extension = {};
  // The user's collectives for the units; null: those of the process groups.
  std::shared_ptr<Collectives> collectives = {};
  // Makes the executor (`handles` by UnitId, null for units without parameters); empty: an
  // Executor.
  std::function<std::unique_ptr<Executor>(std::vector<FlatParamHandle*> handles)> make_executor =
      {};
};

}  // namespace shardlens::fsdp
