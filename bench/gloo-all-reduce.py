"""One rank of gloo's all-reduce: python3 gloo-all-reduce.py RANK WORLD PORT. Reads 'BYTES ITERATIONS BLOCKS' lines from
stdin, and answers each with the microseconds of one operation, by block, as JSON."""
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank, world, port = (int(argument) for argument in sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
print(json.dumps({"torch": torch.__version__}), flush=True)
for line in sys.stdin:
    size, iterations, blocks = (int(word) for word in line.split())
    data = torch.zeros(size // 4)
    times = []
    for block in range(-1, blocks):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            dist.all_reduce(data)
        if block >= 0:
            times.append((time.perf_counter() - start) / iterations * 1e6)
    print(json.dumps(times), flush=True)
