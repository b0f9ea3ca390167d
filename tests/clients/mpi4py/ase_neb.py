"""ASE's nudged elastic band, one image on each rank."""

from mpi4py import MPI  # isort: skip  # before ASE, which then uses it

import numpy as np
from ase.build import add_adsorbate, fcc100
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.mep import NEB
from ase.optimize import BFGS
from ase.parallel import parprint, world

assert world.size == MPI.COMM_WORLD.size
slab = fcc100("Al", size=(2, 2, 3))
add_adsorbate(slab, "Au", 1.7, "hollow")
slab.center(axis=2, vacuum=4.0)
slab.set_constraint(FixAtoms(mask=[atom.tag > 1 for atom in slab]))
slab.calc = EMT()
BFGS(slab, logfile=None).run(fmax=0.05)
images = [slab]
for number in range(world.size):
    image = slab.copy()
    image.set_constraint(slab.constraints)
    if number == world.rank:
        image.calc = EMT()
    images.append(image)
end = slab.copy()
end[-1].x += end.get_cell()[0, 0] / 2
end.calc = EMT()
BFGS(end, logfile=None).run(fmax=0.05)
images.append(end)
neb = NEB(images, parallel=True)
neb.interpolate()
BFGS(neb, logfile=None).run(fmax=0.05, steps=10)
energies = np.zeros(world.size)
energies[world.rank] = images[1 + world.rank].get_potential_energy()
world.sum(energies)
parprint(f"result: {[round(float(each), 8) for each in energies]}")
