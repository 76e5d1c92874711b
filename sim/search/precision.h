#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/plan/plan.h"

namespace shardlens::sim {

// The dtypes of a plan that a search may choose: of the parameters, as they are gathered and used,
// and of the reduction of gradients.
struct Precision {
  DType param = DType::kF32, reduce = DType::kF32;
  friend auto operator<=>(const Precision&, const Precision&) = default;
};

// "bf16/fp32": bf16 parameters, reduction in fp32.
[[nodiscard]] std::string name_of(const Precision& precision);
// The reverse. A single dtype is that of the parameters, with a reduction in fp32, as in
// --precision. nullopt for any other text.
[[nodiscard]] std::optional<Precision> parse_precision(std::string_view text);

// Gives the plan these dtypes; its other keys of mixed_precision stay.
void set_precision(plan::Plan& plan, const std::optional<Precision>& precision);

}  // namespace shardlens::sim
