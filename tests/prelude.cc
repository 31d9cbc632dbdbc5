// SPDX-License-Identifier: Apache-2.0
// Nothing. The target of this file compiles the headers that nearly every test includes; the tests
// use them precompiled (tests/CMakeLists.txt). Tests include what they need all the same: not every
// build does this.
