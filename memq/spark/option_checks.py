"""Whether the options of a read fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.errors import ConfigError

if TYPE_CHECKING:
    from memq.spark.options import ReadOptions


def check_topics(options: ReadOptions) -> None:
    """Refuse what does not say which topic it is about, or speaks of one that is not read."""
    several = not options.topic
    if several and options.incarnation is not None:
        raise ConfigError("option 'incarnation' is that of one topic: name it by 'topic'")
    for side, bound in (("starting", options.starting), ("ending", options.ending)):
        if several and bound.partitions is not None:
            raise ConfigError(
                f"the JSON of option '{side}Offsets' does not say of which topic its read "
                'partitions are; where several are read, write {"clicks": {"0": 5}}'
            )
        named = set(bound.by_topic or ())
        read = set(options.subscribe or (options.topic,))
        if named and options.subscribe_pattern is None and named != read:
            raise ConfigError(
                f"option '{side}Offsets' names the topics {', '.join(sorted(named))}, and the "
                f"read is of {', '.join(sorted(read))}"
            )
        if options.subscribe_pattern is not None:
            for name in sorted(named):
                if not options.subscribe_pattern.fullmatch(name):
                    raise ConfigError(
                        f"option '{side}Offsets' names topic {name!r}, which 'subscribePattern' "
                        "does not match"
                    )


def check_stream(options: ReadOptions) -> None:
    """Refuse limits of micro-batches that exclude each other, and reports that may not be true."""
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option 'minOffsetsPerTrigger' = {least} is more than 'maxOffsetsPerTrigger' = {most}"
        )
    if options.consumer is not None and (options.permissive or not options.fail_on_data_loss):
        raise ConfigError(
            "option 'consumer' tells the audit that all was read; with mode=permissive or "
            "failOnDataLoss=false a task may leave out something: leave out one of them"
        )
