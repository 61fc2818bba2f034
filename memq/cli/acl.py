"""`memq acl`: the rules of who may do what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from memq.cli.command import Group, admin_options, confirm, option, yes_option
from memq.cli.output import show_rows
from memq.core.access.iam import read_policy
from memq.core.access.rules import ALL_OPERATIONS, ANY, CLUSTER, OPERATIONS, RESOURCE_TYPES, Rule
from memq.core.topic import AUDIT_TOPIC
from memq.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq import AdminClient
    from memq.core.access.rules import Operation, ResourceType

_COLUMNS = ["principal", "effect", "operation", "type", "name", "match", "host"]
_RESOURCES = ("topic", "group", "producer_id")


@click.group(cls=Group)
def acl() -> None:
    """Say who may do what, by rules.

    Rules decide on brokers that ask clients who they are (`authentication = "required"`). What no
    rule allows is denied, and what one denies is denied whatever others allow. Whoever may read,
    write, alter or delete something may describe it.
    """


def _selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say what rules are about."""
    for add in (
        option("--host", help="From where: an address, a network such as 10.0.0.0/8, or *."),
        option("--cluster", is_flag=True, help="On the cluster: users, rules, brokers."),
        option("--producer-id", metavar="NAME", help="On producer ids; NAME* for a prefix."),
        option("--group", metavar="NAME", help="On groups; NAME* for a prefix."),
        option("--topic", metavar="NAME", help="On topics; NAME* for a prefix, * for all."),
        option(
            "--operation",
            "operations",
            multiple=True,
            type=click.Choice([*OPERATIONS, ALL_OPERATIONS]),
            help="What; may be given again.",
        ),
    ):
        command = add(command)
    return command


@acl.command(
    epilog="""
memq acl add User:web --producer --topic clicks
memq acl add User:etl --consumer --topic clicks --group etl
memq acl add User:etl --operation read --topic 'clicks*' --host 10.0.0.0/8
memq acl add '*' --deny --operation delete --topic '*'
"""
)
@click.argument("principal")
@option("--producer", is_flag=True, help="What a producer needs to write to --topic.")
@option("--consumer", is_flag=True, help="What a consumer of --group needs to read --topic.")
@option("--deny", is_flag=True, help="Deny it, whatever other rules allow.")
@_selection
@admin_options
def add(
    *,
    principal: str,
    producer: bool,
    consumer: bool,
    deny: bool,
    admin: AdminClient,
    output: str,
    **selection: Any,
) -> None:
    """Add rules about PRINCIPAL.

    That is User:NAME, or * for everybody.
    --producer allows to write to the topic, and to report to the audit; with --producer-id also to
    use that stable name. --consumer allows to read the topic and to be a member of the group.
    """
    operations = [*selection["operations"]]
    if producer + consumer + bool(operations) != 1:
        raise click.UsageError("give one of --producer, --consumer and --operation")
    named = {name: selection[name] for name in _RESOURCES if selection[name]}
    if selection["cluster"]:
        named[CLUSTER] = CLUSTER
    for wants, needs in ((producer, ("topic",)), (consumer, ("topic", "group"))):
        for missing in needs:
            if wants and missing not in named:
                raise click.UsageError(
                    f"--{'producer' if producer else 'consumer'} needs --{missing}"
                )
    if not named:
        raise click.UsageError("give one of --topic, --group, --producer-id and --cluster")
    pairs = [(operation, kind) for operation in operations for kind in named]
    if producer:
        pairs = [("write", kind) for kind in named]
    if consumer:
        pairs = [("read", kind) for kind in named]
    base = {"principal": principal, "allow": not deny, "host": selection["host"] or ANY}
    rules = [_rule(operation, kind, named[kind], base) for operation, kind in pairs]
    if (producer or consumer) and not deny:
        rules.append(_rule("write", "topic", AUDIT_TOPIC, base))
    admin.alter_rules(add=rules)
    show_rows([_row(rule) for rule in rules], _COLUMNS, output)


def _rule(operation: str, kind: str, name: str, base: dict[str, Any]) -> Rule:
    """Make a rule of a name as people write it, with a star at its end for a prefix."""
    prefixed = name.endswith("*") and name != ANY
    return Rule(
        operation=operation,
        type=kind,
        name=name.removesuffix("*") if prefixed else name,
        prefixed=prefixed,
        **base,
    )


@acl.command("list", epilog="memq acl list\nmemq acl list User:etl --topic clicks")
@click.argument("principal", required=False)
@_selection
@admin_options
def list_(*, principal: str | None, admin: AdminClient, output: str, **selection: Any) -> None:
    """List the rules, of PRINCIPAL or of all.

    With options, only those that say exactly that.
    """
    found = _selected(admin.rules(), principal, selection)
    show_rows([_row(rule) for rule in found], _COLUMNS, output)


@acl.command(epilog="memq acl remove User:etl --topic clicks\nmemq acl remove User:etl --yes")
@click.argument("principal")
@_selection
@yes_option
@admin_options
def remove(*, principal: str, yes: bool, admin: AdminClient, output: str, **selection: Any) -> None:
    """Remove rules about PRINCIPAL.

    Those that the options name; without options all of them.
    """
    found = _selected(admin.rules(), principal, selection)
    if not found:
        raise click.UsageError("no rule says exactly that; see `memq acl list`")
    lines = "\n".join(f"  {rule.words()}" for rule in found)
    confirm(f"Remove {counted(len(found), 'rule')}?\n{lines}\n", yes=yes)
    admin.alter_rules(remove=found)
    show_rows([_row(rule) for rule in found], _COLUMNS, output)


def _selected(rules: list[Rule], principal: str | None, selection: dict[str, Any]) -> list[Rule]:
    found = []
    named = {(kind, selection[kind]) for kind in _RESOURCES if selection[kind]}
    if selection["cluster"]:
        named |= {(CLUSTER, CLUSTER), (CLUSTER, ANY)}
    for rule in rules:
        shown = f"{rule.name}*" if rule.prefixed else rule.name
        if (
            principal in (None, rule.principal)
            and (not named or (rule.type, shown) in named)
            and (not selection["operations"] or rule.operation in selection["operations"])
            and selection["host"] in (None, rule.host)
        ):
            found.append(rule)
    return found


@acl.command(
    epilog="""
memq acl check User:alice read topic clicks
memq acl check User:alice alter cluster
"""
)
@click.argument("principal")
@click.argument("operation", type=click.Choice(OPERATIONS))
@click.argument("resource", metavar="TYPE", type=click.Choice(RESOURCE_TYPES))
@click.argument("name", default=CLUSTER)
@option("--host", default="", help="Address from which it would be.")
@admin_options
def check(
    *,
    principal: str,
    operation: Operation,
    resource: ResourceType,
    name: str,
    host: str,
    admin: AdminClient,
    output: str,
) -> None:
    """Say whether PRINCIPAL may do OPERATION.

    TYPE and NAME are those of a resource. The rule that decides is shown. Exits with 3 when it may
    not.
    """
    answer = admin.check_access(principal, operation, resource, name, host)
    show_rows([{"allowed": answer.allowed, "why": answer.why}], ["allowed", "why"], output)
    if not answer.allowed:
        click.get_current_context().exit(3)


@acl.command(epilog="memq acl export User:etl --storage s3://my-bucket/memq > policy.json")
@click.argument("principal")
@option("--storage", required=True, help="That of the brokers, such as s3://my-bucket/memq.")
@admin_options
def export(*, principal: str, storage: str, admin: AdminClient, output: str) -> None:  # noqa: ARG001
    """Print an IAM policy for what PRINCIPAL may read.

    Readers fetch Batches from the bucket, by its own access rights: attach the policy to the role
    of the reader. It allows no more than the rules; what they allow from some hosts only is left
    out.
    """
    cluster_id = admin.status().cluster_id
    click.echo(json.dumps(read_policy(admin.rules(), principal, storage, cluster_id), indent=2))


def _row(rule: Rule) -> dict[str, Any]:
    return {
        "principal": rule.principal,
        "effect": "allow" if rule.allow else "deny",
        "operation": rule.operation,
        "type": rule.type,
        "name": rule.name,
        "match": "prefix" if rule.prefixed else "literal",
        "host": rule.host,
    }
