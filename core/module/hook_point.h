#pragma once

#include <string>

#include "core/composable/contract.h"
#include "core/module/hookable.h"

namespace shardlens::module {

// The hooks of a module that `api` is applied to. Errors: UsageError naming the module if it is a
// container without forward or has no hooks.
[[nodiscard]] HookPoint& hook_point(const composable::Api& api,
                                    torch::nn::Module& module,
                                    const std::string& fqn);

}  // namespace shardlens::module
