#pragma once

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "core/replicate/replicate.h"

namespace c10d {
class ProcessGroup;
}

namespace shardlens::replicate {

// That all ranks hold parameters of the same number, shapes and strides. A collective. Errors:
// UsageError naming the first parameter that differs: on ranks that differ from rank 0, and, in
// shapes, on rank 0 too.
void verify_parameters(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const std::vector<NamedParameter>& parameters);

}  // namespace shardlens::replicate
