#include "core/fsdp/run/module_save.h"

#include <dlfcn.h>

#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "core/base/error.h"
#include "core/composable/registry.h"
#include "core/fsdp/run/state.h"

namespace shardlens::fsdp {
namespace {

// A method is called like a function whose first argument is the object.
using Save = void (*)(const torch::nn::Module*, torch::serialize::OutputArchive&);

Save save_of_libtorch() {
  static const auto save = reinterpret_cast<Save>(
      dlsym(RTLD_NEXT, "_ZNK5torch2nn6Module4saveERNS_9serialize13OutputArchiveE"));
  SHARDLENS_CHECK(save != nullptr, "LibTorch has no torch::nn::Module::save()");
  return save;
}

}  // namespace

void use_checked_save() {}

}  // namespace shardlens::fsdp

void torch::nn::Module::save(torch::serialize::OutputArchive& archive) const {
  using shardlens::fsdp::FsdpState;
  for (const auto& each : named_parameters(/*recurse=*/false)) {
    if (each.value().defined() && FsdpState::owner_of(each.value()) != nullptr) {
      shardlens::composable::refuse_slices(*this, each.key());
    }
  }
  shardlens::fsdp::save_of_libtorch()(this, archive);
}
