#pragma once

#include <functional>

#include <ATen/core/TensorBody.h>
#include <c10/util/intrusive_ptr.h>

#include "core/dist/communicator.h"

namespace c10d {
class ProcessGroup;
}

namespace shardlens::dist {

// Asked, on the calling thread, before each collective is issued: what it is for.
using PurposeOf = std::function<Purpose(CollectiveKind kind, const at::Tensor& tensor)>;

// A c10d process group for the communicator's device whose all-reduces, broadcasts and all-gathers
// go through `communicator`, for parts of c10d that want one (Reducer): so they queue with
// everything else on that communicator, are recorded, and name what they were for when they fail.
//
// Ownership  `communicator` must outlive the group and every collective issued on it.
// Errors     the Work of a failed collective, or its future, throws RuntimeFault.
[[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Communicator& communicator,
                                                                        PurposeOf purpose_of);

}  // namespace shardlens::dist
