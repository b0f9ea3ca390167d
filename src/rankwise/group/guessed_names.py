"""The errors for names that other libraries use: each says what rankwise calls the same thing.

There is one table for groups, one for the module, and one for keywords.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

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

_STORES = "rankwise has no stores; use broadcast_object(obj, src=0) or all_gather_object(obj)"
_COMPARED = "it is not needed: the ranks always compare their calls"
_DOCTOR = "use `rankwise doctor` in a shell, which tries every backend"
_NEIGHBOURS = (
    "rankwise has no neighbourhood collectives; use rw.Mesh(group, rows=2, columns=-1), or batch(sends, recvs)"
)
_OPTIONS = """
AllreduceOptions AllreduceCoalescedOptions AllToAllOptions BarrierOptions BroadcastOptions GatherOptions
ReduceOptions ReduceScatterOptions ScatterOptions
"""
_NOTHING = """
Logger breakpoint get_pg_count record_comm accept connect join spawn spawn_multiple get_parent create_intercomm
is_inter is_intra attach_buffer detach_buffer flush_buffer iflush_buffer create_keyval free_keyval get_attr set_attr
delete_attr get_info set_info info f2py py2f fromhandle handle fromint toint
"""

GROUP: dict[str, str] = {
    **{f"i{name}": f"use {call}" for name, call in _ASYNC.items()},
    **{f"{name}_init": f"use {call} each time" for name, call in _ASYNC.items()},
    # numbers and texts of the group
    "size": "use group.world_size",
    "get_size": "use group.world_size",
    "get_world_size": "use group.world_size",
    "n_ranks": "use group.world_size",
    "get_rank": "use group.rank",
    "get_group_rank": "use translate_rank(rank, other) of the group of all ranks",
    "get_global_rank": "use group.ranks[rank]",
    "get_process_group_ranks": "use group.ranks",
    "get_backend": "use group.backend",
    "get_name": "use group.name",
    # collectives
    "bcast": "use broadcast(x, src=0), or broadcast_object(obj, src=0) for a Python object",
    "Bcast": "use broadcast(x, src=0)",
    "allgather": "use all_gather(x), or all_gather_object(obj) for a Python object",
    "Allgather": "use all_gather(x)",
    "monitored_barrier": "use barrier(), whose CollectiveTimeout names the ranks that are missing",
    "all_gather_into_tensor": "use all_gather(x, out=out), where out has the shape (world_size, *x.shape)",
    "all_gather_base": "use all_gather(x, out=out), where out has the shape (world_size, *x.shape)",
    "all_gather_single": "use all_gather(x, out=out), where out has the shape (world_size, *x.shape)",
    "reduce_scatter_tensor": "use reduce_scatter(x, out=out)",
    "reduce_scatter_single": "use reduce_scatter(x, out=out)",
    "all_reduce_coalesced": "use all_reduce(x) for each array, or for one that holds them all",
    "all_gather_coalesced": "use all_gather(x) for each array, or for one that holds them all",
    "reduce_scatter_block": "use reduce_scatter(x)",
    "all_to_all_single": "use all_to_all(x, out=out), or all_to_all_v(x, counts)",
    "alltoallw": "use all_to_all_v(x, counts)",
    "scatter_object_list": "use scatter_object(objs, src=0), which returns this rank's object",
    "broadcast_object_list": "use broadcast_object(obj, src=0), which returns the object",
    "bcast_object": "use broadcast_object(obj, src=0)",
    "gather_all_object": "use all_gather_object(obj)",
    # messages
    "ssend": "use send(x, dst)",
    "bsend": "use isend(x, dst)",
    "rsend": "use send(x, dst)",
    **dict.fromkeys(("issend", "ibsend", "irsend"), "use isend(x, dst)"),
    **dict.fromkeys(("ssend_init", "bsend_init", "rsend_init", "psend_init"), "use send_plan(x, dst)"),
    "precv_init": "use recv_plan(x, src)",
    "isendrecv": "use sendrecv(x, dst, src, async_op=True)",
    "isendrecv_replace": "use sendrecv(x, dst, src, out=x, async_op=True)",
    "sendrecv_replace": "use sendrecv(x, dst, src, out=x)",
    "send_init": "use send_plan(x, dst)",
    "recv_init": "use recv_plan(x, src)",
    "iprobe": "use probe(src, tag)",
    "mprobe": "use probe(src, tag)",
    "improbe": "use probe(src, tag)",
    "batch_isend_irecv": "use batch(sends, recvs)",
    "P2POp": "use batch(sends, recvs), with (x, dst) for a send and (x, src) for a receive",
    "send_object_list": "use send_object(obj, dst)",
    "recv_object_list": "use recv_object(src), which returns the object",
    "wait_all": "use rw.wait_all(works)",
    "wait_any": "use rw.wait_any(works)",
    # groups
    "new_group": "use subgroup(ranks)",
    "create": "use subgroup(ranks)",
    "create_group": "use subgroup(ranks)",
    "create_from_group": "use subgroup(ranks)",
    "new_subgroups_by_enumeration": "use subgroup(ranks)",
    "split_type": "use split(color, key=0), with the same color on the ranks that belong together",
    "split_group": "use split(color, key=0), or subgroup(ranks)",
    "new_subgroups": "use split(color, key=0)",
    "clone": "use dup()",
    **dict.fromkeys(("duplicate", "idup", "dup_with_info", "idup_with_info"), "use dup()"),
    **dict.fromkeys(("get_group", "group"), "use group.ranks"),
    "compare": "compare group.ranks",
    "set_name": 'use dup("name"), or the argument name of split',
    "cart_map": "use rw.Mesh(group, rows=2, columns=-1)",
    **dict.fromkeys(
        ("create_graph", "create_dist_graph", "create_dist_graph_adjacent", "graph_map", "get_topology", "topology"),
        _NEIGHBOURS,
    ),
    "is_topo": _NEIGHBOURS,
    "create_cart": "use rw.Mesh(group, rows=2, columns=-1)",
    "device_mesh": "use rw.Mesh(group, rows=2, columns=-1)",
    "init_device_mesh": "use rw.Mesh(group, rows=2, columns=-1)",
    "process_group": "use rw.Group",
    "free": "use close()",
    "destroy": "use close()",
    "disconnect": "use close()",
    "finalize": "use close()",
    "shutdown": "use close()",
    "destroy_process_group": "use close()",
    "allreduce_init": "use all_reduce_plan(x)",
    "bcast_init": "use broadcast_plan(x)",
    # after a loss
    "get_failed": "use failed()",
    "revoke": "use abort(reason)",
    **dict.fromkeys(("is_revoked", "ack_failed"), "it is not needed: failed() says which ranks are lost, and how"),
    "ishrink": "use shrink()",
    "shrink_group": "use shrink()",
    "iagree": "use agree(flag)",
    **dict.fromkeys(
        ("set_errhandler", "get_errhandler", "create_errhandler", "call_errhandler"),
        "it is not needed: errors are always exceptions",
    ),
    **dict.fromkeys(("DistError", "DistBackendError", "DistNetworkError"), "use rw.RankwiseError"),
    # the job, and training
    "init_process_group": "it is not needed: use rw.init(), which returns a group",
    "is_initialized": "it is not needed: the group that rw.init() returns is ready",
    "is_available": "it is not needed: rankwise is always available",
    "get_node_local_rank": "the launcher sets the environment variable LOCAL_RANK",
    **dict.fromkeys(("TCPStore", "FileStore", "HashStore", "PrefixStore", "Store", "DistStoreError"), _STORES),
    **dict.fromkeys(("QueueEmptyError", "rendezvous", "register_rendezvous_handler"), _STORES),
    **{f"is_{name}_available": _DOCTOR for name in ("backend", "gloo", "mpi", "nccl", "ucc", "xccl")},
    **dict.fromkeys(("DebugLevel", "get_debug_level", "set_debug_level", "set_debug_level_from_env"), _COMPARED),
    **dict.fromkeys(("Backend", "get_default_backend_for_device"), "use rw.init(backend), or no backend for the best"),
    "BackendConfig": "use group.backend",
    "get_backend_config": "use group.backend",
    **{f"ProcessGroup{name}": f'use rw.init("{name.lower()}")' for name in ("Gloo", "MPI", "NCCL")},
    **dict.fromkeys(("GroupMember", "GroupName"), "use rw.Group"),
    **dict.fromkeys(("ReduceOp", "reduce_op"), "use rw.ReduceOp"),
    "Work": "use rw.Work",
    **dict.fromkeys(_OPTIONS.split(), "it is not needed: each operation takes its options as arguments"),
    "is_torchelastic_launched": "it is not needed: rw.init() finds the launcher",
    "supports_complex": "it is not needed: complex arrays are taken wherever their op has a meaning",
    **dict.fromkeys(("DistributedDataParallel", "DDP"), "use rw.overlap.data_parallel(module)"),
    "GradBucket": "use rw.overlap.Bucket",
    "Reducer": "use rw.overlap.GradientReducer",
    "BuiltinCommHookType": "use rw.overlap.BF16Hook or rw.overlap.TopKHook",
    **dict.fromkeys(_NOTHING.split(), "rankwise has nothing that corresponds to it"),
    "register_comm_hook": "use rw.overlap.data_parallel(module, hook=...)",
}
"""By the name in snake_case, or in a spelling of its own. `guesses` adds the other spellings, and those of the group's
own operations.
"""

MODULE: dict[str, str] = {
    "mpi": f"there is no such module: the group that `{_FIRST}` returns corresponds to MPI.COMM_WORLD",
    "commworld": f"`{_FIRST}` returns the group of all ranks",
    "world": f"`{_FIRST}` returns the group of all ranks",
    "group": f"`{_FIRST}` returns the group of all ranks",
    "initprocessgroup": f"use init(): `{_FIRST}`",
    "initialize": f"use init(): `{_FIRST}`",
    "getdefaultgroup": f"use init(): `{_FIRST}` returns the same group again",
    "isinitialized": f"it is not needed: `{_FIRST}` returns the same group again",
    "rank": f"after `{_FIRST}`, use group.rank",
    "getrank": f"after `{_FIRST}`, use group.rank",
    "localrank": "the launcher sets the environment variable LOCAL_RANK",
    "worldsize": f"after `{_FIRST}`, use group.world_size",
    "size": f"after `{_FIRST}`, use group.world_size",
    "getsize": f"after `{_FIRST}`, use group.world_size",
    "getworldsize": f"after `{_FIRST}`, use group.world_size",
    "getbackend": f"after `{_FIRST}`, use group.backend",
    "status": "the result of recv_any, and the Work of irecv and irecv_object, have the source and the tag",
    "startall": "call start() of each plan",
    "wtime": "use time.perf_counter()",
    "undefined": "use color=None",
    "computedims": "use rw.Mesh.balanced(group, 2)",
    "comm": "use rw.Group",
    **dict.fromkeys(("distributeddataparallel", "ddp", "dataparallel"), "use rw.overlap.data_parallel(module)"),
    "cart": "use rw.Mesh",
    "anysource": "use ANY as the src of recv",
    "anytag": "use ANY as the tag of recv",
    "procnull": "use None as dst or src",
    "inplace": "it is not needed: all_reduce, broadcast and reduce work in place",
    "runranks": "use rw.testing.run_ranks",
    "run": "use `rankwise run -n 4 program.py` in a shell, or rw.spawn(function, n)",
    "launch": "use `rankwise run -n 4 program.py` in a shell, or rw.spawn(function, n)",
    "span": "use rw.trace.span",
    "measure": "use rw.trace.measure",
    "state": "use rw.elastic.State",
    **{
        name: f'use op="{name}", or rw.ReduceOp.{name.upper()}' for name in ("sum", "max", "min", "band", "bor", "bxor")
    },
    **dict.fromkeys(("avg", "mean", "average"), 'use op="mean", or rw.ReduceOp.MEAN'),
    **dict.fromkeys(("prod", "product"), 'use op="product", or rw.ReduceOp.PROD'),
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

KEYWORDS: dict[str, tuple[str, ...]] = {
    "root": ("src", "dst"),
    "source": ("src",),
    "srcrank": ("src",),
    "groupsrc": ("src",),
    "dest": ("dst",),
    "dstrank": ("dst",),
    "groupdst": ("dst",),
    "sendbuf": ("x",),
    "recvbuf": ("out", "x"),
    "buf": ("x",),
    "tensor": ("x",),
    "array": ("x",),
    "inputtensor": ("x",),
    "inputlist": ("x",),
    "outputtensor": ("out",),
    "output": ("out",),
    "scatterlist": ("x",),
    "gatherlist": ("out",),
    "object": ("obj",),
    "reduceop": ("op",),
    "async": ("async_op",),
    "asyncop": ("async_op",),
}
"""The parameters that a keyword may mean. The error names the first one that the operation has."""

_GROUPS = ("comm", "group", "process_group")


MESH: dict[str, str] = {
    "shape": "use mesh.axes, which has the size of each axis by its name",
    "dims": "use mesh.axes, which has the size of each axis by its name",
    "gettopo": "use mesh.axes, mesh.periodic and mesh.coordinates",
    "meshdimnames": "use mesh.axes, which has the size of each axis by its name",
    "ndim": "use len(mesh.axes)",
    "dim": "use len(mesh.axes)",
    "coords": "use mesh.coordinates, which has this rank's place along each axis by its name",
    "getcoords": "use mesh.coordinates, which has this rank's place along each axis by its name",
    "getcoordinate": "use mesh.coordinates, which has this rank's place along each axis by its name",
    "periods": "use mesh.periodic, the names of the periodic axes",
    "getcartrank": "use mesh.rank_at(...)",
    "sub": "each axis is an attribute with its group; for several axes use mesh.along(...)",
    "getgroup": "each axis is an attribute with its group; for several axes use mesh.along(...)",
    "rank": "use mesh.group.rank",
    "getrank": "use mesh.group.rank",
    "getlocalrank": "use the rank of an axis's group",
    "size": "use mesh.group.world_size",
    "worldsize": "use mesh.group.world_size",
}
"""What a Mesh has instead of these attributes of mpi4py's Cartcomm and of torch's DeviceMesh, in lower case without
underscores.
"""

WORK: dict[str, str] = {
    "test": "use done()",
    "Test": "use done()",
    "is_completed": "use done()",
    "is_success": "use wait(), which raises the operation's error",
    "Wait": "use wait()",
    "block_current_stream": "use wait()",
    "get_future": "use `await work`, add_done_callback(function), or rw.wait_any(works)",
    "Cancel": "use cancel() for a send or receive; a collective cannot be cancelled",
}


def spellings(name: str) -> set[str]:
    """The other spellings of a name in snake_case: allreduce, Allreduce, All_reduce, AllReduce, allReduce."""
    first, *others = name.split("_")
    camel = "".join(word.capitalize() for word in others)
    joined = name.replace("_", "")
    return {joined, joined.capitalize(), name.capitalize(), first + camel, first.capitalize() + camel} - {name}


class Guess:
    """A name that a class does not have. To use it raises an AttributeError that says which name to use.

    It is a descriptor, because a class with __getattr__ finds its own attributes more slowly (by 40 to 200 ns a call);
    Guessed hides it.
    """

    def __init__(self, name: str, advice: str, owner: str = "Group") -> None:
        self._name, self._advice, self._owner = name, advice, owner

    def __get__(self, owner: Any, kind: type) -> NoReturn:
        raise AttributeError(f"{self._owner!r} object has no attribute {self._name!r}: {self._advice}", name=self._name)


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
