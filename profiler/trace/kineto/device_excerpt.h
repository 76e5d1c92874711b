#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Whether device_excerpt() can read the file: it is neither compressed nor a pipe.
[[nodiscard]] bool allows_excerpt(const std::filesystem::path& path);

// Reads a part of a trace file in which a device works, for a picture before the whole file is
// read: PyTorch writes all kernels and launches behind all operators of the host.
//
// Layout      the trace is that of a file with its members before the events, about `events`
//             consecutive ones, and its end, where PyTorch names threads and streams. The part is
//             the last one that has kernels or copies everywhere, as far as samples show.
// Complexity  linear in `events`, and at most 4 MiB of samples; independent of the file's size.
// Errors      nullopt if no sample has a kernel or copy, or if the part cannot be read as a trace:
//             what is wrong with a file is said by who reads all of it. InputError if the file
//             cannot be opened.
[[nodiscard]] std::optional<Trace> device_excerpt(const std::filesystem::path& path, size_t events);

}  // namespace shardlens::trace
