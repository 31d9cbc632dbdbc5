// SPDX-License-Identifier: Apache-2.0
// See page_file.h. A checksum has 32 bits of XXH3: of wrong pages one in four thousand million is
// taken for right, for a thousandth of the pages' size in memory.
#include "runtime/tier/page_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/os/file_size.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

constexpr int kRoundTripSamples = 31;

uint32_t checksumOf(const std::byte* page) {
  const auto sum = static_cast<uint32_t>(XXH3_64bits(page, kPageSize));
  return sum == 0 ? 1 : sum;  // 0 stands for none
}

}  // namespace

Result<std::unique_ptr<PageFile>> PageFile::open(const os::Folder& folder, PageCount pages,
                                                 Want want) {
  // A tmpfs takes O_DIRECT, and is memory all the same.
  if (!folder.in_memory) {
    auto direct = openAs(folder, pages, os::Caching::kDirect);
    if (direct || want == Want::kDirect) return direct;
    if (direct.error().code() != ErrorCode::kUnsupported) return direct;
  } else if (want == Want::kDirect) {
    return fail(ErrorCode::kUnsupported, "%s is memory, not a disk", folder.path);
  }
  return openAs(folder, pages, os::Caching::kCached);
}

Result<std::unique_ptr<PageFile>> PageFile::openAs(const os::Folder& folder, PageCount pages,
                                                   os::Caching caching) {
  auto fd = os::createUnnamedFile(folder, caching);
  if (!fd) return tl::unexpected(fd.error());
  // Its size is set at once: what RLIMIT_FSIZE refuses shows now.
  if (!os::setFileSize(fd->get(), toBytes(pages))) {
    const int why = errno;
    return fail(ErrorCode::kNoSpace, "a file of %llu MiB cannot be made in %s%s",
                static_cast<unsigned long long>(toBytes(pages).value() / kMiB), folder.path,
                os::fileLimitAdvice(why));
  }
  fd->keep();
  const uint64_t segments = segmentOf(pages.value() + kSegment.value() - 1);
  auto shared = Mapping::sharedAnonymous(
      Bytes(roundUp(roundUp(pages.value() * 4, 8) + sizeof(uint64_t) + segments, kPageSize)));
  if (!shared) return tl::unexpected(shared.error());
  auto bounce = Mapping::anonymous(toBytes(kBounce));
  if (!bounce) return tl::unexpected(bounce.error());
  std::unique_ptr<PageFile> file(
      new PageFile(std::move(*fd), pages, caching, std::move(*shared), std::move(*bounce)));
  TP_TRY(file->measure());
  return file;
}

FrameRun PageFile::segment(uint64_t index) const {
  const uint64_t first = index * kSegment.value();
  return {FrameIndex(first), std::min(kSegment, PageCount(capacity_.value() - first))};
}

/// Tries the file, too: what has O_DIRECT in name may not take pages.
Status PageFile::measure() {
  const uint64_t pages = std::min(kBounce, capacity_).value();
  if (reserve({FrameIndex(0), PageCount(1)}) == PageCount()) {
    return failErrno(ErrorCode::kNoSpace, "the disk has no room for the first pages");
  }
  auto memory = Mapping::anonymous(Bytes(pages * kPageSize));
  if (!memory) return tl::unexpected(memory.error());
  std::byte* const bytes = memory->data();
  for (uint64_t i = 0; i < pages; ++i) bytes[i * kPageSize] = std::byte(i + 1);
  const Bytes size(pages * kPageSize);
  const Status written = os::writeFile(fd_.get(), Bytes(), bytes, size);
  if (!written && direct() && written.error().osError() == EINVAL) {
    return fail(ErrorCode::kUnsupported, "O_DIRECT does not take pages of 4 KiB there");
  }
  TP_TRY(written);
  std::array<Nanoseconds, kRoundTripSamples> samples;
  const MonotonicClock clock;
  for (size_t i = 0; i < samples.size(); ++i) {
    const uint64_t page = i * 37 % pages;  // far from the one before
    const Nanoseconds start = clock.now();
    TP_TRY(os::readFile(fd_.get(), Bytes(page * kPageSize), bytes, Bytes(kPageSize)));
    samples[i] = clock.now() - start;
    if (bytes[0] != std::byte(page + 1)) {
      return fail(ErrorCode::kIo, "the disk does not give back what was written to it");
    }
  }
  std::nth_element(samples.begin(), samples.begin() + kRoundTripSamples / 2, samples.end());
  round_trip_ = samples[kRoundTripSamples / 2];
  return {};
}

void PageFile::noteWrite(FrameRun run, const std::byte* from) {
  for (uint64_t i = 0; i < run.count.value(); ++i) {
    sums()[run.first.value() + i].store(checksumOf(from + i * kPageSize), kRelaxed);
  }
}

bool PageFile::isRight(FrameRun run, const std::byte* bytes) const {
  for (uint64_t i = 0; i < run.count.value(); ++i) {
    const uint32_t sum = sums()[run.first.value() + i].load(kRelaxed);
    if (sum != 0 && sum != checksumOf(bytes + i * kPageSize)) return false;
  }
  return true;
}

Status PageFile::read(FrameRun run, std::byte* to) {
  TP_TRY(move(Direction::kRead, run, to));
  if (isRight(run, to)) return {};
  return fail(ErrorCode::kLost, "a page in the file is not the one that was written there");
}

Status PageFile::write(FrameRun run, const std::byte* from) {
  noteWrite(run, from);
  // A write only reads the memory; one function serves both directions.
  return move(Direction::kWrite, run, const_cast<std::byte*>(from));
}

Status PageFile::move(Direction direction, FrameRun run, std::byte* memory) {
  TP_CHECK_OP(run.first.value() + run.count.value(), <=, capacity_.value());
  if (!suits(memory)) return bounce(direction, run, memory);
  return direction == Direction::kRead
             ? os::readFile(fd_.get(), offsetOf(run.first), memory, toBytes(run.count))
             : os::writeFile(fd_.get(), offsetOf(run.first), memory, toBytes(run.count));
}

Status PageFile::bounce(Direction direction, FrameRun run, std::byte* memory) {
  MutexLock lock(bounce_lock_);
  for (uint64_t done = 0; done < run.count.value();) {
    const PageCount piece = std::min(kBounce, PageCount(run.count.value() - done));
    const size_t size = toBytes(piece).value();
    std::byte* const there = memory + done * kPageSize;
    if (direction == Direction::kWrite) memcpy(bounce_.data(), there, size);
    TP_TRY(move(direction, {run.first + done, piece}, bounce_.data()));
    if (direction == Direction::kRead) memcpy(there, bounce_.data(), size);
    done += piece.value();
  }
  return {};
}

PageCount PageFile::reserve(FrameRun run) {
  const uint64_t end = run.first.value() + run.count.value();
  for (uint64_t index = segmentOf(run.first.value()); index * kSegment.value() < end; ++index) {
    if (isReserved(index)) continue;
    const FrameRun frames = segment(index);
    // Where space cannot be taken beforehand, writes may find the disk full.
    if (!os::reserveSpace(fd_.get(), offsetOf(frames.first), toBytes(frames.count)) &&
        errno != EOPNOTSUPP) {
      const uint64_t reached = std::max(frames.first.value(), run.first.value());
      return PageCount(reached - run.first.value());
    }
    // Another thread that took space for it meanwhile has taken the same.
    if (flags()[index].exchange(1, kRelaxed) == 0) reserved().fetch_add(1, kRelaxed);
  }
  return run.count;
}

void PageFile::giveBack(FrameRun run) {
  const uint64_t end = run.first.value() + run.count.value();
  // First what is noted: who dies in between leaves space taken, which the next user takes again.
  for (uint64_t index = segmentOf(run.first.value()); index * kSegment.value() < end; ++index) {
    if (flags()[index].exchange(0, kRelaxed) != 0) reserved().fetch_sub(1, kRelaxed);
  }
  for (uint64_t frame = run.first.value(); frame < end; ++frame) sums()[frame].store(0, kRelaxed);
  [[maybe_unused]] const Status punched =
      os::punchHole(fd_.get(), offsetOf(run.first), toBytes(run.count));
}

}  // namespace tidepool
