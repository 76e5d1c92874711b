#include "profiler/analysis/events/names.h"

#include <algorithm>
#include <array>

#include "core/base/collective.h"
#include "core/base/dtype.h"
#include "profiler/trace/json/decimal.h"

namespace shardlens::analysis {
namespace {

template <size_t N>
bool one_of(std::string_view name, const std::array<std::string_view, N>& list) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Recognizes a communication kernel by the beginning of its name, or by a part of it; the first
// matching row is used.
struct KernelRow {
  bool starts;
  std::string_view text;
  std::optional<CollectiveKind> kind;  // nullopt: parsed from the name, if it contains a kind
};

constexpr KernelRow kKernels[] = {
    {true, "nccl", std::nullopt},  // ncclKernel_…, ncclDevKernel_…, ncclSymkDevKernel_…
    {false, "ncclKernel", std::nullopt},
    {false, "ncclDevKernel", std::nullopt},
    {false, "ncclSymk", std::nullopt},
    {true, "rccl", std::nullopt},
    {true, "hccl", std::nullopt},
    {false, "mscclKernel", std::nullopt},  // RCCL's MSCCL
    // torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu
    {false, "one_shot_all_reduce_kernel", CollectiveKind::kAllReduce},
    {false, "two_shot_all_reduce_kernel", CollectiveKind::kAllReduce},
    {false, "multimem_", std::nullopt},
    // barrier_kernel, put_signal_kernel, wait_signal_kernel
    {false, "symmetric_memory::", std::nullopt},
    {false, "nvshmem_extension::tile_reduce", CollectiveKind::kAllReduce},
    {false, "cross_device_reduce_", CollectiveKind::kAllReduce},  // vLLM, SGLang
    {false, "deep_ep::", CollectiveKind::kAllToAll},
    {false, "dpsk::ep::", CollectiveKind::kAllToAll},  // DeepEP in DeepSeek's traces
    {false, "nvshmem", std::nullopt},
    // Fused all-reduces. allReduceFusionKernels.cu and moeAllReduceFusionKernels.cu of
    // TensorRT-LLM, trtllm_allreduce_fusion.cuh of FlashInfer
    {false, "allreduce_fusion_kernel_", CollectiveKind::kAllReduce},
    // customAllReduceKernels.cu of TensorRT-LLM, which also has low-precision ones
    {false, "ShotAllReduceKernel", CollectiveKind::kAllReduce},
    // trtllm_mnnvl_allreduce.cuh of FlashInfer: oneshotAllreduceFusionKernel, …
    {false, "shotAllreduceFusionKernel", CollectiveKind::kAllReduce},
    {false, "shotAllreduceKernel", CollectiveKind::kAllReduce},
    // lamport_style_…, trtllm_allreduce.cuh of FlashInfer
    {false, "one_shot_all_reduce_norm_kernel", CollectiveKind::kAllReduce},
    // Of MSCCL++; the kernels of its benchmarks have no namespace, but its types as arguments.
    {false, "mscclpp::", std::nullopt},
    {false, "allreduceAllPairs", CollectiveKind::kAllReduce},
    {false, "quickreduce::", CollectiveKind::kAllReduce},  // vLLM and aiter on ROCm
    {false, "oneccl_", std::nullopt},  // src/coll/algorithms/*/sycl of oneCCL: oneccl_allreduce_…
    // common/comm_gemm_overlap/userbuffers/userbuffers.cu of Transformer Engine, and TensorRT-LLM
    {false, "userbuffers_fp16_sum_inplace_gpu_rw_ag", CollectiveKind::kAllGather},
    {false, "userbuffers_fp16_sum_inplace_gpu_rr_ag", CollectiveKind::kAllGather},
    {false, "userbuffers_fp16_sum_inplace_gpu_mc_ag", CollectiveKind::kAllGather},
    {false, "userbuffers_fp16_sum_inplace_gpu_rr_rs", CollectiveKind::kReduceScatter},
    {false, "userbuffers_fp16_sum_inplace_gpu_mc_rs", CollectiveKind::kReduceScatter},
    {false, "userbuffers_fp16_sum_inplace_gpu_", CollectiveKind::kAllReduce},
    {false, "kuserbuffers_", CollectiveKind::kSendRecv},
};

}  // namespace

std::optional<CommunicationKernel> communication_kernel(std::string_view name) {
  for (const KernelRow& row : kKernels) {
    if (row.starts ? name.starts_with(row.text) : name.find(row.text) != std::string_view::npos) {
      return CommunicationKernel{row.kind ? row.kind : parse_collective(name)};
    }
  }
  return std::nullopt;
}

bool is_peer_copy(std::string_view name) {
  return name.starts_with("Memcpy PtoP") || name.starts_with("MemcpyPtoP");
}

bool is_collective_operator(std::string_view name) {
  return name.starts_with("c10d::") || name.starts_with("_c10d_functional::") ||
         name.starts_with("symm_mem::");
}

std::optional<Bytes> element_size(std::string_view name) {
  constexpr std::string_view kNamespace = "c10::";
  if (name.starts_with(kNamespace)) {
    name.remove_prefix(kNamespace.size());
  }
  if (const auto dtype = parse_dtype(name)) {
    return size_of(*dtype);
  }
  constexpr std::pair<std::string_view, Bytes> kOthers[] = {{"float", 4},
                                                            {"double", 8},
                                                            {"long int", 8},
                                                            {"long", 8},
                                                            {"int", 4},
                                                            {"short int", 2},
                                                            {"short", 2},
                                                            {"signed char", 1},
                                                            {"unsigned char", 1},
                                                            {"ComplexHalf", 4},
                                                            {"ComplexFloat", 8},
                                                            {"ComplexDouble", 16},
                                                            {"complex<float>", 8},
                                                            {"complex<double>", 16}};
  for (const auto& [text, size] : kOthers) {
    if (name == text) {
      return size;
    }
  }
  // Float8_e4m3fn, Float8_e5m2, Float8_e4m3fnuz, Float8_e5m2fnuz, Float8_e8m0fnu
  return name.starts_with("Float8_") ? std::optional<Bytes>(1) : std::nullopt;
}

bool is_c10d_annotation(std::string_view name) {
  constexpr std::array<std::string_view, 6> kBackends{
      "gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "c10d:"};
  return std::any_of(kBackends.begin(), kBackends.end(), [&](std::string_view b) {
    return name.starts_with(b) && !name.substr(b.size()).starts_with(':');
  });
}

bool is_operator(std::string_view name) {
  return name.find("::") != std::string_view::npos && !name.starts_with("autograd::") &&
         !name.starts_with("torch::") && !name.starts_with("c10d::");
}

bool is_helper_operator(std::string_view name) {
  constexpr std::array<std::string_view, 47> kHelpers{"aten::resolve_conj",
                                                      "aten::resolve_neg",
                                                      "aten::as_strided",
                                                      "aten::as_strided_",
                                                      "aten::view",
                                                      "aten::_reshape_alias",
                                                      "aten::_unsafe_view",
                                                      "aten::reshape",
                                                      "aten::expand",
                                                      "aten::expand_as",
                                                      "aten::t",
                                                      "aten::transpose",
                                                      "aten::transpose_",
                                                      "aten::permute",
                                                      "aten::select",
                                                      "aten::slice",
                                                      "aten::narrow",
                                                      "aten::squeeze",
                                                      "aten::squeeze_",
                                                      "aten::unsqueeze",
                                                      "aten::unsqueeze_",
                                                      "aten::detach",
                                                      "aten::detach_",
                                                      "aten::alias",
                                                      "aten::split",
                                                      "aten::split_with_sizes",
                                                      "aten::chunk",
                                                      "aten::unbind",
                                                      "aten::view_as",
                                                      "aten::view_as_real",
                                                      "aten::view_as_complex",
                                                      "aten::unflatten",
                                                      "aten::flatten",
                                                      "aten::empty",
                                                      "aten::empty_like",
                                                      "aten::empty_strided",
                                                      "aten::resize_",
                                                      "aten::resize_as_",
                                                      "aten::set_",
                                                      "aten::item",
                                                      "aten::_local_scalar_dense",
                                                      "aten::is_nonzero",
                                                      "aten::lift_fresh",
                                                      "aten::copy_",
                                                      "aten::fill_",
                                                      "aten::zero_",
                                                      "aten::contiguous"};
  return one_of(name, kHelpers);
}

bool is_c10d_operator(std::string_view name) {
  return name.starts_with("c10d::") || name.starts_with("_c10d_functional::") ||
         name == "record_param_comms" || name.find("wait_tensor") != std::string_view::npos;
}

bool is_graph_launch(std::string_view name) {
  return name.starts_with("cudaGraphLaunch") || name.starts_with("cuGraphLaunch") ||
         name.starts_with("hipGraphLaunch");
}

bool is_redistribution(std::string_view name) {
  return name == "Redistribute" || name == "RedistributeBackward";
}

std::optional<FsdpRange> parse_fsdp_range(std::string_view name) {
  constexpr std::string_view kFsdp1 = "FullyShardedDataParallel.";
  if (name.starts_with(kFsdp1)) {
    return FsdpRange{
        .what = name.substr(kFsdp1.size()), .fqn = std::nullopt, .ranks = 0, .is_fsdp1 = true};
  }
  constexpr std::string_view kPrefix = "FSDP::";
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  int64_t ranks = 0;
  constexpr std::string_view kGroup = " [pg=";
  if (const size_t at = name.rfind(kGroup); at != std::string_view::npos && name.ends_with(']')) {
    const std::string_view size =
        name.substr(at + kGroup.size(), name.size() - at - kGroup.size() - 1);
    ranks = std::max<int64_t>(0, trace::scaled_decimal(size, 0).value_or(0));
    name = name.substr(0, at);
  }
  constexpr std::string_view kFor = "_prefetch for ";
  if (const size_t at = name.find(kFor); at != std::string_view::npos) {
    return FsdpRange{.what = name.substr(0, at + 9), .fqn = name.substr(at + kFor.size())};
  }
  const size_t open = name.find(" (");
  if (open == std::string_view::npos || !name.ends_with(')')) {
    // PyTorch omits the FQN of the root, which is empty.
    constexpr std::array<std::string_view, 8> kOfUnit{
        "pre_forward",           "all_gather",          "all_gather_copy_out",
        "post_forward",          "pre_backward",        "post_backward_accumulate",
        "post_backward_reshard", "post_backward_reduce"};
    return FsdpRange{
        .what = name,
        .fqn = one_of(name, kOfUnit) ? std::optional<std::string_view>("") : std::nullopt,
        .ranks = ranks};
  }
  return FsdpRange{.what = name.substr(0, open),
                   .fqn = name.substr(open + 2, name.size() - open - 3),
                   .ranks = ranks};
}

std::string without_wrappers(std::string_view fqn) {
  constexpr std::array<std::string_view, 3> kAdded{"_checkpoint_wrapped_module", "_orig_mod",
                                                   "_fsdp_wrapped_module"};
  constexpr std::string_view kNext = ", ";
  std::string out;
  bool first = true;  // part of its module's name
  while (!fqn.empty()) {
    const size_t end = std::min(fqn.find_first_of(".,"), fqn.size());
    if (!one_of(fqn.substr(0, end), kAdded)) {
      out += first ? "" : ".";
      out += fqn.substr(0, end);
      first = false;
    }
    fqn.remove_prefix(end);
    if (fqn.starts_with(kNext)) {
      out += kNext;
      first = true;
      fqn.remove_prefix(kNext.size());
    } else if (!fqn.empty()) {
      fqn.remove_prefix(1);
    }
  }
  return out;
}

std::optional<int64_t> parse_profiler_step(std::string_view name) {
  constexpr std::string_view kPrefix = "ProfilerStep#";
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  return trace::scaled_decimal(name.substr(kPrefix.size()), 0);
}

bool is_host_wait(std::string_view name) {
  return name.ends_with("Synchronize") || name.find("Synchronize_") != std::string_view::npos ||
         name.starts_with("aclrtSynchronize");
}

}  // namespace shardlens::analysis
