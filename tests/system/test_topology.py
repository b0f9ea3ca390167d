"""The CPUs of a machine by core, cache and NUMA node, read from pretended descriptions of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankwise.system.topology import cores, cpus_text, last_level_caches, nodes, parse_cpus

ALL = frozenset(range(8))


def machine(folder: Path, numa: dict[int, str], caches: Sequence[str] = ()) -> str:
    """The kernel's description of a machine: the CPUs of each node, and those of each last-level cache."""
    for number, cpus in numa.items():
        (folder / "node" / f"node{number}").mkdir(parents=True)
        (folder / "node" / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    for shared in caches:
        for cpu in parse_cpus(shared):
            for index, (level, cpus) in enumerate([(1, str(cpu)), (3, shared), (2, str(cpu))]):
                cache = folder / "cpu" / f"cpu{cpu}" / "cache" / f"index{index}"
                cache.mkdir(parents=True)
                (cache / "level").write_text(f"{level}\n")
                (cache / "shared_cpu_list").write_text(f"{cpus}\n")
    return str(folder)


def test_lists_of_cpus() -> None:
    assert parse_cpus("0-2,5\n") == {0, 1, 2, 5}
    assert parse_cpus("\n") == set()
    assert cpus_text({0, 1, 2, 5}) == "0-2,5"
    assert cpus_text([]) == ""


def test_nodes_by_number(tmp_path: Path) -> None:
    system = machine(tmp_path, {10: "6-7", 0: "0-1,4-5", 2: "2-3", 3: ""})
    assert nodes(ALL, system) == {0: {0, 1, 4, 5}, 2: {2, 3}, 10: {6, 7}}
    assert nodes(frozenset([1, 2, 9]), system) == {0: {1}, 2: {2}, 11: {9}}  # the last is in no node's list


def test_last_level_caches(tmp_path: Path) -> None:
    system = machine(tmp_path, {0: "0-7"}, ["0-3", "4-7"])
    assert last_level_caches(ALL, system) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert last_level_caches(frozenset([3, 4, 5]), system) == [{3}, {4, 5}]
    assert cores(frozenset([3, 4]), system) == [{3}, {4}]  # the kernel does not say which CPUs share a core


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    assert nodes(ALL, str(tmp_path)) == {0: ALL}
    assert last_level_caches(ALL, str(tmp_path)) == []
