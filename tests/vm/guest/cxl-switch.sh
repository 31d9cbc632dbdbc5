#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What fabricmgr's `cxl_switch` calls in the machines: the testbed's switch, on the third serial port. One at a time.
# Who called it may have been killed meanwhile, and read nothing any more: it goes on all the same.
trap '' PIPE
until mkdir /run/cxl-switch 2>/dev/null; do usleep 50000; done
trap 'rmdir /run/cxl-switch' EXIT
exec 7<>/dev/ttyS2
echo "switch $*" >&7
read -r answer <&7
case "$answer" in
  error*) echo "$answer" >&2; exit 1 ;;
  ok) ;;
  *) echo "$answer" ;;
esac
