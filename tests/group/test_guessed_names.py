"""Names and keywords of other libraries: the error says which one to use."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.guess import WORK
from rankwise.group import guessed_names
from rankwise.group.group import Group


@pytest.mark.parametrize(
    ("guess", "advice"),
    [
        ("allreduce", "use all_reduce"),
        ("Allreduce", "use all_reduce"),
        ("AllReduce", "use all_reduce"),
        ("Allgatherv", "use all_gather_v"),
        ("reducescatter", "use reduce_scatter"),
        ("alltoall", "use all_to_all"),
        ("Barrier", "use barrier"),
        ("Split", "use split"),
        ("Isend", "use isend"),
        ("bcast", "use broadcast(x, src=0), or broadcast_object(obj, src=0) for a Python object"),
        ("allgather", "use all_gather(x), or all_gather_object(obj) for a Python object"),
        ("Bcast", "use broadcast(x, src=0)"),
        ("Free", "use close()"),
        ("size", "use group.world_size"),
        ("Get_size", "use group.world_size"),
        ("get_world_size", "use group.world_size"),
        ("Get_rank", "use group.rank"),
        ("all_gather_into_tensor", "use all_gather(x, out=out), where out has the shape (world_size, *x.shape)"),
        ("new_group", "use subgroup(ranks)"),
        ("get_group_rank", "use translate_rank(rank, other) of the group of all ranks"),
        ("Get_failed", "use failed()"),
        ("Revoke", "use abort(reason)"),
        ("Set_errhandler", "it is not needed: errors are always exceptions"),
        ("destroy_process_group", "use close()"),
        ("init_process_group", "it is not needed: use rw.init(), which returns a group"),
        ("is_initialized", "it is not needed: the group that rw.init() returns is ready"),
        ("ProcessGroup", "use rw.Group"),
        ("DeviceMesh", "use rw.Mesh(group, rows=2, columns=-1)"),
        ("P2POp", "use batch(sends, recvs), with (x, dst) for a send and (x, src) for a receive"),
        ("send_object_list", "use send_object(obj, dst)"),
        ("get_node_local_rank", "the launcher sets the environment variable LOCAL_RANK"),
        ("register_comm_hook", "use rw.overlap.data_parallel(module, hook=...)"),
        ("Iscan", "use scan(x, async_op=True)"),
        ("Ibarrier", "use barrier(async_op=True)"),
        ("Ireduce_scatter", "use reduce_scatter_v(x, counts, async_op=True)"),
        ("Gather_init", "use gather(x, dst=0, async_op=True) each time"),
        ("Allreduce_init", "use all_reduce_plan(x)"),
        ("Isendrecv", "use sendrecv(x, dst, src, async_op=True)"),
        ("is_gloo_available", "use `rankwise doctor` in a shell, which tries every backend"),
        ("DDP", "use rw.overlap.data_parallel(module)"),
        ("Get_attr", "rankwise has nothing that corresponds to it"),
        ("TCPStore", "rankwise has no stores; use broadcast_object(obj, src=0) or all_gather_object(obj)"),
    ],
)
def test_a_guessed_method(guess: str, advice: str) -> None:
    with rw.init("solo") as group:
        assert not hasattr(group, guess)
        with pytest.raises(AttributeError) as raised:
            getattr(group, guess)
        assert str(raised.value) == f"'Group' object has no attribute {guess!r}: {advice}"
        assert guess not in dir(group)


# The names of MPI.Intracomm in mpi4py 4, and those of torch.distributed that no other test has.
MPI = """
Abort Accept Ack_failed Agree Allgather Allgather_init Allgatherv Allgatherv_init Allreduce Allreduce_init Alltoall
Alltoall_init Alltoallv Alltoallv_init Alltoallw Alltoallw_init Attach_buffer Barrier Barrier_init Bcast Bcast_init
Bsend Bsend_init Call_errhandler Cart_map Clone Compare Connect Create Create_cart Create_dist_graph
Create_dist_graph_adjacent Create_errhandler Create_from_group Create_graph Create_group Create_intercomm
Create_keyval Delete_attr Detach_buffer Disconnect Dup Dup_with_info Exscan Exscan_init Flush_buffer Free
Free_keyval Gather Gather_init Gatherv Gatherv_init Get_attr Get_errhandler Get_failed Get_group Get_info Get_name
Get_parent Get_rank Get_size Get_topology Graph_map Iagree Iallgather Iallgatherv Iallreduce Ialltoall Ialltoallv
Ialltoallw Ibarrier Ibcast Ibsend Idup Idup_with_info Iexscan Iflush_buffer Igather Igatherv Improbe Iprobe Irecv
Ireduce Ireduce_scatter Ireduce_scatter_block Irsend Is_inter Is_intra Is_revoked Iscan Iscatter Iscatterv Isend
Isendrecv Isendrecv_replace Ishrink Issend Join Mprobe Precv_init Probe Psend_init Recv Recv_init Reduce Reduce_init
Reduce_scatter Reduce_scatter_block Reduce_scatter_block_init Reduce_scatter_init Revoke Rsend Rsend_init Scan
Scan_init Scatter Scatter_init Scatterv Scatterv_init Send Send_init Sendrecv Sendrecv_replace Set_attr
Set_errhandler Set_info Set_name Shrink Spawn Spawn_multiple Split Split_type Ssend Ssend_init allgather allreduce
alltoall barrier bcast bsend exscan f2py free fromhandle fromint gather group handle ibsend improbe info iprobe
irecv is_inter is_intra is_topo isend issend mprobe probe py2f recv reduce scan scatter send sendrecv size ssend
toint topology
"""
TORCH = """
AllToAllOptions AllreduceCoalescedOptions AllreduceOptions Backend BackendConfig BarrierOptions BroadcastOptions
BuiltinCommHookType DDP DebugLevel DistBackendError DistError DistNetworkError DistStoreError
DistributedDataParallel FileStore GatherOptions GradBucket GroupMember GroupName HashStore Logger PrefixStore
ProcessGroupGloo QueueEmptyError ReduceOptions ReduceScatterOptions Reducer ScatterOptions Store
all_gather_coalesced all_gather_single all_reduce_coalesced breakpoint get_backend_config get_debug_level
get_default_backend_for_device get_pg_count is_backend_available is_gloo_available is_mpi_available
is_nccl_available is_torchelastic_launched is_ucc_available is_xccl_available new_subgroups_by_enumeration
record_comm reduce_scatter_single register_rendezvous_handler rendezvous set_debug_level set_debug_level_from_env
shrink_group supports_complex
"""


def test_every_name_of_mpi4py_and_torch_has_an_answer() -> None:
    with rw.init("solo") as group:
        wrong = [name for name in f"{MPI} {TORCH}".split() if not (hasattr(group, name) or _advice(group, name))]
        assert wrong == []
        assert [name for name in TORCH.split() if not _advice(rw, name)] == []


def _advice(owner: Any, name: str) -> str:
    with pytest.raises(AttributeError) as raised:
        getattr(owner, name)
    return str(raised.value).partition(f"has no attribute {name!r}: ")[2]


def test_dir_of_the_class_shows_only_names_that_exist() -> None:
    shown = dir(rw.Group)
    assert {"all_reduce", "split", "closed", "__init__"} <= set(shown)
    assert [name for name in shown if not hasattr(rw.Group, name)] == []


def test_other_missing_names() -> None:
    with rw.init("solo") as group:
        for name in ("nonsense", "_private", "__array__"):
            with pytest.raises(AttributeError, match=f"^'Group' object has no attribute '{name}'$"):
                getattr(group, name)
        assert {"all_reduce", "rank", "world_size", "name"} <= set(dir(group))


@pytest.mark.parametrize(
    ("guess", "advice"),
    [
        ("COMM_WORLD", ": `group = rw.init()` returns the group of all ranks"),
        ("MPI", ": there is no such module: the group that `group = rw.init()` returns corresponds to MPI.COMM_WORLD"),
        ("SUM", ': use op="sum", or rw.ReduceOp.SUM'),
        ("AVG", ': use op="mean", or rw.ReduceOp.MEAN'),
        ("get_rank", ": after `group = rw.init()`, use group.rank"),
        ("get_world_size", ": after `group = rw.init()`, use group.world_size"),
        ("init_process_group", ": use init(): `group = rw.init()`"),
        ("destroy_process_group", ": use close()"),
        ("is_initialized", ": it is not needed: `group = rw.init()` returns the same group again"),
        ("new_group", ": use subgroup(ranks)"),
        ("allreduce", ": use all_reduce"),
        ("bcast", ": use broadcast(x, src=0), or broadcast_object(obj, src=0) for a Python object"),
        ("DistributedDataParallel", ": use rw.overlap.data_parallel(module)"),
        ("data_parallel", ": use rw.overlap.data_parallel(module)"),
        ("LOR", ': use op="bor" on a bool array, such as x != 0'),
        ("reduce_op", ": use rw.ReduceOp"),
        ("GradientReducer", ": use rw.overlap.GradientReducer"),
        ("run_ranks", ": use rw.testing.run_ranks"),
        ("all_redcue", ". Did you mean 'all_reduce'?"),
        ("nonsense", ""),
    ],
)
def test_a_guessed_name_of_the_module(guess: str, advice: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(rw, guess)
    assert str(raised.value) == f"module 'rankwise' has no attribute {guess!r}{advice}"
    assert guess not in dir(rw)


def test_everything_that_the_tables_recommend_exists() -> None:
    with rw.init("solo") as group:
        for advice in guessed_names.GROUP.values():
            for called, read in re.findall(r"(?<![.\w])([a-z_]+)\(|group\.(\w+)", advice):
                assert hasattr(group, called or read), advice
    for advice in [*guessed_names.GROUP.values(), *guessed_names.MODULE.values()]:
        for path in re.findall(r"rw\.([\w.]*\w)", advice):
            value: Any = rw
            for part in path.split("."):
                value = getattr(value, part)
    parameters = {"x", "src", "dst", "out", "op", "obj", "async_op"}
    assert {one for meant in guessed_names.KEYWORDS.values() for one in meant} <= parameters


def test_no_name_that_exists_is_hidden() -> None:
    public = {name for kind in Group.__mro__ for name in vars(kind) if not name.startswith("_")}
    real = {name for name in public if not isinstance(vars(Group).get(name), guessed_names.Guess)}
    assert {"all_reduce", "split", "isend"} <= real
    with rw.init("solo") as group:
        assert all(hasattr(group, name) for name in real)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda x: rw.broadcast(x, root=0), "broadcast() has no parameter 'root': use 'src'"),
        (lambda x: rw.reduce(x, root=0), "reduce() has no parameter 'root': use 'dst'"),
        (lambda x: rw.send(x, dest=0), "send() has no parameter 'dest': use 'dst'"),
        (lambda x: rw.recv(x, source=0), "recv() has no parameter 'source': use 'src'"),
        (lambda x: rw.all_reduce(sendbuf=x), "all_reduce() has no parameter 'sendbuf': use 'x'"),
        (
            lambda x: rw.all_reduce(x, comm=None),
            "all_reduce() has no parameter 'comm': on another group, call that group's method, group.all_reduce(...)",
        ),
        (lambda x: rw.all_reduce(x, colour=1), "all_reduce() has no parameter 'colour'; expected x, op, async_op"),
    ],
)
def test_a_guessed_keyword_of_a_function(call: Any, advice: str) -> None:
    with rw.init("solo"), pytest.raises(TypeError) as raised:
        call(np.ones(2))
    assert str(raised.value) == advice


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda x: rw.all_gather([x, x], x),
            "all_gather() takes by position at most x; by keyword also out, async_op",
        ),
        (
            lambda x: rw.all_reduce(x, "sum", 3),
            "all_reduce() takes by position at most x, op; by keyword also async_op",
        ),
    ],
)
def test_too_many_positional_arguments_of_a_function(call: Any, text: str) -> None:
    with rw.init("solo"), pytest.raises(TypeError) as raised:
        call(np.ones(2))
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda group, x: group.gather(x, root=0), "gather(x, dst, *, out, async_op): gather() got an unexpected"),
        (lambda group, x: group.recv(x, source=0), "recv(x, src, tag, *, dtype): recv() got an unexpected"),
        (lambda group, x: group.all_reduce(x, timeout=1), "all_reduce(x, op, *, async_op): all_reduce() got an unexp"),
        (lambda group, x: group.all_reduce_plan(x, comm=1), "all_reduce_plan(x, op): all_reduce_plan() got an unexp"),
        (lambda group, x: group.split(colour=1), "split(color, key, name): split() got an unexpected"),
        (lambda group, x: group.all_gather([x], x), "all_gather(x, *, out, async_op): all_gather() takes 2 positional"),
        (lambda group, x: group.timeout_of(), "timeout_of(seconds): timeout_of() missing 1 required"),
    ],
)
def test_pythons_errors_about_a_call_begin_with_the_parameters(call: Any, text: str) -> None:
    with rw.init("solo") as group, pytest.raises(TypeError, match=f"^{re.escape('Group.' + text)}"):
        call(group, np.ones(2))


def test_the_names_of_the_methods_in_errors_are_their_signatures() -> None:
    methods = [inspect.unwrap(one) for _, one in inspect.getmembers(Group, inspect.isfunction)]
    public = [one for one in methods if not one.__name__.startswith("_")]
    assert len(public) > 40
    for method in public:
        shown = re.findall(r"\w+", method.__qualname__.partition("(")[2].rpartition(")")[0])
        assert shown == [*inspect.signature(method).parameters][1:]


def test_other_errors_of_a_function_are_its_own() -> None:
    with rw.init("solo"):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            rw.all_reduce()  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="op=3: expected a name"):
            rw.all_reduce(np.ones(2), op=3)  # type: ignore[call-overload]


def test_objects_where_arrays_are_expected() -> None:
    with rw.init("solo") as group, pytest.raises(TypeError, match="got dict; Python objects are for broadcast_object"):
        group.broadcast({"a": 1})


def test_several_arrays_where_one_is_expected() -> None:
    with rw.init("solo") as group:
        for x in ([np.ones(3), np.ones(3)], (np.ones(2),)):
            with pytest.raises(
                TypeError, match="of several arrays, pass one at a time, or a single one that holds them all"
            ):
                group.all_reduce(x)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("guess", "advice"),
    [
        ("shape", "use mesh.axes, which has the size of each axis by its name"),
        ("dims", "use mesh.axes, which has the size of each axis by its name"),
        ("Get_coords", "use mesh.coordinates, which has this rank's place along each axis by its name"),
        ("Sub", "each axis is an attribute with its group; for several axes use mesh.along(...)"),
        ("get_local_rank", "use the rank of an axis's group"),
    ],
)
def test_a_guessed_attribute_of_a_mesh(guess: str, advice: str) -> None:
    with rw.init("solo") as group, rw.Mesh(group, rows=1) as mesh:
        with pytest.raises(AttributeError) as raised:
            getattr(mesh, guess)
        assert str(raised.value) == f"'Mesh' object has no attribute {guess!r}: {advice}"
        with pytest.raises(AttributeError, match="the mesh has no axis 'column'; its axes are rows"):
            mesh.column  # noqa: B018 - it raises


def test_an_axis_may_be_a_mesh_guess() -> None:
    with rw.init("solo") as group, rw.Mesh(group, size=1) as mesh:
        assert mesh.size.world_size == 1


def test_a_guessed_attribute_of_a_work() -> None:
    with rw.init("solo") as group:
        work = group.all_reduce(np.ones(3), async_op=True)
        assert repr(work) == "<Work, not yet waited for>"
        for guess, advice in WORK.items():
            assert not hasattr(work, guess)
            assert guess not in dir(work)
            with pytest.raises(
                AttributeError, match=rf"^'Work' object has no attribute '{guess}': {re.escape(advice)}$"
            ):
                getattr(work, guess)
        work.wait()
        assert repr(work) == "<Work, complete>"
        waiting = group.irecv((3,), 0, tag=5)
        with pytest.raises(rw.CollectiveTimeout):
            waiting.wait(0.01)
        assert repr(waiting) == "<Work, not yet waited for>"
        group.send(np.ones(3), 0, tag=5)
        waiting.wait()
        assert repr(waiting) == "<Work, complete>"


def test_a_timeout_for_one_call() -> None:
    with pytest.raises(TypeError, match=r"barrier.. has no parameter 'timeout': use `with group.timeout_of"):
        rw.barrier(timeout=5)  # type: ignore[call-overload]
