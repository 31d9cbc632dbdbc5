#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks that includes go one way only, as the architecture says:
#   base <- os <- space <- tier <- (sample, migrate) <- allocator <- shim;   policy sees base alone;
#   in migrate: core <- direct <- (evict, process) <- (fault, fabric) <- the files directly in it;
#   fabricmgr sees runtime/base, runtime/transport and its own: (model, tls) <- (placement, store, device) <- manager <- api <-
#   serve; cli and agent speak HTTP alone; the shim sees no JSON, HTTP or log library.
# rdma-core's headers are included in two places only. And that what runs inside a program formats text by runtime/base/format.h alone: see there why.
# Prints every include that breaks a rule and exits 1; with a folder argument checks that tree instead.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

below_migrate="runtime/base runtime/os runtime/space runtime/tier runtime/transport runtime/policy runtime/sample runtime/stats"
rooms_of_migrate="runtime/migrate/core runtime/migrate/direct runtime/migrate/evict runtime/migrate/process runtime/migrate/fault runtime/migrate/fabric"
# layer -> the layers whose headers it may include ("self" is always allowed).
declare -A may=(
  [runtime/base]=""
  [runtime/os]="runtime/base"
  [runtime/policy]="runtime/base"
  [runtime/transport]="runtime/base runtime/os"
  [runtime/stats]="runtime/base runtime/os"
  [runtime/space]="runtime/base runtime/os runtime/stats"
  [runtime/tier]="runtime/base runtime/os runtime/space runtime/transport runtime/stats"
  [runtime/sample]="runtime/base runtime/os runtime/space runtime/tier runtime/policy runtime/stats"
  [runtime/migrate/core]="$below_migrate"
  [runtime/migrate/direct]="$below_migrate runtime/migrate/core"
  [runtime/migrate/evict]="$below_migrate runtime/migrate/core runtime/migrate/direct"
  [runtime/migrate/process]="$below_migrate runtime/migrate/core runtime/migrate/direct"
  [runtime/migrate/fault]="$below_migrate runtime/migrate/core runtime/migrate/direct"
  [runtime/migrate/fabric]="$below_migrate runtime/migrate/core runtime/migrate/direct runtime/migrate/evict"
  [runtime/migrate]="$below_migrate $rooms_of_migrate"
  [fabricmgr/model]="runtime/base"
  [fabricmgr/placement]="runtime/base fabricmgr/model"
  [fabricmgr/store]="runtime/base fabricmgr/model"
  [fabricmgr/tls]="runtime/base runtime/transport fabricmgr"
  [fabricmgr/memserver]="runtime/base runtime/transport fabricmgr fabricmgr/tls fabricmgr/model fabricmgr/device"
  [fabricmgr/device]="runtime/base runtime/transport fabricmgr/tls fabricmgr/model fabricmgr/cxl"
  [fabricmgr/manager]="runtime/base fabricmgr/model fabricmgr/placement fabricmgr/store fabricmgr/device"
  [fabricmgr/api]="runtime/base runtime/transport fabricmgr fabricmgr/tls fabricmgr/model fabricmgr/manager"
  [fabricmgr/serve]="runtime/base fabricmgr fabricmgr/tls fabricmgr/api fabricmgr/manager fabricmgr/store fabricmgr/device"
  [fabricmgr/cxl]="runtime/base fabricmgr"
  [fabricmgr/ca]="runtime/base fabricmgr"
  [fabricmgr/client]="fabricmgr"
  [fabricmgr/agent]="runtime/base runtime/transport fabricmgr fabricmgr/model fabricmgr/device fabricmgr/cxl fabricmgr/api fabricmgr/client"
  [fabricmgr/cli]="runtime/base fabricmgr fabricmgr/client"
  # The files directly in fabricmgr/: main.cc, and what the commands share.
  [fabricmgr]="runtime/base fabricmgr/api fabricmgr/cli"
  # The files directly in runtime/ (runtime.cc, options.cc) put the parts together.
  [runtime]="runtime/base runtime/os runtime/policy runtime/transport runtime/stats runtime/space runtime/tier runtime/sample runtime/migrate $rooms_of_migrate"
  # allocator: arena, the files directly in it (contexts) <- heap <- moves <- capi.
  [allocator/include]=""
  [allocator/examples]=""
  [allocator/arena]="runtime/base runtime/os"
  # Tables: rows <- (kernels, policy) <- table.
  [allocator/rows]="runtime/base"
  [allocator/kernels]="runtime/base allocator/rows"
  [allocator/policy]="runtime/base allocator/rows"
  [allocator/fabric]="runtime/base runtime/os runtime/tier runtime/transport"
  [allocator/table]="allocator runtime runtime/base runtime/tier runtime/transport allocator/rows allocator/fabric allocator/kernels allocator/policy"
  [allocator/checkpoint]="runtime/base allocator/rows allocator/kernels allocator/table"
  [allocator/publish]="runtime/base allocator/rows allocator/kernels allocator/table"
  [allocator/tensors]="runtime/base runtime/tier runtime/transport"
  [allocator/python]="runtime/base runtime/tier allocator/rows allocator/kernels allocator/table allocator/checkpoint allocator/publish allocator/tensors"
  [allocator]="runtime runtime/base runtime/os runtime/space runtime/stats runtime/tier"
  [allocator/heap]="allocator allocator/arena runtime runtime/base runtime/os runtime/space runtime/stats"
  [allocator/moves]="allocator allocator/heap runtime/base runtime/space"
  [allocator/capi]="allocator allocator/heap allocator/include allocator/moves allocator/rows allocator/kernels allocator/table allocator/checkpoint allocator/publish runtime runtime/base runtime/policy runtime/space runtime/stats"
  # allocator/checkpoint and what it includes: for the command (cli/) alone.
  [shim]="allocator allocator/arena allocator/checkpoint runtime runtime/base runtime/os runtime/stats runtime/tier"
)
# options.h is the plain description of the settings: every layer above base may read it.
everyone="runtime/options.h"
banned_in_core='nlohmann|httplib|spdlog|fmt/|curl|CLI/|CLI11|microhttpd|boost/'

# Sets `layer_of` to the layer a repository path belongs to.
find_layer() {
  case "$1" in
    runtime/migrate/*/*) layer_of=${1#runtime/migrate/} layer_of=runtime/migrate/${layer_of%%/*} ;;
    runtime/*/* | allocator/*/* | fabricmgr/*/*) layer_of=${1#*/} layer_of=${1%%/*}/${layer_of%%/*} ;;
    *) layer_of=${1%%/*} ;;
  esac
}

errors=0
complain() { echo "layering: $*"; errors=$((errors + 1)); }

# One process for all files: two for each take a minute on a busy machine.
sources=(--include=*.h --include=*.hpp --include=*.cc --include=*.cpp --include=*.c)
folders=()
for folder in runtime allocator shim fabricmgr; do [[ -d $folder ]] && folders+=("$folder"); done
in_sources() {
  if ((${#folders[@]})); then grep -rE "$@" "${sources[@]}" "${folders[@]}" || true; fi
}

# Whether it runs inside the user's program: the command line tool lives in shim/ too, but is a program of its own.
runs_inside() { # FILE LAYER
  [[ $2 == runtime* || ( $2 == allocator* && $2 != allocator/include ) || ( $2 == shim && $1 != shim/cli/* ) ]]
}

count=0
while IFS= read -r file; do
  count=$((count + 1))
  find_layer "$file"
  [[ -n ${may[$layer_of]+known} ]] ||
    complain "$file: layer '$layer_of' is not in tests/layering.sh; say there what it may include"
done < <(in_sources -l '')

while IFS=: read -r file line text; do
  find_layer "$file"
  [[ $layer_of == allocator/examples ]] && continue
  runs_inside "$file" "$layer_of" || continue
  complain "$file:$line: libc's printf family may touch managed memory; use runtime/base/format.h"
done < <(in_sources -n '\b(v?f|v?sn?|v?d|v)printf\(')

while IFS=: read -r file line text; do
  find_layer "$file"
  layer=$layer_of
  [[ -n ${may[$layer]+known} && $text =~ [\<\"]([^\>\"]*)[\>\"] ]] || continue
  included=${BASH_REMATCH[1]}
  if runs_inside "$file" "$layer" && [[ $included =~ $banned_in_core ]]; then
    complain "$file:$line: $layer must not include <$included>"
  fi
  # rdma-core is loaded when it is wanted: its headers stay with those who load it.
  if [[ $included == infiniband/* || $included == rdma/* || $included == runtime/transport/verbs/library.h ]] &&
     [[ $file != runtime/transport/verbs/* && $file != fabricmgr/memserver/verbs_* ]]; then
    complain "$file:$line: <$included> is for runtime/transport/verbs and the memory server's verbs_* alone"
  fi
  case "$included" in
    runtime/* | allocator/* | shim/* | fabricmgr/*) ;;
    *) continue ;;
  esac
  [[ $included == "$everyone" && $layer != runtime/base ]] && continue
  find_layer "$included"
  target=$layer_of
  [[ $target == "$layer" ]] && continue
  [[ " ${may[$layer]} " == *" $target "* ]] ||
    complain "$file:$line: $layer must not include $included (may: ${may[$layer]:-nothing})"
done < <(in_sources -n '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]')

if ((count == 0)); then
  echo "layering: found no source files under $(pwd)"
  exit 1
fi
if ((errors)); then
  echo "layering: $errors include(s) go the wrong way, of $count files"
  exit 1
fi
echo "layering: $count files, every include goes the right way"
