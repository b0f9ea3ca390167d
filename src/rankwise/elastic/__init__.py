"""`rankwise.elastic`: state that outlives a rank, and training that goes on after a loss."""

from rankwise.elastic.recovery import run
from rankwise.elastic.state import Resumption, State

__all__ = ["Resumption", "State", "run"]
