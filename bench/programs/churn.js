// SPDX-License-Identifier: Apache-2.0
// Allocation-heavy: a map of some hundred thousand records that are replaced all the time, each of
// strings, arrays and a buffer. Prints a sum over what is left; the same on every run.
'use strict';

let state = 12345;
function next(below) {
  state = (Math.imul(state, 1103515245) + 12345) >>> 0;
  return Math.floor(state / 4294967296 * below);
}

const kRecords = 150000;
const records = new Map();
for (let round = 0; round < 1000000; ++round) {
  const key = next(kRecords);
  const buffer = Buffer.allocUnsafe(256 + next(1024));
  buffer.fill(round & 255);
  records.set(key, {name: `record ${key} of round ${round}`, numbers: [round, key, next(1000)], buffer});
}
let sum = 0;
for (const [key, record] of records) {
  for (const byte of record.buffer) sum = (sum + byte) % 1000000007;
  sum = (sum * 31 + key + record.numbers[0] + record.name.length) % 1000000007;
}
console.log(records.size, sum);
