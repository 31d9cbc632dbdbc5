// SPDX-License-Identifier: Apache-2.0
// The commands of `fabricmgr`, by the folder that carries them out. Each function adds its own to
// `app`; when one is chosen and parsed, `*exit_code` receives the outcome. Single-threaded.
#pragma once

#include <CLI/CLI.hpp>

namespace tidepool {

namespace agent {
void addCommand(CLI::App& app, int* exit_code);
}
namespace ca {  // the authority for labs
void addCommand(CLI::App& app, int* exit_code);
}
namespace cli {  // the operator's: every verb of verbs.h, and `watch`
void addCommands(CLI::App& app, int* exit_code);
}
namespace cxl {  // of this very machine, without a manager
void addCommand(CLI::App& app, int* exit_code);
namespace fmapi {  // `device discover`: after the operator's, which have `device`
void addCommand(CLI::App& app, int* exit_code);
}
}  // namespace cxl
namespace memserver {
void addCommand(CLI::App& app, int* exit_code);
}
namespace serve {
void addCommand(CLI::App& app, int* exit_code);
void addStoreCommands(CLI::App& app, int* exit_code);  // `init`, `backup`, ...
}  // namespace serve

}  // namespace tidepool
