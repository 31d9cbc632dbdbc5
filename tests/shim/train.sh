#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# train.sh FASTTEXT [WORDS]: trains on a small generated text (40,000 words); prints the checksum of the model's bytes.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v words="${2:-40000}" 'BEGIN { for (i = 1; i < words; ++i) printf "w%d%s", (i * i) % 4099, i % 12 ? " " : "\n" }' \
  > "$work/text"
"$1" skipgram -input "$work/text" -output "$work/model" -dim 20 -bucket 50000 -epoch 1 -thread 1 \
  > /dev/null 2>&1 || exit 1
md5sum < "$work/model.bin"
