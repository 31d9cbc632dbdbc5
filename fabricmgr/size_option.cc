// SPDX-License-Identifier: Apache-2.0
// Sizes on the command line. See size_option.h.
#include "fabricmgr/size_option.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "runtime/base/units.h"

namespace tidepool {

uint64_t machineBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t sizeOption(const std::string& option, const std::string& text) {
  double number = 0;
  char unit[4] = {};
  int used = 0;
  const int fields = sscanf(text.c_str(), "%lf%3[a-zA-Z%]%n", &number, unit, &used);
  const std::string suffix = CLI::detail::to_lower(unit);
  static const std::map<std::string, double> kUnits = {
      {"", 1},        {"b", 1},        {"k", 1024.0},
      {"kb", 1024.0}, {"kib", 1024.0}, {"m", 0x1p20},
      {"mb", 0x1p20}, {"mib", 0x1p20}, {"g", 0x1p30},
      {"gb", 0x1p30}, {"gib", 0x1p30}, {"t", 0x1p40},
      {"tb", 0x1p40}, {"tib", 0x1p40}, {"%", static_cast<double>(machineBytes()) / 100}};
  const auto scale = kUnits.find(suffix);
  const bool whole = fields == 1 ? text.find_first_not_of("0123456789.") == std::string::npos
                                 : static_cast<size_t>(used) == text.size();
  const double bytes = scale == kUnits.end() ? -1 : number * scale->second;
  if (fields < 1 || !whole || !(bytes >= static_cast<double>(kPageSize)) || bytes > 0x1p56) {
    throw CLI::ValidationError(
        option, "'" + text + "' is not a size of at least 4K: such as 512M, 64G, 1.5T or 25%");
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace tidepool
