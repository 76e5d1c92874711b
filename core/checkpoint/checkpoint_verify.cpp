#include "core/checkpoint/checkpoint_verify.h"

#include "core/base/error.h"

namespace shardlens::checkpoint {

Verification verify(Reader& reader) {
  Verification out;
  for (const SavedTensor& tensor : reader.index().tensors) {
    for (const Piece& piece : tensor.pieces) {
      ++out.pieces;
      out.bytes += piece.box.numel() * size_of(tensor.dtype);
      out.without_checksum += piece.crc32 ? 0 : 1;
      try {
        reader.check(tensor, piece);
      } catch (const InputError& error) {
        out.damaged.emplace_back(error.what());
      }
    }
  }
  return out;
}

}  // namespace shardlens::checkpoint
