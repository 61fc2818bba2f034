"""Where the tests of a file of the product stand: they mirror it, room by room."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT, INTEGRATION = "tests/unit", "tests/integration"
PROVIDER = "airflow_provider_memq"


def rooms_of(source: Path) -> list[Path]:
    """Return the folders of tests of a product file's room, or of the nearest one around it.

    Args:
        source: below the root; that of another file has no room.
    """
    if source.parts[0] not in ("memq", PROVIDER):
        return []
    room = Path(*source.parts[1:-1])
    if source.parts[0] == PROVIDER:
        room = "airflow" / room
    while not any((ROOT / kind / room).is_dir() for kind in (UNIT, INTEGRATION)):
        room = room.parent
    return [Path(kind) / room for kind in (UNIT, INTEGRATION) if (ROOT / kind / room).is_dir()]
