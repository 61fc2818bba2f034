"""Models of ZooKeeper that hold back requests, and that look whether the rules are kept."""

from memq.core.governor.coordination import Check, Create
from memq.core.governor.nodes import ELECTION, GOVERNOR
from memq.zookeeper.session import Transaction
from tests.fakes.zookeeper import InMemoryZooKeeper


class Slow(InMemoryZooKeeper):
    """Servers that carry out some requests late, as if others went before them."""

    def __init__(self) -> None:
        super().__init__()
        self.held = []
        self._late = None

    def carry_out(self, connection, request, answer):
        session = connection.session
        if self._late is not None and session is not None and self._late(session, request):
            self.held.append((connection, request, answer))
        else:
            super().carry_out(connection, request, answer)

    def hold(self, late):
        """Hold back those requests of which `late(session, request)` says so.

        No `WatchNode` should be: what is read after it would be older.
        """
        self._late = late

    def release(self):
        """Carry out what was held, and hold nothing any more."""
        held, self.held, self._late = self.held, [], None
        for each in held:
            self.carry_out(*each)


def of(session, *requests):
    """What `hold` takes, for such requests of a session, which may be none in particular."""

    def late(held, request):
        return held.session_id == session.session_id and (
            request in requests or type(request) in requests
        )

    return late


class Watched(Slow):
    """Servers that look whether only the broker elected last changes assignments.

    Attributes:
        wrong: what was done and should not have been.
        elections: how many there were.
        people: sessions that may do everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wrong = []
        self.elections = 0
        self.people = []
        self._elected = None

    def carry_out(self, connection, request, answer):
        before = dict(self._tree.nodes)
        super().carry_out(connection, request, answer)
        if isinstance(request, Transaction) and self._tree.nodes != before:
            session_id = connection.session.session_id
            if session_id not in [each.session_id for each in self.people]:
                self._look(request.changes, before, session_id)

    def _look(self, changes, before, session_id):
        paths = [change.path for change in changes]
        if any(path.startswith("/assignments/") for path in paths):
            if Check(ELECTION, before[ELECTION].version) not in changes:
                self.wrong.append(f"{paths}: not checked")
            if self._elected != session_id:
                self.wrong.append(f"{paths}: by another one than was elected last")
        if GOVERNOR in paths and isinstance(changes[0], Create):
            self.elections += 1
            self._elected = session_id
            if self._tree.nodes[ELECTION].version != self.elections:
                self.wrong.append("an election without a version of its own")
