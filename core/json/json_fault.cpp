#include "core/json/json_fault.h"

#include <string_view>

namespace shardlens::plan {

std::string fault_of(const std::exception& error) {
  const std::string_view message = error.what();
  const size_t end = message.starts_with("[json.exception.") ? message.find("] ") : message.npos;
  return std::string(end == std::string_view::npos ? message : message.substr(end + 2));
}

}  // namespace shardlens::plan
