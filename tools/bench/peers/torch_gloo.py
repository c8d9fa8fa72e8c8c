"""Peer: collectives of torch over gloo, in the columns of //tools/bench:collectives.

  torchrun --standalone --nproc_per_node 2 torch_gloo.py --bytes=65536,29360128
"""
import argparse
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--bytes", default="65536,1048576,4194304,29360128",
                    help="sizes of the whole tensors")
parser.add_argument("--seconds", type=float, default=0.3,
                    help="least time of a measurement")
ARGUMENTS = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()


def rounds(call):
    """All ranks do the same number, which rank 0 decides."""
    call()
    start = time.perf_counter()
    for _ in range(3):
        call()
    seconds = (time.perf_counter() - start) / 3
    agreed = torch.tensor([int(min(max(ARGUMENTS.seconds / seconds, 5), 20000))])
    dist.broadcast(agreed, 0)
    return int(agreed)


def measure(operation, factor, num_bytes, call):
    count = rounds(call)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    dist.barrier()
    seconds = (time.perf_counter() - start) / count
    if RANK == 0:
        gigabytes = num_bytes / seconds / 1e9
        print(f"{num_bytes:12d} {num_bytes // 4:12d} {'float':>8} "
              f"{'sum' if 'reduce' in operation else 'none':>6}  {operation:<14} "
              f"{'plain' if num_bytes else '-':<9} {seconds * 1e6:10.1f} "
              f"{gigabytes:8.2f} {gigabytes * factor:8.2f}", flush=True)


def main():
    if RANK == 0:
        print(f"# torch {torch.__version__} gloo, {WORLD} ranks")
        print(f"{'size(B)':>12} {'count':>12} {'type':>8} {'redop':>6}  "
              f"{'operation':<14} {'path':<9} {'time(us)':>10} {'algbw':>8} "
              f"{'busbw':>8}")
    share = (WORLD - 1) / WORLD
    measure("barrier", 0, 0, dist.barrier)
    for text in ARGUMENTS.bytes.split(","):
        num_bytes = int(text) // (WORLD * 64) * (WORLD * 64)
        whole = torch.zeros(num_bytes // 4)
        part = torch.zeros(num_bytes // 4 // WORLD)
        measure("all_gather", share, num_bytes,
                lambda: dist.all_gather_into_tensor(whole, part))
        measure("reduce_scatter", share, num_bytes,
                lambda: dist.reduce_scatter_tensor(part, whole))
        measure("all_reduce", 2 * share, num_bytes, lambda: dist.all_reduce(whole))
        measure("broadcast", 1, num_bytes, lambda: dist.broadcast(whole, 0))
    dist.destroy_process_group()


main()
