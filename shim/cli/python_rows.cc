// SPDX-License-Identifier: Apache-2.0
// The start-up hook of Python. See python_rows.h.
#include "shim/cli/python_rows.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "runtime/tier/far_kind.h"

namespace tidepool::cli {
namespace {

// Smaller weights do as well in pages, and a table in a memory server takes a connection.
constexpr Bytes kLeastWeight(16 * kMiB);

/// What --rows says.
struct Wanted {
  Bytes least;                   // size of a weight that is made of rows; 0: none is
  bool dense_gradients = false;  // layers without sparse=True, too
};

Wanted wantedRows(const std::string& value) {
  if (value == "off") return {};
  if (value == "auto") return {kLeastWeight};
  if (value == "all") return {kLeastWeight, true};
  const bool all = value.starts_with("all:");
  const Result<Bytes> size = parseSize(all ? value.substr(4) : value);
  if (size) return {*size, all};
  throw UsageError(fmt::format("run: --rows: '{}' is neither auto, all, off nor a size: {}", value,
                               size.error().text()));
}

bool readsAhead(const std::string& value) {
  if (value == "auto" || value == "off") return value == "auto";
  throw UsageError(fmt::format("run: --rows-ahead: '{}' is neither auto nor off", value));
}

/// Our folder first, what PYTHONPATH holds already behind it, without us a second time.
std::string pythonPath(const std::string& hook) {
  const char* const old = getenv("PYTHONPATH");
  std::string path = hook;
  std::string rest = old == nullptr ? "" : old;
  rest += ':';
  for (size_t colon = rest.find(':'); colon != std::string::npos; colon = rest.find(':')) {
    const std::string entry = rest.substr(0, colon);
    rest.erase(0, colon + 1);
    if (!entry.empty() && entry != hook) path += ":" + entry;
  }
  return path;
}

}  // namespace

void planRows(const Arguments& arguments, const std::string& preload, Plan& plan) {
  const Wanted wanted = wantedRows(arguments.value("--rows", "auto"));
  const bool ahead = readsAhead(arguments.value("--rows-ahead", "auto"));
  const std::string folder = preload.substr(0, preload.rfind('/'));
  const std::string hook = folder + "/tidepool/python";
  const std::string library = folder + "/libtidepool.so.0";
  if (wanted.least == Bytes()) {
    plan.rows_off = "by --rows off";
  } else if (plan.options.far_count == 0) {
    plan.rows_off = "there is no far tier";
  } else if (plan.options.dram == Bytes()) {
    plan.rows_off = "there is no budget";
  } else if (!plan.options.far[0].kind->tables) {
    plan.rows_off =
        fmt::format("the first far tier, {}, is for pages alone", plan.options.far[0].kind->name);
  } else if (plan.options.seal) {
    plan.rows_off = "rows cannot be sealed, and seal:on was asked for";
  } else if (access((hook + "/sitecustomize.py").c_str(), R_OK) != 0) {
    plan.rows_off = fmt::format("{} is not installed", hook);
  } else if (access(library.c_str(), R_OK) != 0) {
    plan.rows_off = fmt::format("{} is not installed", library);
  } else {
    plan.rows = fmt::format("{}{}{}:{}", wanted.least.value(), wanted.dense_gradients ? ",all" : "",
                            ahead ? "" : ",no-ahead", library);
    plan.python_path = pythonPath(hook);
  }
}

}  // namespace tidepool::cli
