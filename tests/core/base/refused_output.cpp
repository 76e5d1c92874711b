// Not built: tests/tools/check_refused.py checks that each line with the comment "refused" does not
// compile, and that all others do.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"

namespace shardlens {

void print(const std::string& name, const char* text, const std::vector<std::string>& names) {
  const std::filesystem::path path = name;
  write_stdout("{} {} {} {}\n", name, text, path, 3);
  write_stdout(show("{}", name) + ", " + show_joined(names, ", ") + "\n");
  write_stderr("shardlens: {}\n", UsageError(name).shown());

  write_stdout(name);                       // refused
  write_stdout(text);                       // refused
  write_stdout(std::string_view(name));     // refused
  write_stdout(fmt::format("{}\n", name));  // refused
  write_stdout("name: " + name);            // refused
  write_stdout(fmt::runtime(name));         // refused
  write_stdout("{} {}\n", name);            // refused
  write_stdout("{}\n", names);              // refused
  write_stderr(name);                       // refused
  write_stderr(show("{}", name) + name);    // refused
  const char buffer[3] = {text[0], text[1], '\0'};
  write_stderr(Literal(buffer));  // refused
  Shown shown = name;             // refused
  Shown from_name(name);          // refused
  Shown line = show("{}", name);
  line += name;  // refused
  line += text;  // refused
  line = name;   // refused
}

}  // namespace shardlens
