#include "core/dist/rendezvous.h"

#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::dist {
namespace {

std::optional<uint64_t> whole_number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                  : std::nullopt;
}

// Two steps of a job can run at the same time on one node.
uint16_t slurm_port(const Environment& environment) {
  const uint64_t job = whole_number(environment("SLURM_JOB_ID")).value_or(0);
  const uint64_t step = whole_number(environment("SLURM_STEP_ID")).value_or(0);
  return static_cast<uint16_t>(15000 + (job + 7 * (step % 1000)) % 16000);
}

}  // namespace

std::string rendezvous_name(const Environment& environment) {
  if (const std::string file = environment("SHARDLENS_RENDEZVOUS"); !file.empty()) {
    return file;
  }
  const RendezvousAddress address = rendezvous_address(environment);
  return fmt::format("{}:{}", address.host, address.port);
}

std::string first_node(const std::string& nodes) {
  std::string name;
  for (size_t i = 0; i < nodes.size() && nodes[i] != ','; ++i) {
    if (nodes[i] != '[') {
      name += nodes[i];
      continue;
    }
    const size_t close = nodes.find(']', i);
    const size_t end = nodes.find_first_of("-,]", i);
    name += nodes.substr(i + 1, end == std::string::npos ? end : end - i - 1);
    i = close == std::string::npos ? nodes.size() : close;
  }
  return name;
}

RendezvousAddress rendezvous_address(const Environment& environment) {
  RendezvousAddress out{environment("MASTER_ADDR"), 0};
  const std::string port = environment("MASTER_PORT");
  std::string nodes = environment("SLURM_STEP_NODELIST");
  if (nodes.empty()) {
    nodes = environment("SLURM_JOB_NODELIST");
  }
  const bool slurm = !nodes.empty() && !environment("SLURM_PROCID").empty();
  if (out.host.empty() && slurm) {
    out.host = first_node(nodes);
  }
  if (out.host.empty() || (port.empty() && !slurm)) {
    throw UsageError(
        "MASTER_ADDR and MASTER_PORT must be set; start with `shardlens capture`, "
        "torchrun, srun or mpirun");
  }
  if (port.empty()) {
    out.port = slurm_port(environment);
    return out;
  }
  const std::optional<uint64_t> number = whole_number(port);
  if (!number || *number < 1 || *number > 65535) {
    throw UsageError(fmt::format("MASTER_PORT is '{}', expected a port from 1 to 65535", port));
  }
  out.port = static_cast<uint16_t>(*number);
  return out;
}

std::string store_prefix(const Environment& environment) {
  const std::string attempt = environment("TORCHELASTIC_RESTART_COUNT");
  return attempt.empty() ? "" : "/worker/attempt_" + attempt;
}

}  // namespace shardlens::dist
