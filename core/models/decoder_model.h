#pragma once

#include <memory>

#include "core/model/model_config.h"
#include "core/models/model.h"

namespace shardlens::models {

// Makes a decoder of the table of families (core/model/families/decoder_rows.cpp): its modules,
// their names and their order are those of the row. `config.family` must be a row that is trained.
[[nodiscard]] std::shared_ptr<CausalLm> make_decoder(const plan::ModelConfig& config, Init init);

}  // namespace shardlens::models
