// SPDX-License-Identifier: Apache-2.0
// The formatter: one pass over the format, digits made in a small buffer. Thread-safe.
#include "runtime/base/format.h"

#include <cstdint>
#include <cstring>

namespace tidepool {
namespace {

class Sink {
 public:
  Sink(char* out, size_t size) : out_(out), room_(size - 1) {}
  void put(char character) {
    if (used_ < room_) out_[used_++] = character;
  }
  void put(const char* text, size_t length) {
    for (size_t i = 0; i < length; ++i) put(text[i]);
  }
  void number(uint64_t value, unsigned base) {
    char digits[20];
    size_t count = 0;
    do {
      digits[count++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (count > 0) put(digits[--count]);
  }
  size_t end() {
    out_[used_] = '\0';
    return used_;
  }

 private:
  char* out_;
  size_t room_;
  size_t used_ = 0;
};

/// In a struct, so that helpers can advance the one list (a va_list parameter may be a copy).
struct Args {
  va_list list;
};

/// One conversion: how many l's or a z stand before it, and the precision of a %s.
struct Spec {
  int longs = 0;
  int precision = -1;
};

uint64_t takeUnsigned(const Spec& spec, Args& args) {
  return spec.longs > 0 ? va_arg(args.list, unsigned long) : va_arg(args.list, unsigned);
}

void putSigned(Sink& sink, const Spec& spec, Args& args) {
  const int64_t value = spec.longs > 0 ? va_arg(args.list, long) : va_arg(args.list, int);
  if (value < 0) sink.put('-');
  sink.number(value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value), 10);
}

void putText(Sink& sink, const Spec& spec, Args& args) {
  const char* text = va_arg(args.list, const char*);
  if (text == nullptr) text = "(null)";
  sink.put(text,
           spec.precision >= 0 ? strnlen(text, static_cast<size_t>(spec.precision)) : strlen(text));
}

/// Reads "%.*" or "%.80" and length modifiers; returns the position of the conversion letter.
const char* parse(const char* at, Spec& spec, Args& args) {
  if (at[0] == '.' && at[1] == '*') {
    spec.precision = va_arg(args.list, int);
    at += 2;
  } else if (at[0] == '.') {
    spec.precision = 0;
    for (++at; *at >= '0' && *at <= '9'; ++at) spec.precision = 10 * spec.precision + (*at - '0');
  }
  for (; *at == 'l' || *at == 'z' || *at == 'h'; ++at) {
    if (*at != 'h') ++spec.longs;
  }
  return at;
}

}  // namespace

size_t formatTextV(char* out, size_t size, const char* format, va_list original) {
  static_assert(sizeof(long) == sizeof(long long) && sizeof(long) == sizeof(size_t));
  Sink sink(out, size);
  Args args;
  va_copy(args.list, original);
  for (const char* at = format; *at != '\0'; ++at) {
    if (*at != '%') {
      sink.put(*at);
      continue;
    }
    const char* start = at;
    Spec spec;
    at = parse(at + 1, spec, args);
    switch (*at) {
      case 's':
        putText(sink, spec, args);
        break;
      case 'c':
        sink.put(static_cast<char>(va_arg(args.list, int)));
        break;
      case 'd':
      case 'i':
        putSigned(sink, spec, args);
        break;
      case 'u':
        sink.number(takeUnsigned(spec, args), 10);
        break;
      case 'x':
        sink.number(takeUnsigned(spec, args), 16);
        break;
      case '%':
        sink.put('%');
        break;
      case '\0':
        va_end(args.list);
        return sink.end();
      default:
        sink.put(start, static_cast<size_t>(at - start) + 1);
    }
  }
  va_end(args.list);
  return sink.end();
}

size_t formatText(char* out, size_t size, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const size_t length = formatTextV(out, size, format, args);
  va_end(args);
  return length;
}

const char* errnoText(int os_error) {
  const char* text = strerrordesc_np(os_error);
  return text != nullptr ? text : "unknown error";
}

}  // namespace tidepool
