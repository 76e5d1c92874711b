#pragma once

#include <exception>
#include <string>

namespace shardlens::plan {

// The message of a JSON library's exception without the library's own code: "key 'runs' not found"
// for "[json.exception.out_of_range.403] key 'runs' not found".
[[nodiscard]] std::string fault_of(const std::exception& error);

}  // namespace shardlens::plan
