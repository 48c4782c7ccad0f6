"""The one DuckDB file: its schema, its opening, its writing. Times are naive UTC with microseconds."""

from store.database import Store

__all__ = ["Store"]
