# SPDX-License-Identifier: Apache-2.0
"""For pip: has CMake build tidepool._core with the interpreter that installs, and nothing else of the tree."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent


def version():
    return re.search(r"project\(tidepool VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


class CMakeBuild(build_ext):
    """One extension, built in a folder of its own under build_temp."""

    def build_extension(self, extension):
        built = pathlib.Path(self.build_temp).resolve()
        built.mkdir(parents=True, exist_ok=True)
        settings = [
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DTIDEPOOL_PYTHON_ONLY=ON",
            "-DTIDEPOOL_PYTHON_REQUIRED=ON",
            "-DTIDEPOOL_TESTS=OFF",
            "-DTIDEPOOL_BENCH=OFF",
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_CXX_FLAGS_RELEASE=-O2",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        subprocess.run(["cmake", "-S", str(ROOT), "-B", str(built), *settings], check=True)
        subprocess.run(
            ["cmake", "--build", str(built), "--target", "tidepool_python", "--parallel", jobs], check=True
        )
        target = pathlib.Path(self.get_ext_fullpath(extension.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(built / "python" / "tidepool" / target.name), str(target))


setup(
    version=version(),
    ext_modules=[Extension("tidepool._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
