// Runs a fuzz target on every file of the given directories, without libFuzzer's driver, which
// needs clang. --mutants=N: then on N inputs made from those by chance, the same ones each time.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tests/fuzz/structured_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace {

constexpr size_t kLongest = 1 << 16;

void run(const std::string& bytes) {
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> inputs) : inputs_(std::move(inputs)) {}

  std::string next() {
    std::string bytes = any();
    if (below(2) == 0) {
      using namespace shardlens::fuzz;  // NOLINT
      if (const auto mutant = mutate_structure(bytes, form_of(bytes), random_)) {
        return *mutant;
      }
    }
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      change(bytes);
    }
    bytes.resize(std::min(bytes.size(), kLongest));
    return bytes;
  }

 private:
  size_t below(size_t end) { return end == 0 ? 0 : random_() % end; }
  const std::string& any() { return inputs_[below(inputs_.size())]; }

  void change(std::string& bytes) {
    constexpr std::string_view kTokens[] = {"{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ":",
                                            "\"",
                                            "\"\"",
                                            "\\u0000",
                                            "\xff",
                                            "null",
                                            "true",
                                            "0",
                                            "-1",
                                            "1e999",
                                            "NaN",
                                            "0.5",
                                            "65537",
                                            "2147483648",
                                            "4294967296",
                                            "9223372036854775807",
                                            "-9223372036854775808",
                                            "18446744073709551616",
                                            "\n",
                                            "[[[[[[[[",
                                            "**",
                                            "../"};
    const size_t at = below(bytes.size() + 1), length = below(bytes.size() - at + 1);
    switch (below(7)) {
      case 0:
        bytes.erase(at, below(32));
        break;
      case 1:
        bytes.erase(at, length);
        break;
      case 2:
        bytes.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      case 3: {  // in place of a number or a word
        const auto is_part = [](char c) {
          return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '-';
        };
        size_t end = at;
        while (end < bytes.size() && is_part(bytes[end])) {
          ++end;
        }
        bytes.replace(at, end - at, kTokens[below(std::size(kTokens))]);
        break;
      }
      case 4:
        bytes.insert(at, bytes.substr(at, std::min<size_t>(length, 64)));
        break;
      case 5: {
        const std::string& other = any();
        const size_t from = below(other.size());
        bytes.insert(at, other.substr(from, below(128)));
        break;
      }
      default:
        if (at < bytes.size()) {
          bytes[at] = static_cast<char>(below(2) == 0 ? below(256) : bytes[at] ^ 1 << below(8));
        }
        break;
    }
  }

  std::vector<std::string> inputs_;
  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  (void)LLVMFuzzerInitialize(&argc, &argv);
  constexpr std::string_view kMutants = "--mutants=";
  int mutants = 0;
  std::vector<std::string> inputs;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kMutants)) {
      mutants = std::atoi(argv[i] + kMutants.size());
    }
    if (argument.starts_with("--")) {
      continue;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      std::ifstream in(file, std::ios::binary);
      inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
      std::printf("%s\n", file.c_str());
      std::fflush(stdout);  // names the input that a crash came from
      run(inputs.back());
    }
  }
  if (inputs.empty()) {
    std::fputs("no inputs\n", stderr);
    return 1;
  }
  const auto last =
      std::filesystem::temp_directory_path() / ("shardlens-mutant-" + std::to_string(::getpid()));
  Mutator mutator(inputs);
  for (int i = 0; i < mutants; ++i) {
    const std::string bytes = mutator.next();
    std::ofstream(last, std::ios::binary | std::ios::trunc) << bytes;  // stays if it crashes
    run(bytes);
  }
  std::filesystem::remove(last);
  std::printf("%zu inputs, %d mutants\n", inputs.size(), mutants);
  return 0;
}
