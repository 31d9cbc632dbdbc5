# SPDX-License-Identifier: Apache-2.0
"""gensim's word2vec on a text: one worker and fixed seeds, so that two runs give the same vectors.

The vocabulary is made wide by keeping pairs of words as words, so that the two matrices are large."""

import hashlib
import sys

from gensim.models import Word2Vec


def sentences(path):
    with open(path, encoding="ascii") as text:
        for line in text:
            words = line.split()
            yield words + [f"{a}_{b}" for a, b in zip(words, words[1:])]


def main():
    model = Word2Vec(
        list(sentences(sys.argv[1])), vector_size=200, min_count=1, workers=1, epochs=1, seed=7
    )
    vectors = model.wv.vectors
    print(len(model.wv), vectors.shape[1], hashlib.sha256(vectors.tobytes()).hexdigest())


main()
