# SPDX-License-Identifier: Apache-2.0
"""The testbed: gets QEMU and a kernel, boots machines with a given topology, runs scripts in them."""
