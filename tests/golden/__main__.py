"""Add the bytes that today's code writes, where they are new: `python -m tests.golden`.

What is there is never changed or removed.
"""

import json
import sys

from tests.golden.data_dir import ARCHIVE, make_archive
from tests.golden.formats import FILES, formats, value_of, versions


def main() -> None:
    """Add them, and say which."""
    FILES.mkdir(exist_ok=True)
    for name, each in formats().items():
        known = versions(name)
        if each.example not in [path.read_bytes() for path in known]:
            path = FILES / f"{name}.{len(known) + 1}"
            path.write_bytes(each.example)
            said = json.dumps(value_of(each.read, each.example), indent=1, sort_keys=True)
            path.with_name(f"{path.name}.json").write_text(said + "\n")
            sys.stdout.write(f"{path}\n")
    if "--data-dir" in sys.argv[1:]:  # when a file of the data directory has another format
        made = make_archive(len(list(FILES.glob(ARCHIVE.format("*")))) + 1)
        sys.stdout.write(f"{made}\n")


if __name__ == "__main__":
    main()
