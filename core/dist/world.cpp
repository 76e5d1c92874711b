#include "core/dist/world.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/error.h"
#include "core/base/this_process.h"
#include "core/dist/backend.h"
#include "core/dist/cuda_backends.h"
#include "core/dist/peers.h"
#include "core/dist/rendezvous.h"

namespace shardlens::dist {
namespace {

struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  std::string hostname;  // interface for Gloo to listen on; empty: resolve this machine's name
};

Rendezvous tcp_rendezvous(const WorldOptions& options) {
  const std::string rank = "[rank " + std::to_string(options.rank) + "] ";
  RendezvousAddress address;
  try {
    address = rendezvous_address(environment_variable);
  } catch (const UsageError& error) {
    throw UsageError(rank + error.what());
  }
  c10d::TCPStoreOptions store;
  store.port = address.port;
  // torchrun's agent may already serve the store; otherwise rank 0 does.
  store.isServer =
      options.rank == 0 && environment_variable("TORCHELASTIC_USE_AGENT_STORE") != "True";
  store.numWorkers = static_cast<size_t>(options.world_size);
  store.timeout = options.timeout;
  store.waitWorkers = false;
  try {
    const bool local = address.host == "127.0.0.1" || address.host == "localhost";
    return {c10::make_intrusive<c10d::TCPStore>(address.host, store), local ? "127.0.0.1" : ""};
  } catch (const c10::Error& error) {
    throw RuntimeFault(rank + "cannot " + (store.isServer ? "serve" : "reach") +
                       " the rendezvous at " + rendezvous_name(environment_variable) + ": " +
                       error.what_without_backtrace());
  }
}

Rendezvous rendezvous(const WorldOptions& options) {
  const std::string file = environment_variable("SHARDLENS_RENDEZVOUS");
  if (file.empty()) {
    Rendezvous met = tcp_rendezvous(options);
    if (const std::string prefix = store_prefix(environment_variable); !prefix.empty()) {
      met.store = c10::make_intrusive<c10d::PrefixStore>(prefix, met.store);
    }
    return met;
  }
  auto store = c10::make_intrusive<c10d::FileStore>(file, options.world_size);
  store->setTimeout(options.timeout);
  return {store, "127.0.0.1"};
}

class JoinedWorld : public World {
 public:
  explicit JoinedWorld(const WorldOptions& options)
      : options_(options), recorder_(options.recorder) {
    options_.check_ranks =
        options.check_ranks || environment_variable("TORCH_DISTRIBUTED_DEBUG") == "DETAIL";
    if (options.backend != BackendKind::kEmulated && options.world_size > 1) {
      met_ = rendezvous(options);
    } else if (options.backend == BackendKind::kNccl && options.force_collectives) {
      met_ = {c10::make_intrusive<c10d::HashStore>(), ""};
    }
    world_ = make_group({.name = "world", .size = options.world_size});
    if (met_.has_value()) {
      peers_ = std::make_unique<Peers>(c10::make_intrusive<c10d::PrefixStore>("peers", met_->store),
                                       options.rank, options.world_size, options.timeout,
                                       [this] { return doing(); });
      // Without this barrier a rank that is connected could end at once, and the connection
      // attempts of other ranks would fail.
      world_->wait(world_->barrier({kNoUnit, "joining"}));
    }
  }

  // The destructor of a group may communicate ([Note: Leaving]): all ranks destroy the groups in
  // the same order, and peers_ must still exist for the message after a timeout.
  ~JoinedWorld() override {
    {
      const std::lock_guard lock(watched_mutex_);
      watched_.clear();
    }
    while (!groups_.empty()) {
      groups_.pop_back();
    }
    world_.reset();
  }
  JoinedWorld(const JoinedWorld&) = delete;
  JoinedWorld& operator=(const JoinedWorld&) = delete;

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.world_size; }
  [[nodiscard]] bool emulated() const override {
    return options_.backend == BackendKind::kEmulated;
  }
  Communicator& world() override { return *world_; }

  Communicator& of(const mesh::Group& group) override {
    if (group.size == options_.world_size && !group.separate) {
      return *world_;
    }
    const auto found = std::ranges::find(groups_, group, &Made::group);
    return found != groups_.end() ? *found->communicator
                                  : *groups_.emplace_back(group, make_group(group)).communicator;
  }

  void set_recorder(Recorder* recorder) override {
    recorder_ = recorder;
    world_->set_recorder(recorder);
    for (const Made& each : groups_) {
      each.communicator->set_recorder(recorder);
    }
  }

  void abort(const std::string& reason) override {
    world_->abort(reason);
    for (const Made& each : groups_) {
      each.communicator->abort(reason);
    }
  }

 private:
  struct Made {
    mesh::Group group;
    std::unique_ptr<Communicator> communicator;
  };

  std::unique_ptr<Communicator> make_group(const mesh::Group& of) {
    const auto rank = static_cast<int>(of.position(options_.rank));
    const auto size = static_cast<int>(of.size);
    c10::intrusive_ptr<c10d::Backend> backend;
    // NCCL also in a world of one rank, with force_collectives.
    if (met_.has_value() && (size > 1 || options_.world_size == 1)) {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(
          fmt::format("{}.{}x{}.{}", of.name, of.size, of.stride, of.first(options_.rank)),
          met_->store);
      backend = options_.backend == BackendKind::kNccl
                    ? cuda_backends().nccl(store, rank, size, options_.timeout, options_.device)
                    : make_gloo_backend(store, rank, size, options_.timeout, met_->hostname);
    } else if (options_.backend == BackendKind::kEmulated && options_.device.is_cuda()) {
      backend = cuda_backends().emulated(rank, size, options_.timer, options_.device);
    } else {
      // Emulated, or the only rank of the group: collectives only copy this rank's data.
      backend = make_emulated_backend(rank, size, options_.timer);
    }
    Communicator::Options group;
    group.name = of.name;
    group.rank = rank;
    group.size = size;
    group.global_rank = options_.rank;
    group.timeout = options_.timeout;
    group.recorder = recorder_;
    group.device = options_.device;
    group.emulated = options_.backend == BackendKind::kEmulated;
    // Emulated peers always do the same as this rank.
    group.check_ranks = options_.check_ranks && !group.emulated;
    group.peers = [this] { return peers_ == nullptr ? "" : peers_->report(); };
    auto communicator = std::make_unique<Communicator>(std::move(backend), group);
    const std::lock_guard lock(watched_mutex_);
    watched_.push_back(communicator.get());
    return communicator;
  }

  // What one of the groups waits for, or else what one of them did last. Runs on the thread of
  // peers_.
  std::string doing() {
    const std::lock_guard lock(watched_mutex_);
    std::string idle;
    for (const Communicator* group : watched_) {
      const std::string doing = group->doing();
      if (doing.starts_with("waits")) {
        return doing;
      }
      idle = idle.empty() ? doing : idle;
    }
    return idle;
  }

  WorldOptions options_;
  Recorder* recorder_;
  std::optional<Rendezvous> met_;  // nullopt: emulated, or the only rank
  std::unique_ptr<Communicator> world_;
  std::vector<Made> groups_;  // in the order in which they were made
  std::mutex watched_mutex_;
  std::vector<const Communicator*> watched_;  // guarded by watched_mutex_
  std::unique_ptr<Peers> peers_;
};

}  // namespace

std::unique_ptr<World> World::join(const WorldOptions& options) {
  if (options.rank < 0 || options.rank >= options.world_size) {
    throw UsageError("rank " + std::to_string(options.rank) + " is not below world size " +
                     std::to_string(options.world_size));
  }
  return std::make_unique<JoinedWorld>(options);
}

}  // namespace shardlens::dist
