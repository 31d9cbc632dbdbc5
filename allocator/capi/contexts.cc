// SPDX-License-Identifier: Apache-2.0
// The C API's options, contexts and statistics. See tidepool.h.
#include <cstring>
#include <new>

#include "allocator/capi/objects.h"
#include "allocator/stats_text.h"

namespace tidepool {
namespace {

/// Items of a conf text, of which every key has to be known.
Result<Options> parseStrictly(const char* conf) {
  static constinit thread_local char unknown[232];
  unknown[0] = '\0';
  const auto options =
      parseOptions(conf, [](const char* line) { strncpy(unknown, line, sizeof unknown - 1); });
  if (options && unknown[0] != '\0') return fail(ErrorCode::kNotFound, "%s", unknown);
  return options;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

tidepool_status tidepool_options_create(const char* conf, tidepool_options** out) {
  if (out == nullptr) return reportNull("out");
  const auto options = parseStrictly(conf != nullptr ? conf : "");
  if (!options) return report(options.error());
  *out = new tidepool_options{*options};
  return TIDEPOOL_OK;
}

tidepool_status tidepool_options_set(tidepool_options* options, const char* key,
                                     const char* value) {
  if (options == nullptr) return reportNull("options");
  if (key == nullptr) return reportNull("key");
  if (value == nullptr) return reportNull("value");
  Options changed = options->options;
  const Status set = setOption(changed, key, value);
  if (!set) return report(set.error());
  options->options = changed;
  return TIDEPOOL_OK;
}

void tidepool_options_free(tidepool_options* options) { delete options; }

tidepool_status tidepool_open(const tidepool_options* options, tidepool_context** out) {
  if (out == nullptr) return reportNull("out");
  auto context = Context::open(options != nullptr ? std::optional(options->options) : std::nullopt);
  if (!context) return report(context.error());
  auto* const slot = context_slots.open(context->get());
  if (slot == nullptr) {
    return report(Error::make(ErrorCode::kNoSpace, "too many contexts are open: close some"));
  }
  static_cast<void>(context->release());
  *out = static_cast<tidepool_context*>(slot);
  return TIDEPOOL_OK;
}

tidepool_status tidepool_close(tidepool_context* handle) {
  Context* const context = contextOf(handle);
  if (context == nullptr) return tidepool_error_status();
  const Status closed = context->close();
  if (!closed) return report(closed.error());
  std::unique_ptr<Context> gone(context_slots.close(handle));
  return gone != nullptr ? TIDEPOOL_OK : reportClosed("context");
}

tidepool_status tidepool_context_get_info(tidepool_context* handle, tidepool_context_info* out) {
  if (out == nullptr) return reportNull("out");
  Context* const context = contextOf(handle);
  if (context == nullptr) return tidepool_error_status();
  tidepool_context_info info{};
  info.origin = static_cast<int32_t>(context->origin());
  info.far_tiers = static_cast<uint32_t>(context->farTiers().size());
  info.budget_bytes = context->options().dram.value();
  info.charged_bytes = context->chargedLocal().value();
  info.users = context->users();
  return fillIn(out, info);
}

tidepool_status tidepool_stats_json(tidepool_context* handle, char* buffer, size_t capacity,
                                    size_t* needed) {
  if (buffer == nullptr && capacity != 0) return reportNull("buffer");
  Context* const context = contextOf(handle);
  if (context == nullptr) return tidepool_error_status();
  const auto text = StatsText::of(*context);
  if (!text) return report(text.error());
  const std::string_view json = text->view();
  if (needed != nullptr) *needed = json.size() + 1;
  if (json.size() + 1 > capacity) {
    return report(Error::make(ErrorCode::kNoSpace, "the statistics take %zu bytes, of %zu",
                              json.size() + 1, capacity));
  }
  memcpy(buffer, json.data(), json.size());
  buffer[json.size()] = '\0';
  return TIDEPOOL_OK;
}

}  // extern "C"
