#include "core/json/json_values.h"

#include <limits>

#include "core/base/error.h"
#include "core/json/json_reader.h"

namespace shardlens::plan {

std::optional<nlohmann::json> try_parse_json(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const InputError&) {
    return std::nullopt;
  }
}

std::optional<int64_t> integer_of(const nlohmann::json& value) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > kLargest);
  return fits ? std::optional(value.get<int64_t>()) : std::nullopt;
}

}  // namespace shardlens::plan
