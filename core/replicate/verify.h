#pragma once

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "core/replicate/replicate.h"

namespace c10d {
class ProcessGroup;
}

namespace shardlens::replicate {

// Checks that all ranks have the same number of parameters, with the same shapes and strides. A
// collective. Errors: UsageError naming the first parameter that differs: on all ranks if number or
// shapes differ; if only strides differ, on the ranks that differ from rank 0.
void verify_parameters(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const std::vector<NamedParameter>& parameters);

}  // namespace shardlens::replicate
