"""Files by path, in memory; the program that works on them dies at a call."""

from memq.spark import files


class KilledError(Exception):
    """A program was killed."""


class DyingDisk:
    """As `memq.spark.files`; the call of a number is the last one, before or after that is done.

    Attributes:
        files: content by path.
        calls: how many there were.
        dies: number of the last call; None for none.
        after: whether that is done.
    """

    def __init__(self, **files):
        self.files = files
        self.calls, self.dies, self.after = 0, None, False

    def _do(self, work):
        self.calls += 1
        dies = self.calls == self.dies
        if dies and not self.after:
            raise KilledError
        found = work()
        if dies:
            raise KilledError
        return found

    def below(self, path):
        """Paths of a file, or of all that is in a folder."""
        return [each for each in self.files if each == path or each.startswith(f"{path}/")]

    def names(self, folder):
        inside = (each.removeprefix(f"{folder}/") for each in self.below(folder))
        return self._do(lambda: sorted({each.partition("/")[0] for each in inside}))

    def exists(self, path):
        return self._do(lambda: bool(self.below(path)))

    def read(self, path):
        return self._do(lambda: self.files[path])

    def write(self, path, data):
        self._do(lambda: self.files.update({path: data}))

    def delete(self, path):
        for each in self.below(path):  # which may end half-way
            self._do(lambda each=each: self.files.pop(each))

    def rename(self, old, new):
        assert self.below(old), f"{old} is not there"
        assert not self.below(new), f"{new} is there"
        moved = {each: new + each.removeprefix(old) for each in self.below(old)}
        self._do(lambda: self.files.update({to: self.files.pop(of) for of, to in moved.items()}))

    def replaces(self, monkeypatch):
        """Have `memq.spark.files` work on it."""
        for name in ("names", "exists", "read", "write", "delete", "rename"):
            monkeypatch.setattr(files, name, getattr(self, name))
        return self
