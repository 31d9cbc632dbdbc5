#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs COMMAND as root on this system, but on a copy of its files that is thrown away: what it writes lands
# in memory. Of what it leaves behind, the names of files that the system did not have go to LIST.
#   on_a_copy.sh LIST COMMAND...
set -euo pipefail
if [[ ${1-} != --inside ]]; then
  (($(id -u) == 0)) || exec sudo "$0" "$@"
  exec unshare --mount --propagation private --pid --fork --kill-child "$0" --inside "$@"
fi
list=$2
shift 2
copy=$(mktemp -d)
trap 'umount -R -l "$copy"; rmdir "$copy"' EXIT
mount -t tmpfs tmpfs "$copy"
mkdir "$copy"/{new,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$copy/new,workdir=$copy/work" "$copy/root"
mount -t proc proc "$copy/root/proc"
for folder in dev sys; do mount --rbind "/$folder" "$copy/root/$folder"; done
status=0
chroot "$copy/root" "$@" || status=$?
(cd "$copy/new" && find . -mindepth 1 ! -type c -printf '/%P\n') | while read -r path; do
  [[ -e $path || -L $path ]] || echo "$path"
done >"$list"
exit $status
