#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""programs.py NAME: a program that shares host memory with a CUDA device, as trainers do. It prints one line, which is
the same in every run, and on standard error how long it took. Needs PyTorch with CUDA; `unified` needs CuPy."""

import hashlib
import sys
import time

import numpy
import torch

MIB = 1 << 20


def digest(*arrays):
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(memoryview(numpy.ascontiguousarray(array)).cast("B"))
    return whole.hexdigest()[:16]


def pageable():
    """Copies to the device and back, from memory that was never pinned."""
    source = numpy.random.default_rng(1).integers(0, 1 << 30, 64 * MIB, dtype=numpy.int32)
    back = numpy.empty_like(source)
    for _ in range(2):
        on_device = torch.from_numpy(source).to("cuda")
        torch.from_numpy(back).copy_(on_device + 1)
    return digest(back), bool((back == source + 1).all())


def check_cuda(result):
    status = result[0] if isinstance(result, tuple) else result
    if int(status) != 0:
        raise RuntimeError(f"CUDA error {status}")


def registered():
    """The device writes into memory of the program that was registered with it (cudaHostRegister), while the
    program walks through so much else that whatever is not held in place is moved away."""
    cuda = torch.cuda.cudart()
    ours = [numpy.zeros(MIB // 8, dtype=numpy.int64) for _ in range(256)]
    held = ours[::8]
    for chunk in held:
        check_cuda(cuda.cudaHostRegister(chunk.ctypes.data, chunk.nbytes, 0))
    wrong = 0
    for step in range(6):
        values = torch.arange(MIB // 8, device="cuda", dtype=torch.int64) * (step + 1)
        for number, chunk in enumerate(held):
            torch.from_numpy(chunk).copy_(values + number, non_blocking=True)
        for number, chunk in enumerate(ours):
            if number % 8 != 0:
                chunk += step
        torch.cuda.synchronize()
        expected = numpy.arange(MIB // 8, dtype=numpy.int64) * (step + 1)
        wrong += sum(int((chunk != expected + number).sum()) for number, chunk in enumerate(held))
    answer = digest(*ours), wrong
    for chunk in held:
        check_cuda(cuda.cudaHostUnregister(chunk.ctypes.data))
    return answer


def offloaded():
    """Layers on the device, and Adam's master weights and moments in host memory (as ZeRO-Offload has them)."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8)))
    master = [parameter.detach().clone().requires_grad_() for parameter in layers.parameters()]
    layers.to("cuda")
    adam = torch.optim.Adam(master, lr=1e-4, foreach=False)
    losses = []
    for step in range(6):
        generator = torch.Generator(device="cuda").manual_seed(step)
        batch = torch.randn(256, 2048, generator=generator, device="cuda")
        loss = (layers(batch) - batch).square().mean()
        layers.zero_grad()
        loss.backward()
        for here, there in zip(master, layers.parameters()):
            here.grad = there.grad.to("cpu", non_blocking=False)
        adam.step()
        with torch.no_grad():
            for here, there in zip(master, layers.parameters()):
                there.copy_(here)
        losses.append(repr(loss.item()))
    return digest(*(weight.detach().numpy() for weight in master)), *losses


def workers():
    """A DataLoader with forked workers and a thread that pins what they made."""
    class Samples(torch.utils.data.Dataset):
        table = numpy.random.default_rng(5).standard_normal((1 << 20, 32), dtype=numpy.float32)

        def __len__(self):
            return 200

        def __getitem__(self, index):
            return torch.from_numpy(self.table[(numpy.arange(4096) * 2654435761 + index) % len(self.table)])

    loader = torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=3, pin_memory=True)
    total = torch.zeros(32, device="cuda", dtype=torch.float64)
    for batch in loader:
        total += batch.to("cuda", non_blocking=True).double().sum(dim=(0, 1))
    return digest(total.cpu().numpy()),


def unified():
    """Managed memory, and a kernel that reads the program's own memory where the device can (HMM)."""
    import cupy

    managed = cupy.cuda.malloc_managed(64 * MIB)
    array = cupy.ndarray(8 * MIB, dtype=numpy.int64, memptr=managed)
    array[...] = cupy.arange(8 * MIB)
    cupy.cuda.runtime.deviceSynchronize()
    total = int(array.sum())

    source = numpy.random.default_rng(2).integers(0, 1 << 30, 32 * MIB, dtype=numpy.int64)
    other = numpy.zeros(64 * MIB, dtype=numpy.int32)
    other += 7  # so that the source was pushed out before the device reads it
    reads_ours = cupy.cuda.runtime.deviceGetAttribute(88, 0)  # cudaDevAttrPageableMemoryAccess
    answer = "the device cannot read pageable memory"
    if reads_ours:
        kernel = cupy.RawKernel(
            r"""extern "C" __global__ void sum(const long long* in, long long* out, long n) {
              long long mine = 0;
              for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x)
                mine += in[i];
              atomicAdd((unsigned long long*)out, (unsigned long long)mine);
            }""",
            "sum",
        )
        out = cupy.zeros(1, dtype=numpy.int64)
        kernel((64,), (256,), (source.ctypes.data, out, numpy.int64(source.size)))
        answer = "right" if int(out.get()[0]) == int(source.sum()) else "wrong"
    return total, answer, int(other.sum(dtype=numpy.int64))


PROGRAMS = {run.__name__: run for run in (pageable, registered, offloaded, workers, unified)}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in PROGRAMS:
        sys.exit(f"usage: programs.py {'|'.join(PROGRAMS)}")
    torch.zeros(1, device="cuda")
    began = time.monotonic()
    print(*PROGRAMS[sys.argv[1]]())
    print(f"seconds {time.monotonic() - began:.2f}", file=sys.stderr)


if __name__ == "__main__":
    main()
