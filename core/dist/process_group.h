#pragma once

#include <functional>

#include <ATen/core/TensorBody.h>
#include <c10/util/intrusive_ptr.h>

#include "core/dist/communicator.h"

namespace c10d {
class ProcessGroup;
}

namespace shardlens::dist {

// Returns what a collective is for. Called on the calling thread before each collective is issued.
using PurposeOf = std::function<Purpose(CollectiveKind kind, const at::Tensor& tensor)>;

// A c10d process group for the communicator's device, for parts of c10d that need one (Reducer).
// Its all-reduces, broadcasts and all-gathers are requests to `communicator`: they run in order
// with its other requests, are recorded, and their error messages name what they were for.
//
// Ownership  `communicator` must outlive the group and every collective issued on it.
// Errors     the Work of a failed collective, or its future, throws RuntimeFault.
[[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Communicator& communicator,
                                                                        PurposeOf purpose_of);

}  // namespace shardlens::dist
