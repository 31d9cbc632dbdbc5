# SPDX-License-Identifier: Apache-2.0
"""A program of many small objects, threads, mappings and a child process."""
import ctypes
import hashlib
import json
import mmap
import subprocess
import sys
import threading

digest = hashlib.sha256()
table = {str(i): [i] * (i % 17) for i in range(200000)}
digest.update(json.dumps(table).encode())
for size in (1 << 12, 1 << 20, 64 << 20):
    with mmap.mmap(-1, size) as shared:
        shared[size - 1] = 7
        digest.update(shared[size - 4096 : size])
block = bytearray(100 << 20)
block[-1] = 1
block.extend(b"x" * (50 << 20))
digest.update(bytes(block[:: 1 << 16]))


def work(number, out=[]):
    out.append(len([str(j) for j in range(50000 + number)]))


threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
child = subprocess.run([sys.executable, "-c", "print(sum(range(10**6)))"], capture_output=True)
digest.update(child.stdout)
digest.update(bytes(ctypes.create_string_buffer(b"end", 100000)))
print(digest.hexdigest(), child.returncode, child.stderr)
