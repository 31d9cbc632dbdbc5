# SPDX-License-Identifier: Apache-2.0
"""Run by every Python interpreter under `tidepool run --rows auto`, before the program.

Waits for `import torch`, and has tidepool_rows change what nn.Embedding and nn.EmbeddingBag make.
Imports nothing itself: a program without torch starts as quickly as it did.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _Loader:
    """Torch's own loader, with something to do afterwards."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        sys.path.insert(0, _FOLDER)
        try:
            import tidepool_rows

            tidepool_rows.install(module)
        except Exception as error:  # the program can do without
            sys.stderr.write(f"tidepool: rows: off: {error}\n")
        finally:
            sys.path.remove(_FOLDER)


class _WaitForTorch:
    """A finder that finds torch where the others do, once."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def _others():
    """Runs the sitecustomize that this one hides, as if it were alone."""
    paths = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") != "PathFinder":
            continue
        spec = finder.find_spec("sitecustomize", paths)
        if spec is not None and spec.loader is not None:
            module = type(sys)("sitecustomize")
            module.__spec__, module.__loader__ = spec, spec.loader
            module.__file__ = spec.origin
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
        return


if os.environ.get("TIDEPOOL_ROWS"):
    sys.meta_path.insert(0, _WaitForTorch())
# Programs that list their path see what they would without Tidepool; those that they start inherit
# the variable.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
_others()
