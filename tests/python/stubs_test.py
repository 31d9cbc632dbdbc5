# SPDX-License-Identifier: Apache-2.0
"""_core.pyi says what the extension has: the same names, members, arguments; and every public name has a docstring."""

import ast
import inspect
import pathlib
import re
import unittest

import tidepool
import tidepool.torch
from tidepool import _core

STUB = pathlib.Path(_core.__file__).with_name("_core.pyi")
_OF_ENUMS = {"name", "value"}  # pybind11's own


def arguments_of(text):
    """Names of the arguments in the signature that pybind11 puts first in a docstring."""
    inside = re.match(r"\w+\((.*)\) -> ", text.partition("\n")[0]).group(1)
    return re.findall(r"(?:^|, )(\w+): ", inside)


class Stub(unittest.TestCase):
    def setUp(self):
        self.tree = ast.parse(STUB.read_text())

    def check_function(self, node, there, inside=""):
        where = f"{inside}{node.name}"
        self.assertIn(" -> ", there.__doc__ or "", where)
        declared = [argument.arg for argument in node.args.args]
        found = arguments_of(there.__doc__)
        if len(found) == len(declared):
            # pybind11 names arguments without a name arg0, arg1, ...
            for one, other in zip(declared, found):
                self.assertTrue(one == other or other.startswith("arg"), f"{where}: {declared}, {found}")
        else:
            self.fail(f"{where}: {declared} in the stub, {found} in the module")
        self.assertIsNotNone(node.returns, where)

    def check_class(self, node):
        there = getattr(_core, node.name)
        is_enum = hasattr(there, "__members__")
        declared = set()
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                declared.add(item.name)
                member = inspect.getattr_static(there, item.name)
                if any(getattr(mark, "id", "") == "property" for mark in item.decorator_list):
                    self.assertIsInstance(member, property, f"{node.name}.{item.name}")
                    self.assertIsNone(member.fset, f"{node.name}.{item.name} is read-only in the stub")
                else:
                    self.check_function(item, member, f"{node.name}.")
            elif isinstance(item, ast.AnnAssign):
                declared.add(item.target.id)
                if not is_enum:
                    member = inspect.getattr_static(there, item.target.id)
                    self.assertIsNotNone(member.fset, f"{node.name}.{item.target.id} cannot be set")
        if is_enum:
            self.assertEqual(declared - {"__members__"}, set(there.__members__), node.name)
        public = {name for name in vars(there) if not name.startswith("_")} - (_OF_ENUMS if is_enum else set())
        self.assertEqual(public, {name for name in declared if not name.startswith("_")}, node.name)
        if not is_enum and "__init__" not in declared:
            with self.assertRaises(TypeError):  # nobody but the core makes one
                there()

    def test_it_says_what_there_is(self):
        declared = set()
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                declared.add(node.name)
                self.check_class(node)
            elif isinstance(node, ast.FunctionDef):
                declared.add(node.name)
                self.check_function(node, getattr(_core, node.name))
        self.assertEqual(declared, {name for name in vars(_core) if not name.startswith("_")})

    def test_every_name_in_it_is_known(self):
        known = {node.name for node in self.tree.body if isinstance(node, ast.ClassDef)}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                known.update(alias.name for alias in node.names)
        known.update(("int", "float", "bool", "str", "bytes", "None", "property", "self"))
        for node in ast.walk(self.tree):
            for note in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                for name in ast.walk(note) if note is not None else ():
                    if isinstance(name, ast.Name):
                        self.assertIn(name.id, known)

    def test_members_of_the_package_have_documents(self):
        for module in (tidepool, tidepool.torch):
            self.assertEqual(sorted(module.__all__), sorted(set(module.__all__)))
            for name in module.__all__:
                thing = getattr(module, name)
                self.assertTrue((thing.__doc__ or "").strip(), name)
                if not inspect.isclass(thing) or issubclass(thing, Exception):
                    continue
                for member, value in vars(thing).items():
                    of_the_tuple = issubclass(thing, tuple) and member in thing._fields
                    if member.startswith("_") or of_the_tuple or not (callable(value) or isinstance(value, property)):
                        continue
                    inherited = any(hasattr(base, member) for base in thing.__mro__[1:])
                    self.assertTrue((value.__doc__ or "").strip() or inherited, f"{name}.{member}")


if __name__ == "__main__":
    unittest.main()
