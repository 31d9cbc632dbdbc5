#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# same.sh LIBRARY PROGRAM [ARGS]: runs the program plain and under the preload (strictly, so that it
# cannot pass by not being managed), and demands the same output and exit status.
# With MUST_BE set, that exit status; otherwise 0.
library=$1
shift
plain=$("$@")
plain_status=$?
preloaded=$(TIDEPOOL_CONF="strict:true${EXTRA_CONF:+,$EXTRA_CONF}" LD_PRELOAD=$library "$@" 2>&1)
status=$?
if [ "$plain" != "$preloaded" ] || [ $plain_status != $status ] || [ $status != "${MUST_BE:-0}" ]; then
  echo "plain: status $plain_status"
  echo "$plain" | tail -20
  echo "preloaded: status $status"
  echo "$preloaded" | tail -20
  exit 1
fi
