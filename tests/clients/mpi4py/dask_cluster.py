"""dask-mpi: rank 0 is the scheduler, rank 1 the client, the others are workers."""

from tempfile import TemporaryDirectory

from dask_mpi import initialize
from distributed import Client

with TemporaryDirectory() as folder:
    initialize(interface="lo", dashboard=False, local_directory=folder)  # returns on rank 1 only
    with Client() as client:
        client.wait_for_workers(1)
        print(f"result: {sum(client.gather(client.map(lambda x: x * x, range(50))))}")
