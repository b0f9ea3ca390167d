"""The types of the names in __init__.py, which loads them when they are first used."""

from rankwise import autograd as autograd
from rankwise import elastic as elastic
from rankwise import overlap as overlap
from rankwise import testing as testing
from rankwise import trace as trace
from rankwise.contract.errors import (
    BackendUnavailable as BackendUnavailable,
)
from rankwise.contract.errors import (
    ClosedError as ClosedError,
)
from rankwise.contract.errors import (
    CollectiveTimeout as CollectiveTimeout,
)
from rankwise.contract.errors import (
    MismatchError as MismatchError,
)
from rankwise.contract.errors import (
    PeerLostError as PeerLostError,
)
from rankwise.contract.errors import (
    RankwiseError as RankwiseError,
)
from rankwise.contract.errors import (
    UnsupportedError as UnsupportedError,
)
from rankwise.contract.message import ANY as ANY
from rankwise.contract.message import Message as Message
from rankwise.contract.types import DType as DType
from rankwise.contract.types import ReduceOp as ReduceOp
from rankwise.contract.work import Work as Work
from rankwise.group.default_group import registered as registered
from rankwise.group.farm import TaskError as TaskError
from rankwise.group.group import Group as Group
from rankwise.group.mesh import Mesh as Mesh
from rankwise.group.messages import Received as Received
from rankwise.group.sharing import Counter as Counter
from rankwise.group.sharing import Lock as Lock
from rankwise.group.work import wait_all as wait_all
from rankwise.group.work import wait_any as wait_any
from rankwise.initialize import init as init
from rankwise.launch.spawn import spawn as spawn
from rankwise.pool.local import local as local
from rankwise.pool.pool import Pool as Pool
from rankwise.system.library import (
    get_cmake_dir as get_cmake_dir,
)
from rankwise.system.library import (
    get_include as get_include,
)
from rankwise.system.library import (
    get_library as get_library,
)

_group: Group

# A function of the module has the type of the group's bound method.
abort = _group.abort
agree = _group.agree
all_gather = _group.all_gather
all_gather_object = _group.all_gather_object
all_gather_v = _group.all_gather_v
all_reduce = _group.all_reduce
all_to_all = _group.all_to_all
all_to_all_v = _group.all_to_all_v
barrier = _group.barrier
batch = _group.batch
broadcast = _group.broadcast
broadcast_object = _group.broadcast_object
close = _group.close
counter = _group.counter
dup = _group.dup
empty = _group.empty
exscan = _group.exscan
failed = _group.failed
gather = _group.gather
gather_object = _group.gather_object
gather_v = _group.gather_v
irecv = _group.irecv
irecv_object = _group.irecv_object
isend = _group.isend
isend_object = _group.isend_object
lock = _group.lock
probe = _group.probe
recv = _group.recv
recv_any = _group.recv_any
recv_object = _group.recv_object
reduce = _group.reduce
reduce_scatter = _group.reduce_scatter
reduce_scatter_v = _group.reduce_scatter_v
restore = _group.restore
rng = _group.rng
scan = _group.scan
scatter = _group.scatter
scatter_object = _group.scatter_object
scatter_v = _group.scatter_v
send = _group.send
send_object = _group.send_object
sendrecv = _group.sendrecv
share = _group.share
shared_zeros = _group.shared_zeros
shrink = _group.shrink
split = _group.split
split_local = _group.split_local
subgroup = _group.subgroup

__version__: str
