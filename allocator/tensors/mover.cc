// SPDX-License-Identifier: Apache-2.0
// What both kinds of mover do to a piece.
#include "allocator/tensors/mover.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace tidepool {
namespace {

uint64_t checksumOf(const TransferQueue::Claim& claim) {
  const TensorValue::Piece& piece = claim.place();
  return XXH3_64bits(claim.transfer->memory(piece), piece.bytes.value());
}

}  // namespace

std::byte* beforeWrite(const TransferQueue::Claim& claim, TensorChecksums checksums) {
  TensorTransfer& transfer = *claim.transfer;
  const TensorValue::Piece& piece = claim.place();
  if (checksums == TensorChecksums::kEveryPiece) {
    transfer.value().setChecksum(claim.piece, checksumOf(claim));
  }
  if (piece.whole()) return transfer.memory(piece);
  memcpy(transfer.lastPage(), transfer.memory(piece), piece.bytes.value());
  // No bytes of another tensor, nor of this program's memory, go to a memory server.
  memset(transfer.lastPage() + piece.bytes.value(), 0, kPageSize - piece.bytes.value());
  return transfer.lastPage();
}

std::byte* readInto(const TransferQueue::Claim& claim) {
  const TensorValue::Piece& piece = claim.place();
  return piece.whole() ? claim.transfer->memory(piece) : claim.transfer->lastPage();
}

Status afterRead(const TransferQueue::Claim& claim, TensorChecksums checksums) {
  TensorTransfer& transfer = *claim.transfer;
  const TensorValue::Piece& piece = claim.place();
  if (!piece.whole()) {
    memcpy(transfer.memory(piece), transfer.lastPage(), piece.bytes.value());
  }
  if (checksums == TensorChecksums::kNone || checksumOf(claim) == piece.checksum) return {};
  return fail(
      ErrorCode::kCorrupt,
      "tensor %s: bytes %llu to %llu are not those that were put; far memory is damaged, or "
      "the tensor was changed while it was being put",
      transfer.value().name().c_str(), static_cast<unsigned long long>(piece.offset),
      static_cast<unsigned long long>(piece.offset + piece.bytes.value()));
}

}  // namespace tidepool
