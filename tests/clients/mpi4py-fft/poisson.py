"""mpi4py-fft: a Poisson equation in three dimensions, on slabs and on pencils, in double and in single precision."""

import numpy as np
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray

comm = MPI.COMM_WORLD
SHAPE = (24, 18, 32)


def axes(slab, shape):
    """The points of this rank's block, as three arrays that broadcast."""
    points = (np.arange(n)[part] * 2 * np.pi / n for n, part in zip(shape, slab, strict=True))
    return np.meshgrid(*points, indexing="ij", sparse=True)


def solved(grid, dtype):
    """The solution of laplace(u) = f, whose exact solution is known, and its greatest error."""
    fft = PFFT(comm, SHAPE, dtype=dtype, grid=grid)
    f, u = newDistArray(fft, False), newDistArray(fft, False)
    spectrum = newDistArray(fft, True)
    x, y, z = axes(fft.local_slice(False), SHAPE)
    exact = np.sin(2 * x) * np.cos(3 * y) * np.sin(z)
    f[:] = -14 * exact
    spectrum[:] = fft.forward(f)
    shape = fft.global_shape(True)
    waves = [np.fft.fftfreq(n, 1 / n) for n in shape[:2]] + [np.arange(shape[2])]
    waves = [wave[part] for wave, part in zip(waves, fft.local_slice(True), strict=True)]
    k = np.meshgrid(*waves, indexing="ij", sparse=True)
    squared = sum(each**2 for each in k)
    spectrum[:] = np.where(squared == 0, 0, -spectrum / np.where(squared == 0, 1, squared))
    u[:] = fft.backward(spectrum)
    error = comm.allreduce(float(np.abs(u - exact).max()), MPI.MAX)
    turned = u.redistribute(0 if u.alignment else 1)  # by Alltoallw
    energy = comm.allreduce(float(np.sum(np.asarray(turned, np.float64) ** 2)))
    fft.destroy()
    return energy, error


found = []
for grid in (None, (-1,)):
    for dtype, allowed in ((np.float64, 1e-12), (np.float32, 1e-5)):
        energy, error = solved(grid, dtype)
        assert error < allowed, error
        found.append(f"{energy:.2f}")
if comm.rank == 0:
    print("result:", " ".join(found))
