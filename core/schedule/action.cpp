#include "core/schedule/action.h"

#include <array>

namespace shardlens::schedule {
namespace {

constexpr std::array<std::string_view, kOpCount> kOps{
    "alloc",     "free",           "copy_in",        "all_gather", "copy_out",      "use_full",
    "use_shard", "reduce_copy_in", "reduce_scatter", "all_reduce", "store_grad",    "to_host",
    "to_device", "record",         "stream_wait",    "host_wait",  "optimizer_step"};
constexpr std::array<std::string_view, kStreamCount> kStreams{
    "compute", "copy_in", "all_gather", "reduce_scatter", "all_reduce", "host_copy"};
constexpr std::array<std::string_view, kCauseCount> kCauses{
    "own",  "forward_prefetch", "backward_prefetch", "explicit_prefetch", "limiter",
    "user", "backward_end"};
constexpr std::array<std::string_view, kBufferKindCount> kBuffers{
    "none",           "unsharded",    "gathered",     "sub_shard",
    "unsharded_grad", "reduce_input", "reduce_output"};

template <typename Enum, size_t N>
std::optional<Enum> parse(const std::array<std::string_view, N>& names, std::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) {
      return static_cast<Enum>(i);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(Op op) {
  return kOps[static_cast<size_t>(op)];
}
std::string_view name_of(Stream stream) {
  return kStreams[static_cast<size_t>(stream)];
}
std::string_view name_of(Cause cause) {
  return kCauses[static_cast<size_t>(cause)];
}
std::string_view name_of(BufferKind kind) {
  return kBuffers[static_cast<size_t>(kind)];
}

std::optional<Op> parse_op(std::string_view name) {
  return parse<Op>(kOps, name);
}
std::optional<Stream> parse_stream(std::string_view name) {
  return parse<Stream>(kStreams, name);
}
std::optional<Cause> parse_cause(std::string_view name) {
  return parse<Cause>(kCauses, name);
}
std::optional<BufferKind> parse_buffer_kind(std::string_view name) {
  return parse<BufferKind>(kBuffers, name);
}

}  // namespace shardlens::schedule
