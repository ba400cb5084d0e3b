"""The ledger: the log in a file, what its events mean, and how it is looked at."""

from targetopt.oracle.ledger.book import Book, Request
from targetopt.oracle.ledger.ledger import Ledger
from targetopt.oracle.ledger.log import Event, EventLog, Line

__all__ = ["Book", "Event", "EventLog", "Ledger", "Line", "Request"]
