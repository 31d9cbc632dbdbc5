# SPDX-License-Identifier: Apache-2.0
"""Tidepool's measuring harness: Debian's python3 and its standard library only."""
