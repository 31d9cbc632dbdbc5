#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages named in packaging/deps/NAME.txt, only those that are missing.
# Idempotent: with nothing missing it asks dpkg once and touches neither apt nor the network.
#   packaging/install-deps.sh build check     install what these lists name
#   packaging/install-deps.sh --check build   only say what is missing; exit 1 if anything is
#   packaging/install-deps.sh --list build    only print the packages of the lists
# shellcheck disable=SC2086  # lists of packages are words, and split into them
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mode=install
case "${1-}" in
  --check) mode=check; shift ;;
  --list) mode=list; shift ;;
  -*) echo "install-deps: unknown option '$1' (known: --check, --list)" >&2; exit 2 ;;
esac
if [ $# -eq 0 ]; then
  echo "usage: install-deps.sh [--check|--list] LIST...   (lists: build check demo bench programs unchanged deb python)" >&2
  exit 2
fi

packages=
for list in "$@"; do
  file=$here/deps/$list.txt
  if [ ! -f "$file" ]; then
    echo "install-deps: no list named '$list' (have: $(cd "$here/deps" && echo *.txt | sed 's/\.txt//g'))" >&2
    exit 2
  fi
  packages="$packages $(sed -e 's/#.*//' "$file" | tr -s ' \t\n' ' ')"
done
if [ "$mode" = list ]; then
  printf '%s\n' $packages
  exit 0
fi

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "install-deps: this is not a Debian system (no dpkg-query)." >&2
  echo "  Install the equivalents of these yourself, then run make again with DEPS=no:" >&2
  echo "  $packages" >&2
  exit 1
fi

# dpkg-query prints nothing for a package it has never heard of, and exits non-zero: both mean missing.
packages=$(printf '%s\n' $packages | sort -u | tr '\n' ' ')
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' $packages 2>/dev/null |
            sed -n 's/^installed //p') || true
missing=
for package in $packages; do
  printf '%s\n' "$installed" | grep -qxF -- "$package" || missing="$missing $package"
done
if [ -z "$missing" ]; then
  exit 0
fi
if [ "$mode" = check ]; then
  echo "install-deps: missing:$missing" >&2
  echo "  to install them: sudo packaging/install-deps.sh $*" >&2
  exit 1
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "install-deps: missing:$missing" >&2
    echo "  Installing them needs root: run 'apt-get install$missing' as root, then try again." >&2
    exit 1
  fi
  as_root=sudo
fi

# Waits up to ten minutes for another apt or dpkg to finish instead of failing at once.
apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 \
    -o Dpkg::Use-Pty=0 "$@"
}

# Where systemd runs, Debian starts a service as it is installed, now and at each boot. The tests
# start their own.
silenced=
case " $missing " in
  *" etcd-server "*) [ ! -d /run/systemd/system ] || silenced=etcd.service ;;
esac
unsilence() {
  [ -n "$silenced" ] || return 0
  $as_root systemctl unmask --runtime --quiet "$silenced" || true
  $as_root systemctl disable --quiet "$silenced" || true
}
trap unsilence EXIT
[ -z "$silenced" ] || $as_root systemctl mask --runtime --quiet "$silenced" || true

# The package lists are fetched only when they are needed: when apt knows no candidate for one of
# the missing packages, or when the download of a version it knows fails because it has moved on.
echo "install-deps: installing:$missing" >&2
unknown=
for package in $missing; do
  apt-cache show --no-all-versions "$package" >/dev/null 2>&1 || unknown="$unknown $package"
done
if [ -n "$unknown" ]; then
  apt update >&2 || true  # the install below says what went wrong
elif apt install --no-install-recommends $missing >&2; then
  exit 0
else
  apt update >&2 || true  # the install below says what went wrong
fi
if ! apt install --no-install-recommends $missing >&2; then
  echo "install-deps: apt-get could not install:$missing" >&2
  echo "  Tidepool's lists are for Debian 12 (bookworm); see packaging/deps/." >&2
  exit 1
fi
