#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/workload/pass_builder.h"

namespace shardlens::plan {

// The operators of what torch.compile compiles: chains of element-wise operators, norms, rotary
// embeddings and losses as inductor fuses them.
class CompiledBuilder : public PassBuilder {
 public:
  // y[rows, out] = x[rows, in] · W (+ bias). `keeps_input`: false if an earlier operator already
  // saves x. `sums_input_grad`: x has another consumer whose gradient is computed before, so that
  // the two are added.
  struct Linear {
    int64_t in = 0, out = 0;
    bool bias = false, transposed = true;  // transposed: weight is [out, in] (torch.nn.Linear),
                                           // otherwise [in, out] (Conv1D)
    bool keeps_input = true, sums_input_grad = false;
    bool input_grad = true;  // false: x is the model's input
    bool routes = false;     // of experts: never among the products that a checkpoint keeps
    bool wide = false;       // in fp32: x is cast, and the gradient of x cast back
  };
  // `statistics`: fp32 numbers saved per row; `weights`: number of parameters with `features` each.
  // `sums_input_grad`: as for Linear (a residual). `groups`: of `features` each in a row, which are
  // normalised separately (heads).
  struct Norm {
    int64_t features = 0, statistics = 0, weights = 0;
    bool sums_input_grad = true;
    int64_t groups = 1;
    bool offset = false;  // weights are 1 + w, in fp32
    bool wide = false;    // weights multiply in fp32
  };
  using PassBuilder::PassBuilder;
  void enter(const std::string& module);
  void leave();
  void finish_backward();
  // The operators that unfused() added last have made a tensor with so many features of a row.
  void set_result(int64_t features);
  // The same of a kernel that adds up rows: where its result is a term of a sum that is stored, it
  // adds the other terms too.
  void set_sum(int64_t features);

 protected:
  void compiled_norm(std::string_view name, const Norm& shape);
  void compiled_head_norm(const Norm& shape);
  void compiled_rotary(int64_t features);
  void compiled_add(int64_t features);
  void compiled_loss(int64_t vocabulary);
  // `copies`: the product's backward ends with the copy of a gathered input's gradient. `apart`:
  // the gradients of that input are scattered one by one, and added where the norm's are.
  void compiled_linear(const Linear& shape,
                       std::vector<Operator>& backward,
                       bool copies = false,
                       bool apart = false);
  void compiled_result(Bytes bytes);
  // What follows is no kernel of compiled code and reads the last result, of so many features.
  void store_current(int64_t features);
  // Ranks have gathered the input of the products that follow. The gradients of all of them are
  // added in the kernel `at` of those that differentiate `op`.
  void compiled_gather(uint32_t op, size_t at) { compiled_.gathered = {op, at}; }
  // Whether products read the last norm's result, or that of a gather; false after another
  // operator.
  [[nodiscard]] bool shares_input() const {
    return compiled_.of_norm || compiled_.gathered.has_value();
  }
  void end_norm() {
    compiled_.of_norm = false;
    compiled_.gathered.reset();
  }

 private:
  // [Note: Compiled values] In what torch.compile compiles, a sum of tensors is computed where it
  // is read, and not stored, as long as it has few terms. So a value is the list of the tensors
  // whose sum it is; empty: not known, a tensor that was made outside.
  using Value = std::vector<uint32_t>;  // indices into Compiled::tensors
  struct CompiledTensor {
    Bytes bytes = 0;
    bool saved = false;  // for backward
  };
  struct CompiledNorm {  // of the rows of the residual
    uint32_t op = 0;     // its forward operator
    Value inputs;
    int32_t consumers = 1;  // products that read its result
    Bytes values = 0, kept = 0, parameters = 0;
    int64_t columns = 0, weights = 0;
    bool trains = false, residual = false;
  };
  struct Compiled {
    std::vector<CompiledTensor> tensors;
    Value residual, current;            // `current`: the result of the last operator
    std::vector<CompiledNorm> norms;    // of the block
    bool of_norm = false;               // products read the last norm's result
    std::optional<uint32_t> head_norm;  // the last operator, if it is a norm of heads
    std::optional<std::pair<uint32_t, size_t>> gathered;  // see compiled_gather()
    std::optional<std::pair<uint32_t, uint32_t>> sum;     // of set_sum(): operator and tensor
  };
  void store_sum();
  void close_block();
  [[nodiscard]] Value& known(Value& value, int64_t features);
  [[nodiscard]] Bytes bytes_of(const Value& value) const;
  [[nodiscard]] static bool mixes_orders(int64_t rows, int64_t columns);

  Compiled compiled_;
};

}  // namespace shardlens::plan
