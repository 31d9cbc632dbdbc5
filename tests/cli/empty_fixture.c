// SPDX-License-Identifier: Apache-2.0
// A program that does nothing; the tests look at how it is linked.
int main(void) { return 0; }
