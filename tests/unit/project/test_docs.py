"""The documents say what is so: links, commands, paths, options, limits, metrics, log lines."""

import ast
import re
import shlex
import tomllib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from docs.generate import cost, metrics
from docs.generate.configuration import render
from memq.broker.alerts import ALERTS, rules_text
from memq.broker.config import BrokerConfig
from memq.broker.dashboard import PANELS, dashboard_text
from memq.broker.metric_table import METRICS
from memq.broker.metrics import Metrics
from memq.cli.main import cli

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DOCS = ROOT / "docs"

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PATH = re.compile(r"(?:memq|tests|docs|demo|benchmarks|core|broker|client)/[\w./]*\w/?")
LIMIT = re.compile(r"`(\w+)` in `([\w/]+)\.py` = ([\d,]+)(?: (KiB|MiB|s))?")
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "s": 1}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", text_of(page))


def rows_of(page: Path, heading: str) -> list[list[str]]:
    """Cells of the table rows below a heading, up to the next heading."""
    section = text_of(page).split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


# -- links and paths ------------------------------------------------------------------------


def slugs_of(page: Path) -> set[str]:
    """The anchors that headings get."""
    headings = HEADING.findall(prose_of(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(SPAN.sub("", prose_of(page))):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in slugs_of(target)):
            broken.append(link)
    return broken


@each_page
def test_links_resolve(page):
    """A relative link leads to a file that is there, and its anchor to a heading."""
    assert broken_links(page) == []


@each_page
def test_paths_exist(page):
    """A file or folder of ours that a page names is there; `core/…` stands for `memq/core/…`."""
    named = [span for span in SPAN.findall(prose_of(page)) if PATH.fullmatch(span)]

    assert [n for n in named if not (ROOT / n).exists() and not (ROOT / "memq" / n).exists()] == []


# -- commands -------------------------------------------------------------------------------


def commands_in(line: str) -> list[list[str]]:
    """The `memq` commands of a shell line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for token in lexer:
        if set(token) <= set("|&;<>"):
            commands.append([])
        else:
            commands[-1].append(token)
    return [command for command in commands if command[:1] == ["memq"]]


def complete_commands(page: Path) -> list[list[str]]:
    """Commands in shell blocks, which a reader copies."""
    lines = []
    for language, block in FENCE.findall(text_of(page)):
        if language in ("", "sh", "bash", "console"):
            lines += [
                line.strip().removeprefix("$ ")
                for line in re.sub(r"\\\n(?:> )?\s*", "", block).splitlines()
                if re.search(r"\bmemq ", line)
                if language != "console" or line.startswith("$ ")  # the rest is output
            ]
    return [command for line in lines for command in commands_in(line)]


def mentioned_commands(page: Path) -> list[list[str]]:
    """Commands within sentences, which may lack arguments."""
    spans = [" ".join(span.split()) for span in SPAN.findall(prose_of(page))]
    lines = [span.partition("…")[0] for span in spans if span.startswith("memq ")]
    return [command for line in lines for command in commands_in(line)]


def check_command(tokens: list[str], *, complete: bool) -> None:
    """Refuse a command, option or argument that does not exist, as the command line does."""
    command: click.Command = cli
    context = click.Context(cli, info_name="memq")
    rest = tokens[1:]
    while isinstance(command, click.Group):
        _, rest, _ = command.make_parser(context).parse_args(list(rest))
        if not rest:
            return
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"no command {rest[0]!r}")
        command, rest = found, rest[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    positional = [each for each in command.params if isinstance(each, click.Argument)]
    flags = [each for each in command.params if isinstance(each, click.Option)]
    # Only the words are looked at: files need not exist, and arguments may be placeholders.
    parser = click.Command(command.name, params=flags).make_parser(context)
    _, rest, _ = parser.parse_args(list(rest))
    needed = len([each for each in positional if each.required])
    most = len(rest) if any(each.nargs < 0 for each in positional) else len(positional)
    if len(rest) > most or (complete and len(rest) < needed):
        raise click.UsageError(f"{rest} are not the arguments of {command.name}")


@each_page
def test_commands_parse(page):
    """Every `memq …` that a page shows is a command with options that exist."""
    for tokens in complete_commands(page):
        check_command(tokens, complete=True)
    for tokens in mentioned_commands(page):
        check_command(tokens, complete=False)


def test_commands_in_messages_exist():
    """A command that a message shows has the arguments and options that it says."""
    sources = [path.read_text() for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    shown = {
        template_of(node, quoted=True) or ""
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.expr)
    }
    commands = [each for text in shown for each in re.findall(r"`(memq \w[^`\n]+)`", text)]
    assert len(commands) > 10
    for command in commands:
        for tokens in commands_in(command.replace("…", "VALUE")):
            check_command(tokens, complete=False)


@each_page
def test_make_words_exist(page):
    """Every `make …` that a page shows is a word of the Makefile."""
    blocks = [block for _, block in FENCE.findall(text_of(page))]
    shown = [line for block in blocks for line in block.splitlines()] + SPAN.findall(prose_of(page))
    words = {match[1] for line in shown if (match := re.match(r"make ([a-z-]+)", line.strip()))}
    known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert words <= set(known)


@each_page
def test_programs_of_the_checkout_exist(page):
    """Every `python -m tests…` or `python -m benchmarks…` that a page shows is there."""
    for name in re.findall(r"python -m ((?:tests|benchmarks)[\w.]*)", text_of(page)):
        assert find_spec(name) is not None, name


# -- names, limits, metrics -----------------------------------------------------------------

PRODUCT = ("memq", "airflow_provider_memq", "pyspark_memq", "spark_apps", "dags")


def test_limits_equal_the_constants():
    """A number in the tables of limits is that of the constant it names."""
    limits = LIMIT.findall(text_of(DOCS / "architecture.md"))

    assert len(limits) > 20
    for name, module, number, unit in limits:
        scale = 1_000 if unit == "s" and name.endswith("_MS") else UNITS[unit]
        value = getattr(import_module(f"memq.{module.replace('/', '.')}"), name)
        assert (name, value) == (name, int(number.replace(",", "")) * scale)


def test_every_metric_is_a_row_of_the_table():
    """A broker has the metrics of the table, and those of its process; the pages name no other."""
    made = Metrics().registry.collect()
    names = {each.name + ("_total" if each.type == "counter" else "") for each in made}
    shown = {
        name
        for page in ("operations.md", "runbook.md")
        for name in re.findall(r"\bmemq_[a-z_]+", prose_of(DOCS / page))
    }

    assert {name for name in names if not name.startswith("process_")} == METRICS.keys()
    assert shown - METRICS.keys() == set()


@pytest.mark.parametrize(
    ("path", "made"),
    [
        ("docs/metrics.md", metrics.render),
        ("deploy/prometheus/memq.rules.yaml", rules_text),
        ("deploy/grafana/memq.json", dashboard_text),
    ],
)
def test_what_the_tables_of_metrics_and_alerts_make_is_current(path, made):
    """The file in the repository is what the tables make; `make docs` mends it when it is not."""
    assert text_of(ROOT / path) == made()


@pytest.mark.parametrize("each", [*ALERTS, *PANELS], ids=lambda each: each[0])
def test_a_query_is_about_metrics_that_there_are(each):
    """An alert or a panel that asks for what no broker has would be silent for ever."""
    series = {row.series for row in METRICS.values()}
    labels = {label for row in METRICS.values() for label in row.labels.split()}
    asked = set(re.findall(r"\bmemq_\w+|\bup\b", each.expr))

    assert asked
    assert asked - series <= {"up"}
    for names in re.findall(r"by \(([^)]*)\)", each.expr):
        assert set(names.split(", ")) <= labels | {"instance", "le"}


def test_every_alert_is_in_the_runbook():
    """Each alert links to a heading of the runbook, which has no other."""
    headings = HEADING.findall(prose_of(DOCS / "runbook.md"))

    assert [each for each in headings if each.startswith("Memq")] == [each.name for each in ALERTS]
    assert {each.runbook.partition("#")[2] for each in ALERTS} <= slugs_of(DOCS / "runbook.md")


def test_the_reference_of_options_is_current():
    """The page in the repository equals the tables; `make docs` mends it when it does not."""
    assert text_of(DOCS / "configuration.md") == render()


def test_the_tables_of_costs_are_current():
    """They are what `memq cost` prints now; `make docs` mends them when they are not."""
    page = text_of(DOCS / "cost.md")
    assert page == cost.render(page)


def test_the_example_configuration_is_valid():
    """The TOML that operators copy is a configuration of a broker."""
    blocks = FENCE.findall(text_of(DOCS / "operations.md"))
    examples = [tomllib.loads(block) for language, block in blocks if language == "toml"]

    assert [topic.name for each in examples for topic in BrokerConfig.create(each).topics] == [
        "clicks"
    ]


# -- what the broker says -------------------------------------------------------------------


def template_of(node: ast.expr, *, quoted: bool = False) -> str | None:
    """The text of a string or an f-string, with `…` in place of its values."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    if not isinstance(node, ast.JoinedStr | ast.Constant) or (
        parts == [node] and not isinstance(node.value, str)
    ):
        return None
    texts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts]
    text = re.sub(r"%(?:\.\d+)?[a-z]", "…", "".join(texts))
    return text if quoted else text.replace("`", "")


@cache
def templates() -> list[str]:
    """Every text in the package."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "memq").rglob("*.py")]
    found = (template_of(node) for tree in trees for node in ast.walk(tree))
    return [template for template in found if template]


def warnings_of(source: str) -> list[str]:
    """What a module logs at level warning or above."""
    return [
        template
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("log", "_log")
        and node.func.attr in ("warning", "error", "critical", "exception")
        and (template := template_of(node.args[0]))
    ]


LOG_LINES = ("Log lines", "Lines that need no action")


def test_every_warning_is_explained():
    """An operator finds each line that a broker logs at warning or above, with what to do."""
    folders = [ROOT / "memq" / "broker", ROOT / "memq" / "core" / "notification"]
    logged = {
        template
        for folder in folders
        for path in folder.rglob("*.py")
        for template in warnings_of(path.read_text())
    }
    rows = [row for heading in LOG_LINES for row in rows_of(DOCS / "operations.md", heading)]
    explained = {span for row in rows for span in SPAN.findall(row[0])}

    assert len(logged) > 10
    assert logged - explained == set()


@pytest.mark.parametrize("heading", [*LOG_LINES, "It does not start"])
def test_what_is_explained_is_said(heading):
    """A line or an error that the page explains is a text of the program."""
    shown = [
        span for row in rows_of(DOCS / "operations.md", heading) for span in SPAN.findall(row[0])
    ]
    patterns = {span: ".*".join(map(re.escape, span.split("…"))) for span in shown}

    assert len(shown) > 5
    for span, pattern in patterns.items():
        assert any(re.search(pattern, template) for template in templates()), span
