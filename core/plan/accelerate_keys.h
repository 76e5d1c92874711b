#pragma once

#include <array>
#include <string_view>

namespace shardlens::plan {

// A key of accelerate's files that no plan has, and why: it changes nothing here.
struct NoPlanKey {
  std::string_view name, why;
};

inline constexpr std::string_view kHowToStart = "says how processes start";
inline constexpr std::string_view kHowToLoad = "says how weights are loaded";

// Keys of the file of `accelerate launch`.
inline constexpr auto kLaunchKeys = std::to_array<NoPlanKey>({
    {"command_file", kHowToStart},
    {"commands", kHowToStart},
    {"compute_environment", kHowToStart},
    {"debug", "checks the shapes of collectives"},
    {"downcast_bf16", "is for TPUs"},
    {"enable_cpu_affinity", kHowToStart},
    {"gpu_ids", kHowToStart},
    {"machine_rank", kHowToStart},
    {"main_process_ip", kHowToStart},
    {"main_process_port", kHowToStart},
    {"main_training_function", kHowToStart},
    {"mpirun_config", kHowToStart},
    {"rdzv_backend", kHowToStart},
    {"same_network", kHowToStart},
    {"tpu_env", "is for TPUs"},
    {"tpu_name", "is for TPUs"},
    {"tpu_use_cluster", "is for TPUs"},
    {"tpu_use_sudo", "is for TPUs"},
    {"tpu_vm", "is for TPUs"},
    {"tpu_zone", "is for TPUs"},
    {"use_cpu", "says on which device it runs"},
});

// Keys of its fsdp_config, and of that of transformers, without the prefix "fsdp_".
inline constexpr auto kFsdpKeys = std::to_array<NoPlanKey>({
    {"cpu_ram_efficient_loading", kHowToLoad},
    {"state_dict_type", "says how checkpoints are written"},
    {"sync_module_states", kHowToLoad},
    {"use_orig_params", "changes the padding of FSDP1's flat parameters only"},
});

// Keys of its parallelism_config, without the prefix "parallelism_config_".
inline constexpr auto kMeshKeys = std::to_array<NoPlanKey>({
    {"cp_backend", "says how a context is exchanged"},
    {"cp_comm_strategy", "says how a context is exchanged"},
    {"sp_attn_implementation", "is of sequence parallelism"},
    {"sp_backend", "is of sequence parallelism"},
    {"sp_seq_length", "is of sequence parallelism"},
    {"sp_seq_length_is_variable", "is of sequence parallelism"},
});

}  // namespace shardlens::plan
