# SPDX-License-Identifier: Apache-2.0
"""Embedding weights of unchanged PyTorch programs, as tables of rows in far tiers.

Pure Python over libtidepool's C interface, for the interpreter and the torch are the user's own: any
Python from 3.8 and any torch from 1.13 on.
"""


def install(torch):
    """Has torch's embedding layers make their large weights as rows from now on.

    Parameters: the module torch, just imported. Errors: anything; the caller goes on without.
    """
    from . import layers, library

    settings = library.settings()
    if settings is not None:
        layers.patch(torch, settings)
