"""The errors for names that other libraries use: each says what rankwise calls the same thing.

There is one table for groups, one for the module, one for meshes, and one for keywords.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rankwise.contract.guess import Guess, by_name

if TYPE_CHECKING:
    from inspect import Parameter
    from types import FunctionType

_FIRST = "group = rw.init()"

_MPI = {
    "allgather": "all_gather(x)",
    "allgatherv": "all_gather_v(x)",
    "allreduce": 'all_reduce(x, op="sum")',
    "alltoall": "all_to_all(x)",
    "alltoallv": "all_to_all_v(x, counts)",
    "alltoallw": "all_to_all_v(x, counts)",
    "barrier": "barrier()",
    "bcast": "broadcast(x, src=0)",
    "exscan": "exscan(x)",
    "gather": "gather(x, dst=0)",
    "gatherv": "gather_v(x, dst=0)",
    "reduce": "reduce(x, dst=0)",
    "reduce_scatter": "reduce_scatter_v(x, counts)",
    "reduce_scatter_block": "reduce_scatter(x)",
    "scan": "scan(x)",
    "scatter": "scatter(x, src=0)",
    "scatterv": "scatter_v(x, counts, src=0)",
}
"""MPI's collectives. Each also has an asynchronous form, as in ibcast, and a persistent one, as in bcast_init."""

_ASYNC = {name: f"{call.removesuffix(')')}, async_op=True)".replace("(, ", "(") for name, call in _MPI.items()}


_GROUP = {
    # numbers and texts of the group
    "use group.world_size": "size get_size get_world_size n_ranks",
    "use group.rank": "get_rank",
    "use translate_rank(rank, other) of the group of all ranks": "get_group_rank",
    "use group.ranks[rank]": "get_global_rank",
    "use group.ranks": "get_process_group_ranks get_group group",
    "use group.backend": "get_backend BackendConfig get_backend_config",
    "use group.name": "get_name",
    # collectives
    "use broadcast(x, src=0), or broadcast_object(obj, src=0) for a Python object": "bcast",
    "use broadcast(x, src=0)": "Bcast",
    "use all_gather(x), or all_gather_object(obj) for a Python object": "allgather",
    "use all_gather(x)": "Allgather",
    "use barrier(), whose CollectiveTimeout names the ranks that are missing": "monitored_barrier",
    "use all_gather(x, out=out), where out has the shape (world_size, *x.shape)": (
        "all_gather_into_tensor all_gather_base all_gather_single"
    ),
    "use reduce_scatter(x, out=out)": "reduce_scatter_tensor reduce_scatter_single",
    "use all_reduce(x) for each array, or for one that holds them all": "all_reduce_coalesced",
    "use all_gather(x) for each array, or for one that holds them all": "all_gather_coalesced",
    "use reduce_scatter(x)": "reduce_scatter_block",
    "use all_to_all(x, out=out), or all_to_all_v(x, counts)": "all_to_all_single",
    "use all_to_all_v(x, counts)": "alltoallw",
    "use scatter_object(objs, src=0), which returns this rank's object": "scatter_object_list",
    "use broadcast_object(obj, src=0), which returns the object": "broadcast_object_list",
    "use broadcast_object(obj, src=0)": "bcast_object",
    "use all_gather_object(obj)": "gather_all_object",
    "use all_reduce_plan(x)": "allreduce_init",
    "use broadcast_plan(x)": "bcast_init",
    # messages
    "use send(x, dst)": "ssend rsend",
    "use isend(x, dst)": "bsend issend ibsend irsend",
    "use send_plan(x, dst)": "ssend_init bsend_init rsend_init psend_init send_init",
    "use recv_plan(x, src)": "precv_init recv_init",
    "use sendrecv(x, dst, src, async_op=True)": "isendrecv",
    "use sendrecv(x, dst, src, out=x, async_op=True)": "isendrecv_replace",
    "use sendrecv(x, dst, src, out=x)": "sendrecv_replace",
    "use probe(src, tag)": "iprobe mprobe improbe",
    "use batch(sends, recvs)": "batch_isend_irecv",
    "use batch(sends, recvs), with (x, dst) for a send and (x, src) for a receive": "P2POp",
    "use send_object(obj, dst)": "send_object_list",
    "use recv_object(src), which returns the object": "recv_object_list",
    "use rw.wait_all(works)": "wait_all",
    "use rw.wait_any(works)": "wait_any",
    # groups
    "use subgroup(ranks)": "new_group create create_group create_from_group new_subgroups_by_enumeration",
    "use split_local(), or split(color) with the same color on the ranks that belong together": "split_type",
    "use split_local().rank": "local_rank",
    "use split(color, key=0), or subgroup(ranks)": "split_group",
    "use split(color, key=0)": "new_subgroups",
    "use dup()": "clone duplicate idup dup_with_info idup_with_info",
    "compare the ranks of both groups, as in a.ranks == b.ranks": "compare",
    'use dup("name"), or the argument name of split': "set_name",
    "use rw.Mesh(group, rows=2, columns=-1)": "cart_map create_cart device_mesh init_device_mesh",
    "rankwise has no neighbourhood collectives; use rw.Mesh(group, rows=2, columns=-1), or batch(sends, recvs)": (
        "create_graph create_dist_graph create_dist_graph_adjacent graph_map get_topology topology is_topo"
    ),
    "use rw.Group": "process_group GroupMember GroupName",
    "use close()": "free destroy disconnect finalize shutdown destroy_process_group",
    # after a loss
    "use failed()": "get_failed",
    "use abort(reason)": "revoke",
    "it is not needed: failed() says which ranks are lost, and how": "is_revoked ack_failed",
    "use shrink()": "ishrink shrink_group",
    "use agree(flag)": "iagree",
    "it is not needed: errors are always exceptions": "set_errhandler get_errhandler create_errhandler call_errhandler",
    "use rw.RankwiseError": "DistError DistBackendError DistNetworkError",
    # the job, and training
    "it is not needed: use rw.init(), which returns a group": "init_process_group",
    "it is not needed: the group that rw.init() returns is ready": "is_initialized",
    "it is not needed: rankwise is always available": "is_available",
    "the launcher sets the environment variable LOCAL_RANK": "get_node_local_rank",
    "rankwise has no stores; use broadcast_object(obj, src=0) or all_gather_object(obj)": """
        TCPStore FileStore HashStore PrefixStore Store DistStoreError QueueEmptyError rendezvous
        register_rendezvous_handler
    """,
    "use `rankwise doctor` in a shell, which tries every backend": (
        "is_backend_available is_gloo_available is_mpi_available is_nccl_available is_ucc_available is_xccl_available"
    ),
    "it is not needed: the ranks always compare their calls": (
        "DebugLevel get_debug_level set_debug_level set_debug_level_from_env"
    ),
    "use rw.init(backend), or no backend for the best": "Backend get_default_backend_for_device",
    "use rw.ReduceOp": "ReduceOp reduce_op",
    "use rw.Work": "Work",
    "it is not needed: each operation takes its options as arguments": """
        AllreduceOptions AllreduceCoalescedOptions AllToAllOptions BarrierOptions BroadcastOptions GatherOptions
        ReduceOptions ReduceScatterOptions ScatterOptions
    """,
    "it is not needed: rw.init() finds the launcher": "is_torchelastic_launched",
    "it is not needed: complex arrays are taken wherever their op has a meaning": "supports_complex",
    "use rw.overlap.data_parallel(module)": "DistributedDataParallel DDP",
    "use rw.overlap.Bucket": "GradBucket",
    "use rw.overlap.GradientReducer": "Reducer",
    "use rw.overlap.BF16Hook or rw.overlap.TopKHook": "BuiltinCommHookType",
    "rankwise has nothing that corresponds to it": """
        Logger breakpoint get_pg_count record_comm accept connect join spawn spawn_multiple get_parent
        create_intercomm is_inter is_intra attach_buffer detach_buffer flush_buffer iflush_buffer create_keyval
        free_keyval get_attr set_attr delete_attr get_info set_info info f2py py2f fromhandle handle fromint toint
    """,
    "use rw.overlap.data_parallel(module, hook=...)": "register_comm_hook",
}

GROUP: dict[str, str] = {
    **{f"i{name}": f"use {call}" for name, call in _ASYNC.items()},
    **{f"{name}_init": f"use {call} each time" for name, call in _ASYNC.items()},
    **{f"ProcessGroup{name}": f'use rw.init("{name.lower()}")' for name in ("Gloo", "MPI", "NCCL")},
    **by_name(_GROUP),
}
"""By the name in snake_case, or in a spelling of its own. `guesses` adds the other spellings, and those of the group's
own operations.
"""

_MODULE = {
    f"there is no such module: the group that `{_FIRST}` returns corresponds to MPI.COMM_WORLD": "mpi",
    f"`{_FIRST}` returns the group of all ranks": "commworld world group",
    f"use init(): `{_FIRST}`": "initprocessgroup initialize",
    f"use init(): `{_FIRST}` returns the same group again": "getdefaultgroup",
    f"it is not needed: `{_FIRST}` returns the same group again": "isinitialized",
    f"after `{_FIRST}`, use group.rank": "rank getrank",
    "the launcher sets the environment variable LOCAL_RANK": "localrank",
    f"after `{_FIRST}`, use group.world_size": "worldsize size getsize getworldsize",
    f"after `{_FIRST}`, use group.backend": "getbackend",
    "the result of recv_any, and the Work of irecv and irecv_object, have the source and the tag": "status",
    "call start() of each plan": "startall",
    "use time.perf_counter()": "wtime",
    "use color=None": "undefined",
    "use rw.Mesh.balanced(group, 2)": "computedims",
    "use rw.Group": "comm",
    "use rw.overlap.data_parallel(module)": "distributeddataparallel ddp dataparallel",
    "use rw.Mesh": "cart",
    "use ANY as the src of recv": "anysource",
    "use ANY as the tag of recv": "anytag",
    "use None as dst or src": "procnull",
    "it is not needed: all_reduce, broadcast and reduce work in place": "inplace",
    "use rw.testing.run_ranks": "runranks",
    "use `rankwise run -n 4 program.py` in a shell, or rw.spawn(function, n)": "run launch",
    "use rw.Pool(n)": "mpipoolexecutor",
    "use rw.Pool(group=group)": "mpicommexecutor",
    "use rw.trace.span": "span",
    "use rw.trace.measure": "measure",
    "use rw.elastic.State": "state",
    'use op="mean", or rw.ReduceOp.MEAN': "avg mean average",
    'use op="product", or rw.ReduceOp.PROD': "prod product",
}

MODULE: dict[str, str] = {
    **by_name(_MODULE),
    **{
        name: f'use op="{name}", or rw.ReduceOp.{name.upper()}' for name in ("sum", "max", "min", "band", "bor", "bxor")
    },
    **{name: f'use op="{name}"' for name in ("minloc", "maxloc")},
    **{f"l{name}": f'use op="b{name}" on a bool array, such as x != 0' for name in ("and", "or", "xor")},
    **{
        name.lower(): f"use rw.overlap.{name}"
        for name in ("BF16Hook", "Bucket", "BucketHook", "Event", "GradientReducer", "Stream", "TopKHook")
    },
}
"""By the name in lower case without underscores. For names that are not here, `missing` looks into GROUP: the module
also has the group's operations.
"""

KEYWORDS: dict[str, tuple[str, ...]] = by_name(
    {
        ("src", "dst"): "root",
        ("src",): "source srcrank groupsrc",
        ("dst",): "dest dstrank groupdst",
        ("x",): "sendbuf buf tensor array inputtensor inputlist scatterlist",
        ("out", "x"): "recvbuf",
        ("out",): "outputtensor output gatherlist",
        ("obj",): "object",
        ("op",): "reduceop",
        ("async_op",): "async asyncop",
    }
)
"""The parameters that a keyword may mean. The error names the first one that the operation has."""

_GROUPS = ("comm", "group", "process_group")


MESH: dict[str, str] = by_name(
    {
        "use mesh.axes, which has the size of each axis by its name": "shape dims meshdimnames",
        "use mesh.axes, mesh.periodic and mesh.coordinates": "gettopo",
        "use len(mesh.axes)": "ndim dim",
        "use mesh.coordinates, which has this rank's place along each axis by its name": (
            "coords getcoords getcoordinate"
        ),
        "use mesh.periodic, the names of the periodic axes": "periods",
        "use mesh.rank_at(...)": "getcartrank",
        "each axis is an attribute with its group; for several axes use mesh.along(...)": "sub getgroup",
        "use mesh.group.rank": "rank getrank",
        "use the rank of an axis's group": "getlocalrank",
        "use mesh.group.world_size": "size worldsize",
    }
)
"""What a Mesh has instead of these attributes of mpi4py's Cartcomm and of torch's DeviceMesh, in lower case without
underscores.
"""


def spellings(name: str) -> set[str]:
    """The other spellings of a name in snake_case: allreduce, Allreduce, All_reduce, AllReduce, allReduce."""
    first, *others = name.split("_")
    camel = "".join(word.capitalize() for word in others)
    joined = name.replace("_", "")
    return {joined, joined.capitalize(), name.capitalize(), first + camel, first.capitalize() + camel} - {name}


class Guessed(type):
    """The type of a class with Guesses: dir() of the class shows only names that exist."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if hasattr(cls, name)]


def guesses(known: Iterable[str]) -> dict[str, Guess]:
    """A Guess for each name that a user may expect and a group does not have. known: the public names that it has."""
    known = set(known)
    advice = {**{name: f"use {name}" for name in known}, **GROUP}
    spelled = {spelling: text for name, text in advice.items() for spelling in (name, *spellings(name))}
    return {name: Guess(name, text) for name, text in spelled.items() if name not in known}


def parameters(method: FunctionType) -> str:
    """A method's parameters without self: "x, dst, *, out, async_op"."""
    code = method.__code__
    by_place = code.co_varnames[1 : code.co_argcount]
    by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return ", ".join([*by_place, *["*"] * bool(by_name), *by_name])


def missing(name: str, known: Iterable[str]) -> str:
    """The message for a name that the module does not have. known: the public names that it has."""
    text = f"module 'rankwise' has no attribute {name!r}"
    if name.startswith("__"):
        return text
    plain = _plain(name)
    by_plain = {_plain(one): one for one in known}
    ours = {one: f"use {name}" for one, name in by_plain.items()}
    of_groups = {_plain(one): advice for one, advice in GROUP.items()}
    advice = MODULE.get(plain) or GROUP.get(name) or ours.get(plain) or of_groups.get(plain)
    if advice is not None:
        return f"{text}: {advice}"
    from difflib import get_close_matches

    near = get_close_matches(plain, by_plain, n=1, cutoff=0.75)
    return f"{text}. Did you mean {by_plain[near[0]]!r}?" if near else text


def wrong_call(function: str, error: TypeError, parameters: Iterable[Parameter]) -> str | None:
    """A better message for a TypeError that a call of `function` raised; None unless it is about a parameter's name, or
    about too many positional arguments.
    """
    parameters = list(parameters)
    if re.search(r"takes .* positional arguments? but \d+ (was|were) given", str(error)):
        by_place = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        by_name = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        text = f"{function}() takes by position at most {', '.join(by_place) or 'nothing'}"
        return f"{text}; by keyword also {', '.join(by_name)}" if by_name else text
    found = re.search(r"got an unexpected keyword argument '(\w+)'", str(error))
    if found is None:
        return None
    name, known = found[1], [one.name for one in parameters]
    text = f"{function}() has no parameter {name!r}"
    if name == "timeout":
        return f"{text}: use `with group.timeout_of(seconds):`, or the Work's wait(timeout)"
    if name in _GROUPS:
        return f"{text}: on another group, call that group's method, group.{function}(...)"
    for meant in KEYWORDS.get(_plain(name), ()):
        if meant in known:
            return f"{text}: use {meant!r}"
    return f"{text}; expected {', '.join(known)}"


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
