#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace shardlens::dist {

// Returns an environment variable's value, "" if it is not set.
using Environment = std::function<std::string(const char*)>;

struct RendezvousAddress {  // where the ranks meet: rank 0 listens
  std::string host;
  uint16_t port = 0;
  friend bool operator==(const RendezvousAddress&, const RendezvousAddress&) = default;
};

// Where the ranks of a world meet: MASTER_ADDR and MASTER_PORT (torchrun, mpirun, `shardlens
// capture`). What is not set is taken from Slurm's variables if `srun` has set them: the first node
// of the step, which runs rank 0, and a port from 15000 to 30999 that depends on job and step.
// Errors: UsageError naming the variable.
[[nodiscard]] RendezvousAddress rendezvous_address(const Environment& environment);

// "host:port", or the file that SHARDLENS_RENDEZVOUS names: for messages. Errors: as above.
[[nodiscard]] std::string rendezvous_name(const Environment& environment);

// The first name of a Slurm list of nodes: "gpu-03" of "gpu-[03-05,9],login". "" of "".
[[nodiscard]] std::string first_node(const std::string& nodes);

// Prefix of all keys in the store. After a restart torchrun's agent still serves the store with the
// keys of the processes that ended, so each attempt has its own, as in PyTorch
// (torch/distributed/rendezvous.py, _torchelastic_use_agent_store).
[[nodiscard]] std::string store_prefix(const Environment& environment);

}  // namespace shardlens::dist
