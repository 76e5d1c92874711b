// libFuzzer's hook for mutants: half of them keep the structure of their input.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>

#include "tests/fuzz/structured_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data,
                                          size_t size,
                                          size_t max_size,
                                          unsigned seed) {
  using namespace shardlens;
  std::mt19937_64 random(seed);
  if (random() % 2 == 0) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const auto mutant = fuzz::mutate_structure(input, fuzz::form_of(input), random);
    if (mutant && mutant->size() <= max_size) {
      std::copy(mutant->begin(), mutant->end(), data);
      return mutant->size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
