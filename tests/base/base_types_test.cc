// SPDX-License-Identifier: Apache-2.0
// The base: quantities, errors as values, owners of descriptors and mappings, bounded text, nearest
// words.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/mapping.h"
#include "runtime/base/nearest.h"
#include "runtime/base/result.h"
#include "runtime/base/text_buffer.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

TEST(Units, KindsDoNotMix) {
  static_assert(!std::is_convertible_v<uint64_t, Bytes>);
  static_assert(!std::is_convertible_v<Bytes, PageCount>);
  static_assert(!std::is_convertible_v<PageIndex, FrameIndex>);
  static_assert(std::is_trivially_copyable_v<Bytes>);
  EXPECT_EQ(Bytes(10) / Bytes(3), 3u);
  EXPECT_EQ((Bytes(10) / 3).value(), 3u);
  EXPECT_EQ(PageIndex(7) - PageIndex(4), 3u);
}

TEST(Units, RoundingHoldsForAnyValue) {
  EXPECT_TRUE(rc::check([](uint32_t value) {
    for (uint64_t power = 1; power <= kGranuleSize; power *= 2) {
      const uint64_t up = roundUp(value, power);
      const uint64_t down = roundDown(value, power);
      RC_ASSERT(down <= value && value <= up);
      RC_ASSERT(up % power == 0 && down % power == 0 && up - down <= power);
    }
    RC_ASSERT(toBytes(toPages(Bytes(value))).value() == roundUp(value, kPageSize));
    RC_ASSERT(firstPage(granuleOf(PageIndex(value))).value() <= value);
  }));
}

TEST(Result, ErrorsCarryCodeErrnoAndText) {
  errno = ENOENT;
  const Status status = failErrno(ErrorCode::kNotFound, "cannot open %s", "/nowhere");
  EXPECT_EQ(status.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(status.error().osError(), ENOENT);
  EXPECT_STREQ(status.error().text(), "cannot open /nowhere: No such file or directory");
  const Status percent = fail(ErrorCode::kIo, "%s", "100%s");
  EXPECT_STREQ(percent.error().text(), "100%s");
}

TEST(Result, LongTextsAreCutNotOverrun) {
  const std::string text(5000, 'x');
  EXPECT_EQ(strlen(fail(ErrorCode::kIo, "%s", text.c_str()).value().text()), 231u);
  errno = EIO;
  EXPECT_EQ(strlen(failErrno(ErrorCode::kIo, "%s", text.c_str()).value().text()), 231u);
}

TEST(Result, EveryCodeHasItsOwnName) {
  std::vector<std::string> names;
  for (uint16_t code = 1; code <= 14; ++code) {
    names.emplace_back(errorCodeName(static_cast<ErrorCode>(code)));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  EXPECT_STREQ(errorCodeName(static_cast<ErrorCode>(99)), "unknown");
}

Status failThrough() {
  TP_TRY(Status());
  TP_TRY(Status(fail(ErrorCode::kConflict, "inner")));
  ADD_FAILURE() << "TP_TRY went on after an error";
  return {};
}

TEST(Result, TryReturnsTheError) { EXPECT_STREQ(failThrough().error().text(), "inner"); }

TEST(Check, ABrokenInvariantNamesPlaceAndValues) {
  EXPECT_DEATH(TP_CHECK_OP(3, >, 4),
               "base_types_test.cc:[0-9]+: broken invariant: 3 > 4 .left 3, ");
  EXPECT_DEATH(TP_CHECK(false), "broken invariant: false");
  TP_CHECK(true);
  TP_CHECK_OP(4, >, 3);
}

bool isOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesOnceAndOnlyItsOwn) {
  const int raw = open("/dev/null", O_RDONLY | O_CLOEXEC);
  {
    UniqueFd first(raw);
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), raw);
    UniqueFd& same = second;
    second = std::move(same);
    EXPECT_TRUE(isOpen(raw));
  }
  EXPECT_FALSE(isOpen(raw));
  const int kept = open("/dev/null", O_RDONLY | O_CLOEXEC);
  { EXPECT_EQ(UniqueFd(kept).release(), kept); }
  EXPECT_TRUE(isOpen(kept));
  close(kept);
}

/// True if the page at `address` is mapped.
/// What a mapping gives up may stay reserved (runtime/base/own_space.h).
bool isMapped(void* address) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const bool readable = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

TEST(Mapping, UnmapsWhatItOwns) {
  void* address = nullptr;
  {
    auto mapping = Mapping::anonymous(Bytes(2 * kPageSize));
    ASSERT_TRUE(mapping);
    address = mapping->data();
    mapping->data()[kPageSize] = std::byte{7};
    Mapping moved(std::move(*mapping));
    EXPECT_FALSE(mapping->valid());
    EXPECT_EQ(moved.data(), address);
    EXPECT_TRUE(isMapped(address));
  }
  EXPECT_FALSE(isMapped(address));
}

TEST(Mapping, SharesAFile) {
  const UniqueFd fd(memfd_create("mapping-test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(fd.get(), 2 * kPageSize), 0);
  const auto whole = Mapping::sharedFile(fd.get(), Bytes(), Bytes(2 * kPageSize));
  const auto tail = Mapping::sharedFile(fd.get(), Bytes(kPageSize), Bytes(kPageSize));
  ASSERT_TRUE(whole && tail);
  whole->data()[kPageSize + 5] = std::byte{9};
  EXPECT_EQ(tail->data()[5], std::byte{9});
}

TEST(Mapping, SaysWhatItCouldNotMap) {
  const auto mapping = Mapping::anonymous(Bytes(UINT64_C(1) << 60));
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error().code(), ErrorCode::kNoMemory);
  EXPECT_THAT(mapping.error().text(), HasSubstr("1152921504606846976"));
  EXPECT_FALSE(Mapping::sharedFile(-1, Bytes(), Bytes(kPageSize)));
}

TEST(TextBuffer, NeverWritesPastItsMemory) {
  EXPECT_TRUE(rc::check([](const std::vector<std::string>& parts) {
    const size_t capacity = *rc::gen::inRange<size_t>(1, 40);
    std::vector<char> memory(capacity + 1, 'G');
    TextBuffer out(std::span<char>(memory.data(), capacity));
    std::string whole;
    for (const std::string& part : parts) {
      out.append(part);
      whole += part;
    }
    RC_ASSERT(memory[capacity] == 'G');
    RC_ASSERT(out.view() == whole.substr(0, capacity - 1));
    RC_ASSERT(out.overflowed() == (whole.size() > capacity - 1));
    RC_ASSERT(memory[out.view().size()] == '\0');
  }));
}

TEST(TextBuffer, WritesNumbersAndSizesAsPeopleReadThem) {
  const auto size = [](uint64_t bytes) {
    ShortText<32> text;
    text.appendSize(Bytes(bytes));
    return std::string(text.view());
  };
  EXPECT_EQ(size(0), "0");
  EXPECT_EQ(size(1023), "1023");
  EXPECT_EQ(size(4096), "4.00K");
  EXPECT_EQ(size(245 * kMiB), "245M");
  EXPECT_EQ(size(1536 * kMiB), "1.50G");
  EXPECT_EQ(size(1023 * kKiB), "1.00M");
  EXPECT_EQ(size(UINT64_MAX), "16.0E");
  const auto fixed = [](double value, int decimals) {
    ShortText<64> text;
    text.appendFixed(value, decimals);
    return std::string(text.view());
  };
  EXPECT_EQ(fixed(1.005, 2), "1.00");
  EXPECT_EQ(fixed(0.999, 2), "1.00");
  EXPECT_EQ(fixed(12.0, 0), "12");
  EXPECT_EQ(fixed(0.05, 3), "0.050");
  EXPECT_EQ(fixed(-3, 1), "0.0");
  EXPECT_EQ(fixed(0.0 / 0.0, 1), "0.0");
  EXPECT_EQ(fixed(1e300, 0), "1000000000000000000");
}

TEST(Nearest, FindsTheWordThatWasMeant) {
  const std::string_view words[] = {"dram", "far", "strict", "sampling", "sampling_cpu"};
  EXPECT_EQ(nearestWord("drma", words), "dram");
  EXPECT_EQ(nearestWord("sampling-cpu", words), "sampling_cpu");
  EXPECT_EQ(nearestWord("strct", words), "strict");
  EXPECT_EQ(nearestWord("", words), "far");
  EXPECT_EQ(nearestWord("x", {}), "");
}

TEST(Nearest, DistanceIsSymmetricAndZeroOnlyForEqualWords) {
  EXPECT_TRUE(rc::check([](std::string left, std::string right) {
    left.resize(std::min<size_t>(left.size(), 64));
    right.resize(std::min<size_t>(right.size(), 64));
    const size_t distance = editDistance(left, right);
    RC_ASSERT(distance == editDistance(right, left));
    RC_ASSERT((distance == 0) == (left == right));
    RC_ASSERT(distance <= std::max(left.size(), right.size()));
  }));
}

}  // namespace
}  // namespace tidepool
