#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# behind.sh LIBRARY OTHER PROGRAM [TOOL...]: with OTHER preloaded behind LIBRARY the program says what it
# says with OTHER alone, whose counts are in it.
library=$1
other=$2
program=$3
plain=$(LD_PRELOAD=$other "$program") || exit 1
both=$(LD_PRELOAD=$library:$other TIDEPOOL_CONF=strict:true "$program") || exit 1
# Those who watch what is unmapped are told of managed memory by an madvise.
both=$(printf '%s\n' "$both" | sed 's/^madvise 2$/madvise 1/')
[ "$plain" = "$both" ] && exit 0
printf 'plain:\n%s\nboth:\n%s\n' "$plain" "$both"
exit 1
