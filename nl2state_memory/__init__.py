"""nl2state in memory: the reference implementation, for tests and for reading. Nothing outlives the process."""

from nl2state_memory.settings import Settings
from nl2state_memory.store import MemoryStore, MemoryTenant, MemoryTransaction

__all__ = ["MemoryStore", "MemoryTenant", "MemoryTransaction", "Settings"]
