"""Write the pins of the jars anew, from what the registry gives now.

`python -m tests.harness.services`, after a version was changed; look through the difference.
"""

import tempfile
from pathlib import Path

from tests.harness.services.jars import ARTIFACTS, PINS, Jars, digests


def main() -> None:
    """Fetch everything into a temporary folder, and write its digests."""
    lines = ["# SHA-256 of every jar that the services run. To change a version, see jars.py."]
    with tempfile.TemporaryDirectory(prefix="memq-services-") as folder:
        for artifact in ARTIFACTS:
            found = digests(Jars().fetch(artifact, Path(folder) / artifact.name))
            lines += [f"{found[name]}  {artifact.folder}/{name}" for name in sorted(found)]
    PINS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
