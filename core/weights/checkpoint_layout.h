#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/model/model_config.h"
#include "core/tree/module_tree.h"
#include "core/weights/safetensors.h"

// Which tensors of a checkpoint are a parameter. Most parameters are one tensor with their name;
// the experts of a layer are one parameter in the model, and a tensor or two for each expert in a
// file.
namespace shardlens::models {

struct StoredTensor {  // a tensor as files have it
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
};

// The tensors as which transformers saves a parameter. Their elements follow one another in the
// parameter in this order.
// Source  transformers 5.23 conversion_mapping.py.
[[nodiscard]] std::vector<StoredTensor> stored_tensors(const plan::ModelConfig& config,
                                                       const plan::Parameter& parameter);

// A parameter in a checkpoint.
class CheckpointParameter {
 public:
  // `checkpoint` must outlive the object. Finds the parameter as stored_tensors() or as one tensor,
  // also under an alias, and without the prefix of the base model.
  // Errors: InputError naming the tensor that is missing, has another shape or a dtype that cannot
  // be read.
  CheckpointParameter(const Checkpoint& checkpoint,
                      const plan::ModelConfig& config,
                      const plan::Parameter& parameter);
  // Elements [first, first + out.size()) as fp32.
  void read(int64_t first, std::span<float> out) const;

 private:
  const Checkpoint* checkpoint_;
  std::vector<const TensorEntry*> parts_;
};

}  // namespace shardlens::models
